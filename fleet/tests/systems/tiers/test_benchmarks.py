"""The documents of L-Eval and LooGLE have the number and the lengths that their authors published."""

from collections import Counter
from statistics import fmean

import pytest

from fleet.systems.tiers.benchmarks import (
    BENCHMARKS,
    LEVAL_DOCUMENTS,
    LOOGLE_DOCUMENTS,
    Benchmark,
    Subset,
    lengths_of,
    load_named,
)
from fleet.systems.tiers.load import LEVAL

EACH = pytest.mark.parametrize("load", BENCHMARKS.values(), ids=BENCHMARKS)


def test_the_benchmarks_have_the_published_numbers_of_documents_and_questions() -> None:
    documents = [sum(one.documents for one in load.subsets) for load in (LEVAL_DOCUMENTS, LOOGLE_DOCUMENTS)]
    assert documents == [508 - 99, 776]  # the 100 documents of GSM are one here
    assert [load.total for load in (LEVAL_DOCUMENTS, LOOGLE_DOCUMENTS)] == [2_197, 6_448]
    assert len(LEVAL_DOCUMENTS.subsets) == 20


@EACH
def test_a_pass_asks_every_question_once_and_the_next_pass_uses_new_documents(load: Benchmark) -> None:
    asked = load.asked(1, 2 * load.total)
    halves = [Counter(each.document for each in asked[at : at + load.total]) for at in (0, load.total)]
    assert [sum(half.values()) for half in halves] == [load.total, load.total]
    assert not halves[0].keys() & halves[1].keys()
    assert asked[: load.total] == load.asked(1, load.total) != load.asked(2, load.total)
    assert sum(one.documents for one in load.subsets) == len(halves[0])


@EACH
def test_documents_have_the_published_mean_and_maximum(load: Benchmark) -> None:
    for subset in load.subsets:
        lengths = lengths_of(subset)
        assert len(lengths) == subset.documents
        assert fmean(lengths) == pytest.approx(subset.mean, rel=0.01)
        assert max(lengths) == pytest.approx(subset.longest or subset.mean, rel=0.3)
        assert min(lengths) >= subset.shortest
    assert load.longest == max(max(lengths_of(subset)) for subset in load.subsets)


def test_a_maximum_that_no_log_normal_reaches_is_approached_as_far_as_possible() -> None:
    lengths = lengths_of(Subset(4, 4, 1_000, 1_000_000))
    assert fmean(lengths) == pytest.approx(1_000, rel=0.01)
    assert max(lengths) < 4_000


def test_a_named_benchmark_replaces_the_generated_load() -> None:
    assert load_named("", LEVAL) is LEVAL
    assert load_named("leval-documents", LEVAL) is LEVAL_DOCUMENTS
