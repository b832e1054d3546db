"""The forest plot and the sentences above it."""

from xml.etree import ElementTree

import pytest

from controlplane.evidence.experiments.results.output import forest
from controlplane.evidence.experiments.results.output.effects import arm_title

BASE = {"arm": "new", "baseline": "old", "class": "all", "metric": "ttft_p50_ms", "n": 50, "reference": 200.0}


def row(difference, low, high, verdict, **changes):
    relative = None if difference is None else difference / 200
    return {
        **BASE,
        "difference": difference,
        "low": low,
        "high": high,
        "relative": relative,
        "verdict": verdict,
    } | changes


def results(*rows, expectations=()):
    return {"differences": rows, "arms": [{"name": "old"}, {"name": "new"}], "expectations": expectations}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row(-20.0, -30.0, -10.0, "better")], "new is better than old on TTFT p50 (−10 %)."),
        ([row(20.0, 10.0, 30.0, "worse")], "new is worse than old on TTFT p50 (+10 %)."),
        ([row(2.0, -3.0, 7.0, "not distinguishable")], "new and old are not distinguishable."),
        ([row(2.0, -3.0, 7.0, "too few requests")], "new and old have too few requests in common for a verdict."),
        (
            [
                row(-20.0, -30.0, -10.0, "better"),
                row(None, 1.0, None, "worse", metric="ttft_p90_ms"),
                row(1.0, -1.0, 3.0, "not distinguishable", metric="e2e_p50_ms"),
            ],
            "new is better than old on TTFT p50 (−10 %); worse on TTFT p90; not distinguishable on E2E p50.",
        ),
    ],
)
def test_a_sentence_agrees_with_the_intervals(rows, text):
    assert forest.sentences(results(*rows), "all", "old") == [text]


def test_an_arm_is_shown_by_the_title_of_its_strategy_or_by_the_name_that_a_person_gave():
    titles = {
        "round_robin": "Round robin",
        "12: lpwl": "12: Least prefill work left",
        "lpwl replicas=4": "Least prefill work left, replicas=4",
        "lpwl again": "lpwl again",
        "of: mine": "of: mine",
    }
    assert {name: arm_title(name) for name in titles} == titles


def test_the_plot_has_the_zero_line_the_margins_and_a_mark_for_each_interval():
    expected = {"class": "all", "metric": "ttft_p50_ms", "arm": "new", "relative_to": "old"}
    found = results(
        row(-20.0, -30.0, -10.0, "better"),
        row(40.0, 20.0, None, "worse", metric="ttft_p90_ms"),
        row(1.0, -9.0, 11.0, "not distinguishable", metric="e2e_p50_ms"),
        row(5.0, 4.0, 6.0, "worse", reference=0.0, metric="e2e_p90_ms"),
        expectations=[{**expected, "min_ratio": None, "max_ratio": 1.05}],
    )
    lines = forest.lines_of(found, "all", "old")
    assert [(line.label, line.verdict) for line in lines] == [
        ("TTFT p50, new", "better"),
        ("TTFT p90, new", "worse"),
        ("E2E p50, new", "not distinguishable"),
    ]
    assert lines[0].margins == (pytest.approx(0.05),)
    svg = ElementTree.fromstring(forest.svg(lines, 'Against "old" <b>', alone=True))
    kinds = [one.get("class") for one in svg.iter()]
    assert (kinds.count("forest-zero"), kinds.count("forest-margin")) == (1, 1)
    tags = [(one.tag.rpartition("}")[2], one.get("class")) for one in svg.iter()]
    for mark in (
        ("circle", "forest-better"),
        ("rect", "forest-worse"),
        ("path", "forest-open"),
        ("path", "forest-worse"),
    ):
        assert mark in tags
    assert svg.get("aria-label") == 'Against "old" <b>'


def test_on_a_phone_each_label_is_shown_above_its_interval():
    lines = forest.lines_of(results(row(-20.0, -30.0, -10.0, "better")), "all", "old")
    wide, phone = ElementTree.fromstring(f"<p>{forest.page_svg(lines, 'A title ' * 9)}</p>")
    assert [one.get("class") for one in (wide, phone)] == ["forest", "forest forest--phone"]
    at = {one.text: float(one.get("y")) for one in phone.iter() if one.tag.endswith("text")}
    assert "…" in next(iter(at))
    assert at["TTFT p50, new"] + forest.ROW / 2 < at["−10 % (−15 % to −5 %)"]


def test_without_differences_there_is_no_plot():
    assert forest.page_svg(forest.lines_of(results(), "all", "old"), "title") == ""
