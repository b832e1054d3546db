"""Documents that one engine has computed and that many requests ask about: pulled by the other engines, or computed
again.
"""

import random
from statistics import fmean

import pytest

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, play, policy
from controlplane.evidence.twin.simulation.types import TwinOutcome
from fleet.engine.engine_model import TransferModel
from fleet.engine.profiles import profile

KV = profile().sizes.kv_bytes_per_token
SHARED = 20_000  # tokens: 0.6 s to compute
SLOW = TransferModel(bytes_per_token=KV)  # 3 GB/s beside a step: 0.9 s to move
FAST = TransferModel(bytes_per_token=KV, idle_bytes_per_s=40e9, busy_bytes_per_s=12.4e9)


def documents(count: int, readers: int) -> list[TraceRequest]:
    """Generate sessions that each open a document, followed by others, 4 per second."""
    draw, at_s = random.Random(1), count * 1.5
    made = [
        asks(n, n * 1.5, tokens=SHARED + 64, output=2, family=n + 1, shared=SHARED, session="first")
        for n in range(count)
    ]
    for n in range(count, count + readers):
        at_s += draw.expovariate(4.0)
        one = asks(n, at_s, tokens=SHARED + 640, output=40, family=draw.randrange(count) + 1, shared=SHARED)
        made.append(one)
    return made


def hot(rate: float) -> list[TraceRequest]:
    """One engine has computed a document, about which all later requests ask."""
    draw, at_s = random.Random(1), 4.0
    made = [asks(0, tokens=SHARED + 320, output=60, family=1, shared=SHARED)]
    for n in range(1, 160):
        at_s += draw.expovariate(rate)
        own, output = 64 * draw.randint(1, 10), draw.randint(20, 150)
        made.append(asks(n, at_s, tokens=SHARED + own, output=output, family=1, shared=SHARED))
    return made


def played(
    link: TransferModel, gb_per_s: float, strategy: str = "least_requests", trace: list[TraceRequest] | None = None
) -> TwinOutcome:
    given = policy(strategy, flow__pull_gb_per_s=gb_per_s)
    trace = trace or documents(6, 48)
    return play(trace, fleet=fleet(16, transfers=link, connector="nixl"), policy=given)


def mean_ttft_s(outcome: TwinOutcome) -> float:
    assert {one.outcome for one in outcome.requests} == {"ok"}
    return fmean(one.ttft_s or 0.0 for one in outcome.requests)


def test_pulls_halve_the_ttft_where_a_transfer_is_faster_than_computing() -> None:
    apart, pulled = played(FAST, 0.0), played(FAST, 12.4)
    assert sum(one.transfers for one in apart.requests) == 0
    assert sum(one.transfers for one in pulled.requests) > 30
    assert mean_ttft_s(pulled) < 0.5 * mean_ttft_s(apart)


@pytest.mark.parametrize("strategy", ["cache_aware", "lmetric"])
def test_requests_do_not_accumulate_on_an_instance_that_pulls(strategy: str) -> None:
    trace = hot(20.0)
    pulled = played(FAST, 12.4, strategy, trace)
    assert sum(one.transfers for one in pulled.requests) > 1
    assert mean_ttft_s(pulled) < 1.05 * mean_ttft_s(played(FAST, 0.0, strategy, trace))


def test_mostly_cached_prompts_do_not_make_computing_look_slow() -> None:
    trace = documents(16, 100)
    pulled = played(SLOW, 3.0, "lmetric", trace)
    assert mean_ttft_s(pulled) < 1.05 * mean_ttft_s(played(SLOW, 0.0, "lmetric", trace))


def test_nothing_is_pulled_over_a_link_that_is_slower_than_computing() -> None:
    pulled = played(SLOW, 3.0)
    assert sum(one.transfers for one in pulled.requests) == 0
    assert mean_ttft_s(pulled) == pytest.approx(mean_ttft_s(played(SLOW, 0.0)))
