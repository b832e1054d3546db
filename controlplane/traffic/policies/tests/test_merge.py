from copy import deepcopy

import pytest

from controlplane.people.audit.differences import differences, flatten
from controlplane.traffic.policies.drafts.conflicts import disputes, merged, suggestion
from controlplane.traffic.policies.errors import Dispute
from router.policy.schema import document as documents

BASE = {"schema": 1, "strategy": {"name": "a", "x": 1}, "classes": {"warm": 1, "heavy": 9}}


def variant(**classes: int) -> dict:
    return {**BASE, "classes": {**BASE["classes"], **classes}}


def test_a_document_is_flattened_by_path_without_its_schema():
    assert flatten(BASE) == {"strategy.name": "a", "strategy.x": 1, "classes.warm": 1, "classes.heavy": 9}


def test_fields_that_only_one_side_has_are_differences():
    assert differences({"a": {"x": 1}}, {"a": {"y": 2}}) == {"a.x": (1, None), "a.y": (None, 2)}


def test_equal_values_are_not_disputed():
    assert disputes(BASE, variant(warm=2), variant(warm=2)) == ()


def test_a_dispute_contains_all_three_values():
    assert disputes(BASE, variant(warm=2), variant(warm=3)) == (Dispute("classes.warm", 1, 2, 3),)


def test_two_strategies_are_one_dispute():
    mine = {**BASE, "strategy": {"name": "b", "y": 2}}
    assert [d.path for d in disputes(BASE, BASE, mine)] == ["strategy.name"]


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "expected"), [(1, 1, 2, "mine"), (1, 2, 1, "theirs"), (1, 2, 3, "")]
)
def test_only_the_side_that_changed_is_suggested(base, theirs, mine, expected):
    assert suggestion(Dispute("p", base, theirs, mine)) == expected


LIVE = documents.default("adaptive_v1")
MINE = documents.apply_overrides(LIVE, {"classes.warm_new_tokens": 3, "classes.heavy_new_tokens": 7_000})
THEIRS = documents.apply_overrides(LIVE, {"classes.warm_new_tokens": 2, "classes.heavy_new_tokens": 8_000})


def test_merging_takes_only_the_named_fields_and_does_not_change_its_arguments():
    before = deepcopy(THEIRS)
    expected = documents.apply_overrides(THEIRS, {"classes.heavy_new_tokens": 7_000})
    assert merged(THEIRS, MINE, ["classes.heavy_new_tokens"]) == expected
    assert before == THEIRS


def test_taking_a_strategy_takes_its_parameters():
    mine = documents.default("lpwl")
    assert merged(THEIRS, mine, ["strategy.name"]) == {**THEIRS, "strategy": mine["strategy"]}
