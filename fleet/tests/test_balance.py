"""The balance of prefill and decode instances as the autoscaler measures it."""

from typing import Any

import pytest

from fleet.plan.autoscale import EVERY_S, Advice, advise, advise_sides
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


def test_work_is_measured_in_instances() -> None:
    """Prompts take half of the time; each decoder counts by the larger of its slots and blocks."""
    busy = [
        MeasuredInstance("prefill", 3, 0.0, 4, waiting=5),
        MeasuredInstance("prefill", 0, 0.0, 4),
        MeasuredInstance("decode", 2, 0.1, 8),
        MeasuredInstance("decode", 2, 0.6, 8),
        MeasuredInstance("decode", 9, 0.2, None),
    ]
    prefill, decode = sides(busy) or (side(0, 0), side(0, 0))
    assert (prefill.instances, prefill.work, decode.instances, decode.work) == (2, 1.0, 3, 0.25 + 0.6 + 0.2)
    assert (prefill.waiting, decode.waiting, prefill.kv, decode.kv) == (5, 0, 0, pytest.approx(0.3))
    assert sides(busy[2:]) is None


def test_four_prompts_and_two_answers_a_second_need_a_second_decoder() -> None:
    """In the guide's example one prefill instance is busy half of the time and the decoder always."""
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


def test_another_split_of_the_same_instances_is_only_proposed() -> None:
    seen = points(side(3, 1.0), side(1, 1.0))
    now = measured(seen)
    assert now is not None
    assert "prefill_instances: 2 of 4 would serve 4" in described(now)
    busy_prefill = points(side(1, 1.0), side(3, 1.0))
    assert advice(busy_prefill, 4).replicas == 4


def test_full_prefill_instances_in_front_of_idle_decoders_are_reported_with_their_number() -> None:
    """Without prefill_max the advice is only a text."""
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
def test_too_little_work_gives_no_advice(prefill: SideLoad | None, decode: SideLoad | None, rate: float) -> None:
    assert measured(points(prefill, decode, rate)) is None
    assert advice(points(prefill, decode, rate)).replicas == 2


def test_no_decoder_is_added_while_decoders_have_capacity() -> None:
    assert advice(points(side(1, 0.3), side(1, 0.9))).replicas == 2


SIDES = {"max": 6, "prefill_max": 3, "decode_max": 4, "target_queue": 4, "target_kv": 0.8}


def loaded(prefill: SideLoad | None, decode: SideLoad | None, ttft_ms: float = 50) -> list[LoadPoint]:
    """Return load points that span more than `down_after_s`."""
    at = (NOW - back * EVERY_S for back in reversed(range(70)))
    return [LoadPoint(at=each, ready=4, running=9, waiting=0, prefill=prefill, decode=decode,
                      ttft_p90_ms={"warm": ttft_ms}) for each in at]  # fmt: skip


def load(instances: int, work: float, waiting: float = 0, kv: float = 0.3) -> SideLoad:
    return SideLoad(instances=instances, work=work, waiting=waiting, kv=kv)


@pytest.mark.parametrize(
    ("prefill", "decode", "given", "to", "words"),
    [
        (load(2, 2), load(2, 1.2), {}, "3P2D", "prefill: every prefill instance is full while decoders wait"),
        (load(2, 0.9), load(2, 2), {}, "1P4D", "decode: every decoder is full while prefill waits: 2P4D"),
        (load(2, 2, 20), load(2, 1, 20), {"prefill_max": 9}, "4P2D", "prefill: 10.0 requests wait per instance"),
        (load(2, 0.1, 20), load(2, 1.9, 20), {}, "1P4D", "decode: 10.0 requests wait per instance"),
        (load(2, 1), load(2, 1.7, kv=0.9), {}, "1P3D", "decode: KV usage is 90 %"),
        (load(2, 1.9), load(2, 1.7), {"slo_ttft_p90_ms": {"warm": 40}}, "3P2D", "prefill: TTFT p90 of warm"),
        (load(2, 1.1), load(2, 1.9), {"slo_ttft_p90_ms": {"warm": 40}}, "2P3D", "decode: TTFT p90 of warm"),
        (load(2, 1.1), load(2, 1.9), {"slo_ttft_p90_ms": {"warm": 60}}, "2P2D", "the load fits the current size"),
        (load(2, 0.2), load(2, 0.2), {"prefill_min": 2, "decode_min": 2}, "2P2D", "little load; the minimum is 2"),
        (load(2, 0.2), load(2, 0.2), {"min": 4}, "1P3D", "decode: allowed: 3 to 4"),
        (load(2, 2, 90), load(2, 2, 90), {"max": 4}, "2P2D", "the maximum is 2"),
        (load(2, 2), None, {}, "2P2D", "not enough load data yet"),
    ],
)
def test_each_side_is_scaled_by_its_own_load(
    prefill: SideLoad, decode: SideLoad | None, given: dict[str, Any], to: str, words: str
) -> None:
    found = advise_sides(loaded(prefill, decode), autoscale_of({**SIDES, **given}), 2, 4, 0.0, NOW)
    assert found.prefills is not None
    assert f"{found.prefills}P{found.replicas - found.prefills}D" == to
    assert words in found.why


def test_both_sides_wait_for_one_cooldown() -> None:
    found = advise_sides(loaded(load(2, 2), load(2, 1)), autoscale_of(SIDES), 2, 4, NOW - 30, NOW)
    assert found == Advice(4, "cooldown of 60 s after the last step", 2)


def test_a_slot_that_is_free_between_two_requests_does_not_hide_a_full_side() -> None:
    seen = loaded(load(1, 1), load(2, 1))
    seen[-2] = loaded(load(1, 0.9), load(2, 1))[-2]
    assert advise_sides(seen, autoscale_of(SIDES), 1, 3, 0.0, NOW).prefills == 2
