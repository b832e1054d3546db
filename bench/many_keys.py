"""Whether batches of many API keys end as if one that is stuck and one that is huge were not there.

    .venv/bin/python -m bench.many_keys [--keys 18] [--lines 60] [--huge 20000] [--rounds 3]

A real `manage.py up` with two simulated engines. In each round every key starts a batch at the same moment: first
alone, then while one key has used up its budget and another is in the middle of a huge batch. Prints for each round the
ends, in seconds from the common start, and how much later they are: the median, and the key that lost most. A first
round is not counted.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median

from controlplane.tests.real_up import RealUp, new_folder, running
from controlplane.traffic.batches.tests.test_real_turns import Key

# At the engines' own speed they are the bottleneck, not this machine.
FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: keys}
spec:
  pools:
    - {name: demo, model: llama-3.1-8b, kind: sim, replicas: 2, engine: {seed: 1}}
"""
STUCK_AFTER = 3  # requests of its budget
PATIENCE_S = 600
MAKE = """
from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.keys.services import KeyTerms, create_key
from controlplane.traffic.use.budgets import BudgetTerms, create_budget
rows = [create_key(f"key-{{number}}", KeyTerms(), SYSTEM) for number in range({keys})]
create_budget(rows[0][0], "requests", "day", BudgetTerms(limit={most}.0), SYSTEM)
print(*(secret for _, secret in rows))
"""


def ends(keys: list[Key], lines: int) -> list[float]:
    """Start a batch of each key at once. Returns seconds until each one's end by its own record."""
    with ThreadPoolExecutor(len(keys)) as pool:
        began = time.time()
        names = list(pool.map(lambda key: key.batch(lines), keys))
        left, took_s = dict(zip(names, keys, strict=True)), dict[str, float]()
        while left and time.time() - began < PATIENCE_S:
            for name in list(left):
                shown = left[name].shown(name)
                if shown and shown["status"] == "completed":
                    took_s[name] = time.time() - began
                    assert shown["request_counts"]["completed"] == lines, shown
                    del left[name]
            time.sleep(0.05)
    assert not left, f"{len(left)} batches did not end within {PATIENCE_S} s"
    return [took_s[name] for name in names]


def report(alone: list[float], beside: list[float]) -> str:
    lost = max(late / early for early, late in zip(alone, beside, strict=True))
    return (
        f"alone {min(alone):.1f}–{max(alone):.1f} s, beside {min(beside):.1f}–{max(beside):.1f} s; "
        f"median {median(beside) / median(alone):.3f} times as late, most {lost:.3f}"
    )


def beside(stuck: Key, huge: Key, others: list[Key], options: argparse.Namespace) -> list[float]:
    """Measure the ends while both others' batches are under way, and cancel those."""
    waiting, long = stuck.batch(10), huge.batch(options.huge)
    stuck.weir.until(lambda: (at := stuck.shown(waiting)) and at["waiting"], "the stuck batch", PATIENCE_S)
    stuck.weir.until(lambda: (at := huge.shown(long)) and at["request_counts"]["completed"], "the huge one", PATIENCE_S)
    found, at = ends(others, options.lines), huge.shown(long)
    assert at["status"] == "in_progress", at
    for key, name in ((stuck, waiting), (huge, long)):
        key.client.post(f"/v1/batches/{name}/cancel")
        key.weir.until(lambda key=key, name=name: key.shown(name)["status"] == "cancelled", "its end", PATIENCE_S)
    return found


def measure(weir: RealUp, options: argparse.Namespace, stack: ExitStack) -> None:
    stuck, huge, *others = (
        Key(weir, secret, stack) for secret in weir.shell(MAKE.format(keys=options.keys + 2, most=STUCK_AFTER))
    )
    ends(others, options.lines)  # until then the worker finds how many lines at a time the engines take
    for _ in range(options.rounds):
        print(report(ends(others, options.lines), beside(stuck, huge, others, options)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("keys", 18), ("lines", 60), ("huge", 20_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options, folder = parser.parse_args(), new_folder()
    (folder / "fleet.yaml").write_text(FLEET)
    with running("--no-demo", "--fleet", str(folder / "fleet.yaml"), folder=folder) as weir, ExitStack() as stack:
        weir.wait_for("Weir is up")
        measure(weir, options, stack)


if __name__ == "__main__":
    main()
