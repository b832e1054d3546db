"""The time without a leader of the control plane when the leader of two real workers is killed or stopped.

python -m bench.takeover [N]
"""

import signal
import statistics
import sys
import tempfile
from pathlib import Path

from controlplane.base.schedule.tests.workers import Workers
from router.contract.redis import redis_keys

WAYS = {
    "ended (SIGTERM)": (signal.SIGTERM, False),
    "killed (SIGKILL), same host": (signal.SIGKILL, False),
    "killed (SIGKILL), as on another host": (signal.SIGKILL, True),
    "stopped (SIGSTOP)": (signal.SIGSTOP, False),
}


def there(workers: Workers) -> set[str]:
    return {name.decode() for name in workers.redis.zrange(redis_keys.CONTROL_WORKERS, 0, -1)}


def measure(workers: Workers, number: signal.Signals, elsewhere: bool, took: list[float]) -> None:
    leader = workers.lease()[0]
    (other,) = (name for name in workers.running if name != leader)
    if elsewhere:
        workers.query("update schedule_lease set process = 'elsewhere/1/1'")
    workers.signal(leader, number)
    took.append(workers.until(lambda: workers.acts(other), "the other leads"))
    if number == signal.SIGSTOP:
        workers.signal(leader, signal.SIGCONT)
    else:
        if number == signal.SIGTERM:
            workers.running.pop(leader).wait(60)
        workers.redis.zrem(redis_keys.CONTROL_WORKERS, leader)
        workers.start(leader)
    workers.until(lambda: {leader, other} <= there(workers), "both are there")


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory(prefix="weir-lease-", dir="/tmp") as folder:
        workers = Workers(Path(folder))
        try:
            workers.start("control@one")
            workers.until(lambda: workers.acts("control@one"), "the first leads")
            workers.start("control@other")
            workers.until(lambda: "control@other" in there(workers), "the other stands by")
            for way, (number, elsewhere) in WAYS.items():
                took: list[float] = []
                for _ in range(times):
                    measure(workers, number, elsewhere, took)
                print(
                    f"{way:40} median {statistics.median(took):.1f} s, most {max(took):.1f} s, n = {times}", flush=True
                )
        finally:
            workers.close()


if __name__ == "__main__":
    main()
