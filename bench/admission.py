"""The cost of a turn in the admission queue: `python -m bench.admission [--turns 3000]`.

In each turn one waiting request is woken and leaves, and another one joins, so the queue keeps its length. Prints µs of
CPU by the number of tenants and of waiting requests, with one priority band and with four, and the same for estimating
how long a request would wait.
"""

import argparse
import random
import time

from router.pool.queue.admission_queue import AdmissionQueue
from router.pool.queue.class_queue import QueueEntry

QUEUES = ((1, 100), (1, 10_000), (100, 10_000), (10_000, 10_000))  # tenants, waiting requests
BANDS = ((0,), (0, 5, -5, 1))
NO_LIMIT = 10**9


def costs_us(tenants: int, waiting: int, bands: tuple[int, ...], turns: int) -> tuple[float, float]:
    """Return the costs of (a turn, an expected wait)."""
    queue, draw, woken = AdmissionQueue(), random.Random(1), list[QueueEntry]()

    def join() -> None:
        tenant = f"tenant {draw.randrange(tenants)}"
        entry = queue.entry("warm", tenant, draw.uniform(100, 9_000), draw.choice(bands))
        queue.join(entry, NO_LIMIT, lambda: woken.append(entry))

    for _ in range(waiting):
        join()
    began = time.process_time()
    for _ in range(turns):
        queue.wake()
        entry = woken.pop()
        queue.resume(entry)
        queue.admitted(entry)
        join()
    turn = time.process_time() - began
    queue.began(0.0)
    entries = [queue.entry("warm", f"tenant {draw.randrange(tenants)}") for _ in range(turns)]
    began = time.process_time()
    for entry in entries:
        queue.expected_wait_s(entry, 1.0)
    return turn / turns * 1e6, (time.process_time() - began) / turns * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3_000)
    turns = parser.parse_args().turns
    print("tenants  waiting  1 band  4 bands  expected wait")
    for tenants, waiting in QUEUES:
        one, four = (min(costs_us(tenants, waiting, bands, turns) for _ in range(3)) for bands in BANDS)
        print(f"{tenants:7,}  {waiting:7,}  {one[0]:6.1f}  {four[0]:7.1f}  {one[1]:13.1f}")


if __name__ == "__main__":
    main()
