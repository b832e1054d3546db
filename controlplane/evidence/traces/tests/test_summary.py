"""The hits of an unbounded cache, and the resulting classes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.evidence.traces.summary import (
    HEAVY_NEW_TOKENS,
    BlockIntervals,
    classify,
    ideal_hits,
    summarise,
    trace_classes,
)
from controlplane.evidence.traces.types import BadTrace, TraceRequest
from router.policy.schema import document

TEMPLATES = Path(__file__).resolve().parents[4] / "templates"
runs = st.lists(
    st.builds(lambda start, length: range(start, start + length), st.integers(0, 30), st.integers(0, 8)), max_size=12
)


@given(runs, st.integers(0, 40), st.integers(0, 8))
def test_intervals_behave_like_a_set_of_ids(added, start, length):
    seen, plain = BlockIntervals(), set()
    for run in added:
        seen.add(run)
        plain.update(run)
    run = range(start, start + length)
    expected = 0
    while expected < len(run) and run[expected] in plain:
        expected += 1
    assert seen.matched(run) == expected


def test_the_page_names_the_threshold_of_a_trace_which_differs_from_that_of_policies():
    assert f"{HEAVY_NEW_TOKENS:,}" in (TEMPLATES / "traces/traces.html").read_text()
    assert document.default()["classes"]["heavy_new_tokens"] != HEAVY_NEW_TOKENS


def request(index: int, tokens: int, *blocks: range) -> TraceRequest:
    return TraceRequest(index, float(index), "", tokens, 10, blocks, 512, 0.0)


def test_a_hit_ends_at_the_first_missing_block():
    requests = [request(0, 1536, range(3)), request(1, 2048, range(2), range(9, 10), range(2, 3))]
    assert ideal_hits(requests) == [0, 1024]


def test_a_hit_is_never_longer_than_the_prompt():
    assert ideal_hits([request(0, 600, range(2)), request(1, 600, range(2))]) == [0, 600]


@pytest.mark.parametrize(
    ("tokens", "hit", "expected"),
    [
        (200_000, 120_000, "heavy"),
        (20_000, 0, "heavy"),
        (19_999, 0, "medium"),
        (19_999, 10_000, "warm"),
        (4_999, 0, "warm"),
        (5_000, 0, "medium"),
        (10_000, 5_000, "medium"),
    ],
)
def test_classes_are_reported_in_the_order_of_the_rules(tokens, hit, expected):
    assert classify(tokens, hit) == expected


def test_a_summary_counts_the_content_of_the_trace():
    summary = summarise([request(0, 30_720, range(60)), request(1, 30_720, range(60))])
    assert (summary.requests, summary.duration_s, summary.ideal_hit_share, summary.heavy_share) == (2, 1.0, 0.5, 0.5)
    assert trace_classes([request(0, 30_720, range(60)), request(1, 30_720, range(60))]) == {0: "heavy", 1: "warm"}


def test_blocks_with_too_many_gaps_between_their_numbers_are_refused(monkeypatch):
    monkeypatch.setattr("controlplane.evidence.traces.summary.MAX_INTERVALS", 3)
    dense = [request(0, 512, range(5)), request(1, 512, range(5, 9))]
    assert summarise(dense).requests == 2
    with pytest.raises(BadTrace, match="file, blocks: 'too many gaps between the numbers'"):
        summarise([request(0, 512, *(range(n, n + 1) for n in range(0, 8, 2)))])
