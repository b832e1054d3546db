"""Decide which index to trust from how its predictions have matched."""

import random
import re
from pathlib import Path
from typing import get_args

import pytest

from router.prefix.accuracy import FEWEST, JUDGED, KEPT, Accuracy
from router.prefix.belief import Doubt, Reason, believe


def record(*pairs: tuple[int, int], times: int = FEWEST) -> Accuracy:
    """Record (predicted, actual) pairs of prompts of 1,000 tokens."""
    made = Accuracy()
    for _ in range(times):
        for predicted, actual in pairs:
            made.add(predicted, actual, 1_000)
    return made


GOOD, BAD, WORSE, NEW = record((500, 500)), record((500, 300)), record((900, 100)), Accuracy()


@pytest.mark.parametrize(
    ("trouble", "doubt", "exact", "approximate", "index", "why"),
    [
        ("", "", NEW, NEW, "exact", ""),
        ("", "", GOOD, GOOD, "exact", ""),
        (None, "from_start", NEW, NEW, "approximate", "no KV events are received"),
        ("it is late", "", GOOD, GOOD, "approximate", "it is late"),
        ("", "", BAD, GOOD, "approximate", "wrongly, by 20 %"),
        ("", "from_start", NEW, NEW, "approximate", "not received from the start"),
        ("", "from_start", GOOD, NEW, "approximate", "not received from the start"),
        ("", "from_start", GOOD, BAD, "exact", ""),
        ("", "layers", NEW, NEW, "approximate", "do not say which, and are not more accurate"),
        ("", "layers", GOOD, BAD, "exact", ""),
        ("", "from_start", GOOD, GOOD, "exact", ""),
        (None, "from_start", NEW, BAD, "approximate", "no KV events are received"),
        (None, "from_start", NEW, WORSE, "none", "the approximate index is wrong by 80 %"),
        ("it is late", "", GOOD, WORSE, "none", "it is late; the approximate index is wrong"),
    ],
)
def test_the_best_index_that_has_not_been_wrong_is_trusted(
    trouble: str | None, doubt: Doubt, exact: Accuracy, approximate: Accuracy, index: str, why: str
) -> None:
    belief = believe(trouble, doubt, exact, approximate)
    assert belief.index == index
    assert why in belief.why
    assert bool(belief.why) is bool(belief.reason) is (index != "exact")


def test_hits_that_no_answer_can_confirm_are_trusted_for_a_few_requests_only() -> None:
    assert believe("", "", NEW, NEW, FEWEST - 1).index == "exact"
    belief = believe("", "", NEW, NEW, FEWEST)
    assert belief.index == "approximate"
    assert "--enable-cache-report" in belief.why
    assert believe("it is late", "", NEW, NEW, FEWEST).why == "it is late"


def test_an_index_that_was_wrong_is_trusted_again_once_it_is_right() -> None:
    exact = record((900, 0))
    assert believe("", "", exact, NEW).index == "approximate"
    for _ in range(JUDGED):
        exact.add(400, 400, 1_000)
    assert believe("", "", exact, NEW).index == "exact"


def test_too_few_answers_give_no_judgement() -> None:
    assert record((900, 0), times=FEWEST - 1).recent_error() is None
    assert record((900, 0), times=FEWEST).recent_error() == 0.9


def test_the_sums_cover_the_last_thousand() -> None:
    draw, made = random.Random(1), Accuracy()
    rows = [(draw.randrange(1_000), draw.randrange(1_000), 1_000) for _ in range(KEPT * 2 + 7)]
    for row in rows:
        made.add(*row)
    last = rows[-KEPT:]
    assert made.n == KEPT
    assert made.predicted == sum(predicted for predicted, _, _ in last)
    assert made.actual == sum(actual for _, actual, _ in last)
    assert made.error == sum(abs(predicted - actual) for predicted, actual, _ in last)
    assert made.ratio == made.predicted / made.actual
    assert Accuracy().ratio is None


def test_the_page_of_the_index_lists_every_reason() -> None:
    page = (Path(__file__).parents[3] / "docs/index-knows.md").read_text().partition("## Reasons")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(get_args(Reason)) - {""}
