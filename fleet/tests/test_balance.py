"""The balance of prefill and decode instances, as the autoscaler measures it."""

from typing import Any

import pytest

from fleet.plan.autoscale import EVERY_S, Advice, advise
from fleet.plan.balance import MeasuredInstance, decoders_for, described, measured, prefills_for, sides
from fleet.spec.sections import autoscale_of
from router.contract.redis.fleet_status import LoadPoint, SideLoad

NOW = 100_000.0


def side(instances: int, work: float) -> SideLoad:
    return SideLoad(instances=instances, work=work)


def points(prefill: SideLoad | None, decode: SideLoad | None, rate: float = 2.0) -> list[LoadPoint]:
    ready = sum(one.instances for one in (prefill, decode) if one)
    given: dict[str, Any] = {"ready": ready, "running": 9, "waiting": 0, "answers_per_s": rate}
    return [LoadPoint(at=NOW - back * EVERY_S, prefill=prefill, decode=decode, **given) for back in reversed(range(8))]


def advice(seen: list[LoadPoint], replicas: int = 2) -> Advice:
    return advise(seen, autoscale_of({"max": 8, "target_queue": 4}), replicas, 0.0, NOW)


def test_work_is_counted_in_instances() -> None:
    """Half of the prompts' time, and the larger of slots and blocks of each decoder."""
    busy = [
        MeasuredInstance("prefill", 3, 0.0, 4),
        MeasuredInstance("prefill", 0, 0.0, 4),
        MeasuredInstance("decode", 2, 0.1, 8),
        MeasuredInstance("decode", 2, 0.6, 8),
        MeasuredInstance("decode", 9, 0.2, None),
    ]
    assert sides(busy) == (side(2, 1.0), side(3, 0.25 + 0.6 + 0.2))
    assert sides(busy[2:]) is None


def test_four_prompts_and_two_answers_a_second_want_a_second_decoder() -> None:
    """The guide's example: one prefill instance is busy half of the time, the decoder always."""
    seen = points(side(1, 0.5), side(1, 1.0))
    now = measured(seen)
    assert now is not None
    assert (now.prefill_rate, now.decode_rate) == (4, 2)
    assert described(now) == (
        "a prefill instance can do 4 prompts a second, a decoder 2 answers: 1P2D is in balance, "
        "1P1D serves 2 a second at most"
    )
    found = advice(seen)
    assert found.replicas == 3
    assert found.why == "every decoder is full while prefill waits: 1P2D would be in balance"


def test_another_split_of_the_same_instances_is_proposed_in_words_only() -> None:
    seen = points(side(3, 1.0), side(1, 1.0))
    now = measured(seen)
    assert now is not None
    assert "prefill_instances: 2 of 4 would serve 4" in described(now)
    busy_prefill = points(side(1, 1.0), side(3, 1.0))
    assert advice(busy_prefill, 4).replicas == 4


def test_full_prefill_instances_before_decoders_that_wait_are_told_with_their_number() -> None:
    """It is advice in words: the document says which instances prefill."""
    (*_, last) = seen = points(side(1, 1.0), side(2, 1.0))
    assert (prefills_for(last), decoders_for(last)) == (2, 0)
    now = measured(seen)
    assert now is not None
    assert described(now, last).endswith("every prefill instance is full while decoders wait: 2P2D would be in balance")
    for prefill, decode in ((side(1, 0.9), side(2, 1.0)), (side(1, 1.0), side(2, 2.0)), (side(1, 1.0), None)):
        assert prefills_for(points(prefill, decode)[-1]) == 0


@pytest.mark.parametrize(
    ("prefill", "decode", "rate"),
    [(side(1, 0.0), side(1, 1.0), 2.0), (side(1, 0.5), side(1, 0.5), 0.0), (None, None, 2.0)],
)
def test_too_little_work_says_nothing(prefill: SideLoad | None, decode: SideLoad | None, rate: float) -> None:
    assert measured(points(prefill, decode, rate)) is None
    assert advice(points(prefill, decode, rate)).replicas == 2


def test_decoders_with_capacity_need_no_others() -> None:
    assert advice(points(side(1, 0.3), side(1, 0.9))).replicas == 2
