"""Check that the batches of many API keys end on time although one key is stuck and another has a huge batch.

    .venv/bin/python -m bench.many_keys [--keys 18] [--lines 60] [--huge 3000] [--rounds 3]

A real `manage.py up` with two simulated engines. In each round every key starts a batch at the same moment: first
alone, then while one key has used up its budget and another is in the middle of a huge batch. Prints for each round
when the batches ended, in seconds from the common start, and how much later with the two: the median, and the key with
the largest delay. A first round is not counted.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any

from controlplane.tests.real_up import RealUp, new_folder, running
from controlplane.traffic.batches.tests.test_real_turns import Key

FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: keys}
spec:
  pools:
    - {name: demo, model: llama-3.1-8b, kind: sim, replicas: 2, engine: {seed: 1}}
"""
TOKENS = 300  # tokens of an answer: enough for the engines to be the bottleneck, not this machine's processors
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
ENDS = """
from controlplane.traffic.batches.models import Batch
for name, at in Batch.objects.filter(name__in={names}).values_list("name", "ended_at"):
    print(f"{{name}}={{at.timestamp()}}")
"""


def ends(keys: list[Key], lines: int) -> list[float]:
    """Start a batch of each key at once; return the seconds until each one's end, by the database."""
    with ThreadPoolExecutor(len(keys)) as pool:
        began = time.time()
        names = list(pool.map(lambda key: key.batch(lines, tokens=TOKENS), keys))
    # Ask once a second: asking more often takes CPU from the engines.
    for key, name in zip(keys, names, strict=True):
        shown = key.weir.until(lambda key=key, name=name: _ended(key, name), f"the end of {name}", PATIENCE_S)
        assert (shown["status"], shown["request_counts"]["completed"]) == ("completed", lines), shown
    at = dict(pair.split("=") for pair in keys[0].weir.shell(ENDS.format(names=names)))
    return [float(at[name]) - began for name in names]


def _ended(key: Key, name: str) -> Any:
    time.sleep(1)
    shown = key.shown(name)
    return shown if shown and shown["status"] in ("completed", "failed", "cancelled", "expired") else None


def report(alone: list[float], beside: list[float]) -> str:
    lost = max(late / early for early, late in zip(alone, beside, strict=True))
    return (
        f"alone {min(alone):.1f}–{max(alone):.1f} s, beside {min(beside):.1f}–{max(beside):.1f} s; "
        f"median {median(beside) / median(alone):.3f} times as late, most {lost:.3f}"
    )


def beside(stuck: Key, huge: Key, others: list[Key], options: argparse.Namespace) -> list[float]:
    """Measure the ends while batches of the two other keys are running, then cancel those batches."""
    waiting, long = stuck.batch(10), huge.batch(options.huge, tokens=TOKENS)
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
    for name, default in (("keys", 18), ("lines", 60), ("huge", 3_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options, folder = parser.parse_args(), new_folder()
    (folder / "fleet.yaml").write_text(FLEET)
    with running("--no-demo", "--fleet", str(folder / "fleet.yaml"), folder=folder) as weir, ExitStack() as stack:
        weir.wait_for("Weir is up")
        measure(weir, options, stack)


if __name__ == "__main__":
    main()
