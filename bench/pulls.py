"""The value of pulls from a peer in the twin: `python -m bench.pulls [--strategies random cache_aware]`.

Sixteen engines, by strategy and trace, over a link of 3 GB/s beside a step and one of 12.4 GB/s: the mean TTFT with
`flow.pull_gb_per_s` over that without, and how many more requests got KV from another engine. Virtual time, one seed.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from statistics import fmean

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, play, policy
from fleet.engine.engine_model import TransferModel
from fleet.engine.profiles import profile
from router.policy.strategies import STRATEGIES

ENGINES = 16
DOCUMENT = 20_000  # tokens of a document
KV = profile().sizes.kv_bytes_per_token
LINKS = {  # GB/s beside a step
    3.0: TransferModel(bytes_per_token=KV),
    12.4: TransferModel(bytes_per_token=KV, idle_bytes_per_s=40e9, busy_bytes_per_s=12.4e9),
}


def _times(first_s: float, rate: float, count: int, draw: random.Random) -> Iterator[float]:
    at_s = first_s
    for _ in range(count):
        at_s += draw.expovariate(rate)
        yield at_s


def cold() -> list[TraceRequest]:
    """Return the requests: one engine has read 16 documents; then each other engine is asked about some of them."""
    draw = random.Random(1)
    read = {"tokens": DOCUMENT + 64, "output": 2, "shared": DOCUMENT, "session": "hot"}
    first = [asks(n, n * 1.5, family=n + 1, **read) for n in range(16)]
    pairs = [document for document in range(1, 17) for _ in range(15)]
    draw.shuffle(pairs)
    made = []
    for n, at_s in enumerate(_times(24.0, 4.0, 160, draw)):
        own, output = 64 * draw.randint(1, 10), draw.randint(20, 100)
        given = {"family": pairs[n], "shared": DOCUMENT, "session": f"s{n}"}
        made.append(asks(16 + n, at_s, tokens=DOCUMENT + own, output=output, **given))
    return first + made


def hot(rate: float) -> list[TraceRequest]:
    """Return requests of everybody about one document that one engine has read."""
    draw = random.Random(1)
    made = [asks(0, tokens=DOCUMENT + 320, output=60, family=1, shared=DOCUMENT)]
    for n, at_s in enumerate(_times(4.0, rate, 319, draw), 1):
        own, output = 64 * draw.randint(1, 10), draw.randint(20, 150)
        made.append(asks(n, at_s, tokens=DOCUMENT + own, output=output, family=1, shared=DOCUMENT))
    return made


def prefixes(rate: float) -> list[TraceRequest]:
    """Return requests with twenty shared prefixes of 6,400 tokens."""
    draw = random.Random(1)
    made = []
    for n, at_s in enumerate(_times(0.0, rate, 400, draw)):
        own, output = 64 * draw.randint(1, 30), draw.randint(20, 150)
        made.append(asks(n, at_s, tokens=6_400 + own, output=output, family=draw.randrange(20) + 1, shared=6_400))
    return made


TRACES = {
    "one hot, 15 cold": cold(),
    "hot, 8/s": hot(8.0),
    "hot, 20/s": hot(20.0),
    "prefixes, 8/s": prefixes(8.0),
    "prefixes, 20/s": prefixes(20.0),
}


def played(trace: Sequence[TraceRequest], strategy: str, link: TransferModel, gb_per_s: float) -> tuple[float, int]:
    """Return (mean TTFT in s, requests that got KV from another engine)."""
    given = policy(strategy, flow__pull_gb_per_s=gb_per_s)
    requests = play(trace, fleet=fleet(ENGINES, transfers=link, connector="nixl"), policy=given).requests
    return fmean(one.ttft_s or 0.0 for one in requests), sum(one.transfers > 0 for one in requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", choices=[*STRATEGIES], default=[*STRATEGIES])
    print(f"{'strategy':20} {'trace':17} {'TTFT, ms':>9} " + " ".join(f"{link:>7} GB/s" for link in LINKS))
    for strategy in parser.parse_args().strategies:
        for name, trace in TRACES.items():
            # Each link is played without pulls, too: some strategies move the KV of every prompt.
            apart = [played(trace, strategy, link, 0.0) for link in LINKS.values()]
            pulled = [played(trace, strategy, link, gb_per_s) for gb_per_s, link in LINKS.items()]
            ratios = " ".join(
                f"{ttft / before:6.3f} ({count - moved:3})"
                for (before, moved), (ttft, count) in zip(apart, pulled, strict=True)
            )
            print(f"{strategy:20} {name:17} {1000 * apart[0][0]:9.1f} {ratios}", flush=True)


if __name__ == "__main__":
    main()
