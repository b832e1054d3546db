"""Documents that one engine has read and many others are asked about: pulled, or computed again by each."""

import random
from statistics import fmean

import pytest

from controlplane.traces.types import TraceRequest
from controlplane.twin.simulation.tests.builders import asks, fleet, play, policy
from controlplane.twin.simulation.types import TwinOutcome
from fleet.engine.engine_model import TransferModel
from fleet.engine.profiles import profile

KV = profile().sizes.kv_bytes_per_token
SHARED = 20_000  # tokens: 0.6 s to compute
SLOW = TransferModel(bytes_per_token=KV)  # 3 GB/s beside a step: 0.9 s to move
FAST = TransferModel(bytes_per_token=KV, idle_bytes_per_s=40e9, busy_bytes_per_s=12.4e9)


def documents(count: int, readers: int) -> list[TraceRequest]:
    """A session reads each of them, then others come, 4 each second."""
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


def played(link: TransferModel, gb_per_s: float, strategy: str = "least_requests") -> TwinOutcome:
    given = policy(strategy, flow__pull_gb_per_s=gb_per_s)
    return play(documents(6, 48), fleet=fleet(16, transfers=link, connector="nixl"), policy=given)


def mean_ttft_s(outcome: TwinOutcome) -> float:
    assert {one.outcome for one in outcome.requests} == {"ok"}
    return fmean(one.ttft_s or 0.0 for one in outcome.requests)


def test_pulls_halve_the_time_to_the_first_token_where_moving_is_cheaper_than_computing() -> None:
    apart, pulled = played(FAST, 0.0), played(FAST, 12.4)
    assert sum(one.transfers for one in apart.requests) == 0
    assert sum(one.transfers for one in pulled.requests) > 30
    assert mean_ttft_s(pulled) < 0.6 * mean_ttft_s(apart)


def test_nothing_is_pulled_over_a_link_that_takes_longer_than_computing() -> None:
    pulled = played(SLOW, 3.0)
    assert sum(one.transfers for one in pulled.requests) == 0
    assert mean_ttft_s(pulled) == pytest.approx(mean_ttft_s(played(SLOW, 0.0)))
