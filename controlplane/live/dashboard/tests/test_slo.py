"""The SLO of a class: the current verdict, and the violations that need attention."""

import pytest

from controlplane.live.dashboard.frame.build import build_frame
from controlplane.live.dashboard.frame.slo import HOLD_S, held, missed, rows
from controlplane.live.dashboard.frame.types import Frame, SloMiss
from controlplane.live.dashboard.tests.test_frames import NOW, Inputs, fleet, instance, router, sample, window


@pytest.mark.parametrize(
    ("n", "p90", "is_missed"), [(40, 300.0, False), (40, 301.0, True), (19, 900.0, False), (0, None, False)]
)
def test_an_slo_is_missed_if_enough_requests_are_above_it(n: int, p90: float | None, is_missed: bool) -> None:
    assert missed({"ttft_n": n, "ttft": [None, p90, None]}, 300.0) is is_missed
    assert not missed(None, 300.0)


@pytest.mark.parametrize(
    ("n", "p90", "lost", "verdict"),
    [
        (40, 300.0, {}, "SLO met"),
        (40, 301.0, {}, "SLO missed"),
        (40, 300.0, {"errors": 60}, "SLO met"),  # the errors are under Needs attention
        (19, 900.0, {}, "too few requests"),
        (0, None, {}, "idle"),
        (0, None, {"refused": 19}, "too few requests"),
        (1, 300.0, {"refused": 39, "errors": 1}, "most are refused"),
        (19, 300.0, {"errors": 20, "client_errors": 6}, "most fail"),
        (0, None, {"errors": 30, "cancelled": 30}, "too few requests"),
    ],
)
def test_a_class_with_a_target_has_a_verdict(n: int, p90: float | None, lost: dict[str, int], verdict: str) -> None:
    limits = {"heavy": 9000.0, "warm": 300.0}
    none = {"errors": 0, "refused": 0, "client_errors": 0, "cancelled": 0}
    seen = {**none, **lost, "n": n + sum(lost.values()), "ttft_n": n, "ttft": [None, p90, None]}
    warm, heavy = rows(limits, {"warm": seen, "heavy": None})
    assert (warm.name, warm.limit, warm.p90, warm.n, warm.verdict) == ("warm", 300.0, p90, n, verdict)
    assert (heavy.name, heavy.n, heavy.verdict) == ("heavy", 0, "unknown")
    assert {one.verdict for one in rows(limits, None)} == {"unknown"}


HALF = HOLD_S / 2


@pytest.mark.parametrize(
    ("seen", "listed"),
    [
        ("", []),
        ("missed met missed met missed met missed", [False] * 7),
        ("missed missed missed missed", [False, False, True, True]),
        ("missed missed missed met met met met", [False, False, True, True, True, False, False]),
        ("missed missed missed met missed met missed met met", [False, False, *[True] * 6, True]),
    ],
)
def test_a_verdict_counts_once_it_has_lasted(seen: str, listed: list[bool]) -> None:
    """One frame per half of the hold time."""
    before: SloMiss | None = None
    shown = []
    for i, word in enumerate(seen.split()):
        before = held(i * HALF, word == "missed", before)
        shown.append(before["listed"])
    assert shown == listed


@pytest.mark.parametrize("listed", [True, False])
def test_a_gap_between_frames_is_not_evidence(listed: bool) -> None:
    before: SloMiss = {"at": 10.0, "listed": listed, "turned_at": 1.0}
    now = 10.0 + HOLD_S
    assert held(now, not listed, before) == {"at": now, "listed": listed, "turned_at": now}


def test_a_lasting_violation_needs_attention_until_it_has_been_over_for_as_long() -> None:
    def frame_at(at: float, ttft: float, previous: Frame | None) -> Frame:
        pool = {**fleet(instance("demo-0")), "slo": {"warm": 400.0}}
        policies = {"demo": {"policy": "default", "version": 3, "sha256": "", "published_at": NOW, "document": {}}}
        warm = {"r": router(at, warm=window(40, (ttft,) * 40))}
        samples = {"demo-0": sample(at)}
        inputs = Inputs(fleets={"demo": pool}, samples=samples, routers=warm, policies=policies, control_at=at)
        return build_frame(at, inputs, previous)

    first = frame_at(NOW, 600.0, None)
    middle = frame_at(NOW + HALF, 600.0, first)
    assert (first["attention"], middle["attention"]) == ([], [])
    frame = frame_at(NOW + HOLD_S, 600.0, middle)
    (item,) = frame["attention"]
    assert (item["rule"], item["severity"], item["subject"]) == ("slo_missed", 2, "demo · warm")
    assert (item["href"], item["pools"]) == ("/requests/?pool=demo&class=warm&slower_than_slo=true&sort=ttft", ["demo"])
    assert item["reason"] == "TTFT p90 590 ms over 60 s, SLO 400 ms (n = 40)"
    after, verdicts = [], []
    for i in (1, 2, 3):
        frame = frame_at(NOW + HOLD_S + i * HALF, 300.0, frame)
        after.append([item["reason"] for item in frame["attention"]])
        (row,) = rows({"warm": 400.0}, frame["classes"]["demo"], frame["slo"]["demo"])
        verdicts.append((row.verdict, row.status))
    held_on = ["TTFT p90 299 ms over 60 s, SLO 400 ms (n = 40): met again, for less than 30 s"]
    assert verdicts == [("SLO met again", "saturated"), ("SLO met again", "saturated"), ("SLO met", "ready")]
    assert after == [held_on, held_on, []]
