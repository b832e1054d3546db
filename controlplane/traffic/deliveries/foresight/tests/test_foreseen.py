"""Sentences about the effects that each step of a plan can detect with the given traffic."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.traffic.deliveries.foresight.recent import ClassTraffic, RecentTraffic, traffic_of
from controlplane.traffic.deliveries.foresight.steps import (
    Outlook,
    Spreads,
    about,
    blocks_outlook,
    canary_outlook,
    foreseen,
    needed_classes,
)
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import Canary, Plan, Switchback
from router.contract.redis.receipt import Receipt

TWENTIETH = {"mode": "canary", "share": 0.05, "for_s": 600}
HALF = {"mode": "canary", "share": 0.5, "for_s": 600}
BACK = {"mode": "switchback", "block_s": 300, "washout_s": 30, "pairs": 6}
USUAL = {"warm": 0.9, "medium": 0.016, "heavy": 0.084}
TTFT = {"metric": "ttft", "worse": 0.1, "fine": 0.25}


def plan(*steps: dict[str, Any], pools: tuple[str, ...] = ("demo",), **more: Any) -> Plan:
    return parse_plan({"steps": [*steps, {"mode": "full"}], **more}, pools=pools)


def traffic(rate: float, shares: dict[str, float] | None = None, per_session: float = 3.0) -> RecentTraffic:
    """`rate` is in requests per second."""
    shares = USUAL if shares is None else shares
    classes = {
        (metric, name): ClassTraffic(rate * share, rate * share / per_session)
        for name, share in shares.items()
        for metric in ("ttft", "tpot")
    }
    return RecentTraffic(round(600 * rate), 600.0, 0.0, shares, classes)


def said(made: Plan, seen: RecentTraffic | None, known: Spreads | None = None) -> list[str]:
    return [each.text for each in foreseen(made, dict.fromkeys(made.pools, seen), known or {})]


def test_a_rare_class_is_deferred_to_the_next_step_that_judges_it() -> None:
    medium, heavy, *_ = said(plan(TWENTIETH, HALF), traffic(5))
    assert medium == (
        "step 1 · medium: about 2 of the 30 requests needed in 10 min; "
        "it is left to step 2, or give the step 2 h 10 min"
    )
    assert heavy.endswith("about 13 of the 30 requests needed in 10 min; it is left to step 2, or give the step 24 min")


def test_the_last_step_waits_for_a_rare_class_or_pauses() -> None:
    late, never = (said(plan(HALF), traffic(rate))[0] for rate in (3, 1))
    assert late == "step 1 · medium: about 14 of the 30 requests needed in 10 min; the step waits for it, about 21 min"
    assert never == (
        "step 1 · medium: about 5 of the 30 requests needed in 10 min; the step pauses after 30 min: "
        "give it 1 h 3 min (“Pause after”, max_s; hold.no_data_s of the plan as JSON), or take medium out of its guards"
    )


def test_few_long_sessions_give_too_few_cells() -> None:
    (text,) = said(plan(TWENTIETH, guards=[TTFT]), traffic(5, {"warm": 1.0}, per_session=200))[:1]
    assert (
        text
        == "step 1 · warm: about 1 of the 9 sessions needed in 10 min; the step pauses after 30 min: give it "
        + ("2 h (“Pause after”, max_s; hold.no_data_s of the plan as JSON), or take warm out of its guards")
    )


def test_a_class_below_one_percent_is_reported_once() -> None:
    found = [text for text in said(plan(TWENTIETH, HALF), traffic(500, {"warm": 0.996, "medium": 0.004})) if text]
    assert found == [
        "step 1 · medium: 0.4 % of the requests, and below 1 % it is not judged",
        "step 1 · heavy: 0 % of the requests, and below 1 % it is not judged",
    ]


def test_without_a_class_to_judge_the_step_pauses() -> None:
    guards = [{**TTFT, "classes": ["heavy"]}]
    (text,) = said(plan(TWENTIETH, guards=guards), traffic(500, {"warm": 1.0}))
    assert text.endswith("it is not judged; no other class is either, so the step pauses")


def test_blocks_need_enough_of_each_class() -> None:
    power, medium, *_ = said(plan(TWENTIETH, BACK), traffic(5))[2:]
    assert power.startswith("step 2 · switchback: TTFT and TPOT, 6 pairs: 94 % of equal candidates pass")
    assert medium == (
        "step 2 · medium: about 22 of the 30 requests that each of the 12 blocks needs; "
        "it is not judged: blocks of 10 min would do"
    )
    for rate, then in (
        (0.01, "blocks of 1 h 24 min would do"),
        (0.001, "no block is long enough, a canary may judge it"),
    ):
        warm = said(plan(TWENTIETH, BACK, guards=[{**TTFT, "classes": ["warm"]}]), traffic(rate))[-1]
        assert warm.endswith(f"the step pauses at its end: {then}")


def test_a_switchback_says_what_it_can_show_and_with_how_many_pairs() -> None:
    steps = (TWENTIETH, HALF, {**BACK, "pairs": 4})
    assert said(plan(*steps), None) == [
        "step 3 · switchback: TTFT and TPOT, 4 pairs: 58 % of equal candidates pass each comparison, harm fails from "
        "2.05× on; with 6 pairs 94 % and 1.45× (pairs that differ by 10 %, assumed)"
    ]
    known = said(plan(*steps), None, {("ttft", "warm"): 0.03, ("tpot", "warm"): 0.03})
    assert len(known) == 1
    assert known[0].endswith("(pairs that differ by 3 %, as in the latest switchback)")


def test_each_line_names_its_pool() -> None:
    lines = foreseen(plan(HALF, pools=("a", "b")), {"a": traffic(1), "b": None}, {})
    assert {each.pool for each in lines} == {"a"}
    assert lines[0].text.startswith("step 1 · a · ")


@given(
    rate=st.floats(0.001, 1000),
    more=st.floats(1, 50),
    shares=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1)),
    per_session=st.floats(1, 100),
)
def test_more_traffic_never_makes_a_class_less_judgeable(rate, more, shares, per_session) -> None:
    of = {name: share / sum(shares) for name, share in zip(("warm", "medium", "heavy"), shares, strict=True)}
    made = plan(TWENTIETH, HALF, BACK)
    for name in needed_classes(made):
        less, greater = (_outlooks(made, traffic(each, of, per_session), name) for each in (rate, rate * more))
        assert all(one <= other for one, other in zip(less, greater, strict=True))


def _outlooks(made: Plan, seen: RecentTraffic, name: str) -> list[Outlook]:
    return [
        canary_outlook(made, at, step, seen, name)
        if isinstance(step, Canary)
        else blocks_outlook(made, step, seen, name)
        for at, step in enumerate(made.steps)
        if isinstance(step, Canary | Switchback)
    ]


# Receipts


def receipt(number: int, at: float, **more: Any) -> Receipt:
    given = {"pool": "demo", "request_class": "warm", "ttft_ms": 90.0, "session": f"s{number % 10}"}
    return Receipt(request_id=f"q{number}", at=at, **{**given, **more})


def test_receipts_say_how_many_requests_and_sessions_a_class_has() -> None:
    found = traffic_of("demo", [receipt(n, 1000.0 + n) for n in range(101)])
    assert found is not None
    assert (found.requests, found.seconds, found.until, found.shares) == (101, 100.0, 1100.0, {"warm": 1.0})
    assert found.of("ttft", "warm").requests == pytest.approx(1.01)
    assert found.of("ttft", "warm").sessions == pytest.approx(0.1, rel=0.01)
    assert found.of("tpot", "warm") == ClassTraffic(0.0, 0.0)


def test_only_the_last_hour_counts_and_receipts_of_other_pools_determine_its_length() -> None:
    receipts = [receipt(1, 0.0), receipt(2, 5_000.0), receipt(3, 6_000.0, pool="other")]
    found = traffic_of("demo", receipts)
    assert found is not None
    assert (found.requests, found.seconds) == (1, 1000.0)


@pytest.mark.parametrize("receipts", [[], [receipt(1, 0.0), receipt(2, 5.0)], [receipt(1, 0.0, pool="other")]])
def test_without_requests_or_with_a_single_moment_nothing_is_known(receipts) -> None:
    assert traffic_of("demo", receipts) is None


@pytest.mark.parametrize(("seconds", "text"), [(7, "7 s"), (120, "2 min"), (121, "3 min"), (8_000, "2 h 20 min")])
def test_times_are_rounded_up(seconds: float, text: str) -> None:
    assert about(seconds) == text
