"""The candidate decides again when the receipt is written: after the client's answer, and at a limited cost."""

import asyncio

import pytest

from router.policy import decide as decide_module
from router.policy import replay
from router.policy.schema import document
from router.policy.types import ParsedPolicy
from router.sync import redis_source
from router.telemetry.delivery_tallies import ShadowCounts
from router.telemetry.shadow import CHEAP, COST, LEAST_SAMPLE, WINDOW_S, ShadowDecider
from router.tests.deliveries import rollout, split, tallies
from router.tests.engine import hang
from router.tests.values import receipt_of


@pytest.fixture
def shadow_decides(monkeypatch):
    """Replace the candidate's shadow decisions; the replacement is called with the arguments of `decide`."""

    def replace(made):
        def chosen(request, instances, policy: ParsedPolicy, draw):
            own = made if policy["strategy.name"] == "lpwl" else decide_module.decide
            return own(request, instances, policy, draw)

        monkeypatch.setattr(replay, "decide", chosen)

    return replace


async def shadow_of(w):
    await w.router.source.reporter.deliveries.write()
    (value,) = tallies(w.published.client)
    return value["shadow"]


async def test_a_receipt_has_the_candidates_shadow_decision(world, monkeypatch):
    monkeypatch.setattr("router.telemetry.shadow.COST", 1.0)  # otherwise a busy machine halves the sample
    w = await world(hang, None)
    await split(w, 0.0, shadow=1.0)
    asking = asyncio.ensure_future(w.ask())  # demo-0 is busy: round robin ignores that, the candidate does not
    await w.until(lambda: w.engines[0].received)
    await w.ask()
    w.engines[0].behaviour = w.engines[1].behaviour
    receipt = await w.receipt(await w.ask())
    shadow = receipt["shadow"]
    assert (receipt["arm"], receipt["version"], receipt["instance"]) == ("control", 42, "demo-0")
    assert (shadow["version"], shadow["instance"], shadow["changed"]) == (44, "demo-1", True)
    assert (shadow["flow"], shadow["class"]) == ("colocated", "warm")
    again = replay.situation(receipt_of(receipt)).decide(document.parse(rollout(1, 0.0)["candidate"]["document"]))
    assert again.instance == shadow["instance"]
    counts = await shadow_of(w)  # before the first request ends, which may be counted after its answer
    w.engines[0].release.set()
    await asking
    assert (counts["n"], counts["changed"], counts["sample"]) == (2, 1, 1.0)
    assert (counts["to"], counts["live_to"]) == ({"demo-1": 2}, {"demo-1": 1, "demo-0": 1})
    assert counts["cpu_s"] > 0


async def test_requests_of_the_candidate_s_arm_are_not_decided_again(world):
    w = await world(None)
    await split(w, 1.0, shadow=1.0)
    receipt = await w.receipt(await w.ask())
    assert receipt["version"] == 44
    assert "shadow" not in receipt


async def test_nothing_is_decided_again_without_a_sampling_share(world, shadow_decides):
    w = await world(None)
    shadow_decides(lambda *given: pytest.fail("decided again"))
    await split(w, 0.0)
    assert "shadow" not in await w.receipt(await w.ask())


async def test_the_client_has_its_answer_before_the_candidate_decides(world, shadow_decides, monkeypatch):
    monkeypatch.setattr(redis_source, "FLUSH_S", 3600.0)
    w = await world(None)
    events = []

    def slow(*given):
        events.append("shadow")
        return decide_module.decide(*given)

    shadow_decides(slow)
    await split(w, 0.0, shadow=1.0)
    for _ in range(5):
        answer = await w.ask(stream=True)
        events.append("answer")
        await w.until(lambda: w.router.recorder.pending)
        await w.router.source.reporter.flush()
        await w.receipt(answer)
    assert events == ["answer", "shadow"] * 5


async def test_a_candidate_that_raises_in_shadow_is_counted_and_affects_no_request(world, shadow_decides):
    w = await world(None)

    def raises(*given):
        raise ZeroDivisionError("division by zero")

    shadow_decides(raises)
    await split(w, 0.0, shadow=1.0)
    answer = await w.ask()
    assert (answer.status_code, (await w.receipt(answer))["shadow"]) == (
        200,
        {"version": 44, "error": "ZeroDivisionError: division by zero"},
    )
    counts = await shadow_of(w)
    assert (counts["n"], counts["raised"], counts.get("changed", 0)) == (1, 1, 0)
    assert w.router.pools.get("demo").split.trouble(0.0) == ""


async def test_a_candidate_that_refuses_a_request_that_live_accepted_is_counted(world):
    w = await world(hang, strategy="round_robin")
    await split(w, 0.0, shadow=1.0, overrides={"admission.max_inflight_per_instance": 1})
    asking = [asyncio.ensure_future(w.ask()) for _ in range(2)]
    await w.until(lambda: len(w.engines[0].received) == 2)
    w.engines[0].release.set()
    receipts = [await w.receipt(answer) for answer in await asyncio.gather(*asking)]
    assert sorted("refused" in receipt["shadow"] for receipt in receipts) == [False, True]
    assert (await shadow_of(w))["refused_more"] == 1


async def test_receipts_of_an_earlier_generation_are_not_decided_again(world):
    w = await world(hang)
    await split(w, 0.0, shadow=1.0)
    asking = asyncio.ensure_future(w.ask())
    await w.until(lambda: w.engines[0].received)
    await split(w, 0.0, generation=2, shadow=1.0)
    w.engines[0].release.set()
    assert "shadow" not in await w.receipt(await asking)


# Costs


class Clocks:
    """CPU times that a test sets."""

    def __init__(self) -> None:
        self.own = self.process = 0.0


def adjusted(shadow: ShadowDecider, clocks: Clocks, now: float, share: float) -> float:
    """Return the sample after a window in which shadow decisions took this share of the process's CPU time."""
    clocks.process += 1.0
    shadow._spent_s = share
    shadow._adjust(now)
    return shadow.sample(rollout_of(1.0))


def rollout_of(shadow: float):
    from router.tests.pool.splits import split as made

    return made(shadow=shadow)


def test_sampling_halves_while_it_costs_too_much_and_recovers_when_it_is_cheap() -> None:
    clocks = Clocks()
    shadow = ShadowDecider(lambda: clocks.own, lambda: clocks.process)
    shadow._adjust(0.0)
    steps = [(COST + 0.01, 0.5), (COST + 0.01, 0.25), (COST - 0.01, 0.25), (CHEAP - 0.01, 0.5), (0.0, 1.0), (0.0, 1.0)]
    for number, (share, expected) in enumerate(steps, 1):
        assert adjusted(shadow, clocks, number * WINDOW_S, share) == expected
    assert shadow.sample(rollout_of(0.1)) == 0.1
    for number in range(100):
        adjusted(shadow, clocks, 100 + number * WINDOW_S, 1.0)
    assert shadow.sample(rollout_of(1.0)) == LEAST_SAMPLE


def test_within_a_window_nothing_is_adjusted() -> None:
    clocks = Clocks()
    shadow = ShadowDecider(lambda: clocks.own, lambda: clocks.process)
    shadow._adjust(0.0)
    assert adjusted(shadow, clocks, WINDOW_S / 2, 1.0) == 1.0


def test_the_tally_names_the_instances_with_the_most_requests(monkeypatch) -> None:
    monkeypatch.setattr("router.telemetry.delivery_tallies.INSTANCES_KEPT", 2)
    counts = ShadowCounts()
    counts.to = {"a": 5, "b": 4, "c": 3}
    counts.live_to = {"a": 1, "c": 9, "d": 8}
    value = counts.read(0.5)
    assert (value.to, value.live_to) == ({"a": 5, "b": 4, "c": 3}, {"a": 1, "c": 9, "d": 8})
    counts.to["e"] = 1
    assert "e" not in counts.read(0.5).to
