"""Generated sessions have the shape of the public traces."""

from collections import Counter
from itertools import pairwise, takewhile
from statistics import fmean

import pytest

from controlplane.evidence.traces import documents, questions
from controlplane.evidence.traces.generated import BLOCK_TOKENS, MAX_INPUT_TOKENS, design, generate, session_turns
from controlplane.evidence.traces.questions import LOADS
from controlplane.evidence.traces.summary import ideal_hits, summarise, trace_classes


@pytest.fixture(scope="module")
def trace():
    return generate(seed=1)


def test_equal_seeds_give_equal_requests_and_different_seeds_different_ones(trace):
    assert generate(seed=1) == trace
    assert generate(seed=2) != trace


def test_lengths_sharing_and_the_share_of_heavy_requests_are_typical_of_agents(trace):
    summary = summarise(trace.requests)
    assert 300 < summary.mean_output_tokens < 400
    assert 12_000 < summary.mean_input_tokens < 122_000
    assert 0.8 < summary.ideal_hit_share < 0.97
    assert 0.03 < summary.heavy_share < 0.10


def test_sessions_of_the_design_have_the_published_shares():
    """The published shares are 36, 44 and 20 %; 22 % with more than 90 % cached and 1,300 new tokens; the others have
    17,700 new tokens.
    """
    whole = design(seed=1, duration_s=4_000)
    requests, hits = whole.requests, ideal_hits(whole.requests)
    counts = Counter(trace_classes(requests).values())
    shares = [100 * counts[name] / len(requests) for name in ("warm", "medium", "heavy")]
    assert shares == [pytest.approx(printed, abs=3) for printed in (36, 44, 20)]
    new = [each.input_tokens - hit for each, hit in zip(requests, hits, strict=True)]
    cached = [one for one, each in zip(new, requests, strict=True) if one < 0.1 * each.input_tokens]
    assert len(cached) / len(requests) == pytest.approx(0.22, abs=0.03)
    assert fmean(cached) == pytest.approx(1_300, rel=0.2)
    assert fmean(one for one, hit in zip(new, hits, strict=True) if not hit) == pytest.approx(17_700, rel=0.05)


def test_every_class_occurs_within_the_first_minute(trace):
    first = [r for r in trace.requests if r.at_s < 60]
    counts = Counter(trace_classes(first).values())
    assert min(counts[name] for name in ("warm", "medium", "heavy")) >= 2


def test_a_turn_continues_the_previous_prompt():
    for number in range(20):
        for before, after in pairwise(session_turns(1, number)):
            assert after.input_tokens > before.input_tokens + before.output_tokens
            ids = [b for run in before.blocks for b in run]
            whole = before.input_tokens // BLOCK_TOKENS
            assert [b for run in after.blocks for b in run][:whole] == ids[:whole]
            assert after.input_tokens <= MAX_INPUT_TOKENS


def test_sessions_share_only_their_system_prompts(trace):
    by_session = {r.session: list(r.block_ids()) for r in trace.requests}
    sessions = list(by_session.values())
    for one, other in pairwise(sessions):
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        assert len(set(one) & set(other)) == common


def test_requests_are_in_order_of_arrival_and_numbered(trace):
    assert [r.index for r in trace.requests] == list(range(len(trace.requests)))
    assert all(a.at_s <= b.at_s for a, b in pairwise(trace.requests))


def test_without_eviction_questions_about_documents_have_the_published_hits():
    """The published hit rates are 84 and 86 % with drives, after the first questions."""
    for load, published in ((LOADS["leval"], 0.84), (LOADS["loogle"], 0.86)):
        requests = questions.generate(load).requests
        late = [*zip(requests, ideal_hits(requests), strict=True)][len(requests) // 2 :]
        hits = sum(hit for _, hit in late) / sum(request.input_tokens for request, _ in late)
        assert hits == pytest.approx(published, abs=0.05)


def test_without_eviction_the_benchmarks_documents_have_nearly_the_published_hits():
    for name, total, published in (("leval-documents", 2_197, 0.84), ("loogle-documents", 6_448, 0.86)):
        requests = questions.generate(LOADS[name], requests=total).requests
        hits = sum(ideal_hits(requests)) / sum(request.input_tokens for request in requests)
        assert hits == pytest.approx(published, abs=0.07)


def test_documents_are_opened_again_by_others_and_by_their_readers_after_minutes():
    trace = documents.generate(1, duration_s=1_200)
    assert trace == documents.generate(1, duration_s=1_200) != documents.generate(2, duration_s=1_200)
    requests = trace.requests
    read = {request.blocks[0]: request.input_tokens for request in requests}
    assert sum(read.values()) > 10 * 410_000  # the KV cache of an H100 with an 8B model
    assert len({request.session for request in requests}) > 1.5 * len(read)
    back = sorted(request.think_s for request in requests if request.think_s)
    assert 100 < back[len(back) // 2] < 200
    assert all(request.input_tokens <= sum(map(len, request.blocks)) * request.block_tokens for request in requests)
    assert summarise(requests).ideal_hit_share > 0.6
