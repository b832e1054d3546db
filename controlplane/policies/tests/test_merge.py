import pytest

from controlplane.audit.differences import differences, flatten
from controlplane.policies.drafts.conflicts import disputes, merged, suggestion
from controlplane.policies.errors import Dispute

BASE = {"schema": 1, "strategy": {"name": "a", "x": 1}, "classes": {"warm": 1, "heavy": 9}}


def variant(**classes: int) -> dict:
    return {**BASE, "classes": {**BASE["classes"], **classes}}


def test_a_document_is_flattened_by_path_without_its_schema():
    assert flatten(BASE) == {"strategy.name": "a", "strategy.x": 1, "classes.warm": 1, "classes.heavy": 9}


def test_fields_that_only_one_side_has_are_differences():
    assert differences({"a": {"x": 1}}, {"a": {"y": 2}}) == {"a.x": (1, None), "a.y": (None, 2)}


def test_what_both_say_alike_is_no_dispute():
    assert disputes(BASE, variant(warm=2), variant(warm=2)) == ()


def test_a_dispute_holds_all_three_values():
    assert disputes(BASE, variant(warm=2), variant(warm=3)) == (Dispute("classes.warm", 1, 2, 3),)


def test_two_routes_are_one_dispute():
    mine = {**BASE, "strategy": {"name": "b", "y": 2}}
    assert [d.path for d in disputes(BASE, BASE, mine)] == ["strategy.name"]


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "expected"), [(1, 1, 2, "mine"), (1, 2, 1, "theirs"), (1, 2, 3, "")]
)
def test_only_the_side_that_changed_is_suggested(base, theirs, mine, expected):
    assert suggestion(Dispute("p", base, theirs, mine)) == expected


def test_merging_takes_only_the_named_fields():
    assert merged(variant(warm=2, heavy=8), variant(warm=3, heavy=7), ["classes.heavy"]) == variant(warm=2, heavy=7)


def test_taking_a_route_takes_its_parameters():
    mine = {**BASE, "strategy": {"name": "b", "y": 2}}
    assert merged(variant(warm=5), mine, ["strategy.name"])["strategy"] == {"name": "b", "y": 2}


def test_merging_leaves_its_arguments_alone():
    theirs = variant(warm=2)
    merged(theirs, variant(warm=3), ["classes.warm"])
    assert theirs == variant(warm=2)
