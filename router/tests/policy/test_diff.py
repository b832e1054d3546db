"""Describe the difference between two documents before one is published."""

from typing import Any

from hypothesis import given

from router.policy.schema import document
from router.policy.schema.diff import ParameterChange, diff
from router.policy.schema.parameters import PARAMETERS
from router.tests.policy.test_document_properties import JSON, valid


def changed(**overrides: object) -> dict[str, Any]:
    return document.apply_overrides(
        document.default(), {path.replace("__", "."): value for path, value in overrides.items()}
    )


def test_equal_documents_have_no_differences() -> None:
    assert diff(document.default(), document.default()) == ()


def test_a_lowered_threshold_is_described() -> None:
    assert diff(document.default(), changed(classes__heavy_new_tokens=10_000)) == (
        ParameterChange(
            path="classes.heavy_new_tokens",
            title="Heavy threshold",
            unit="tokens",
            old=40_000,
            new=10_000,
            direction="more requests count as heavy",
        ),
    )


def test_a_raised_threshold_is_described() -> None:
    (change,) = diff(document.default(), changed(classes__heavy_new_tokens=50_000))
    assert change.direction == "fewer requests count as heavy"


def test_changes_are_listed_in_the_order_of_the_page() -> None:
    changes = diff(document.default(), changed(failure__retries=0, classes__warm_hit_share=0.4, affinity__ttl_s=60))
    assert [change.path for change in changes] == ["classes.warm_hit_share", "affinity.ttl_s", "failure.retries"]


def test_a_missing_key_counts_as_its_default() -> None:
    assert diff({}, document.default()) == ()
    assert diff(document.default(), {"classes": {}}) == ()


def test_two_and_two_point_zero_are_the_same_value() -> None:
    assert diff(document.default(), changed(affinity__break_ratio=2)) == ()


def test_true_and_one_are_different_values() -> None:
    (change,) = diff(changed(failure__retries=1), changed(failure__retries=True))
    assert change.direction == "changed"


def test_a_change_of_strategy_adds_its_parameters_and_removes_the_old_ones() -> None:
    old = document.default("adaptive_v1")
    changes = {change.path: change for change in diff(old, changed(strategy__name="cache_aware"))}
    assert changes["strategy.name"].direction.startswith(
        "another strategy: the session's instance unless it is overloaded"
    )
    assert changes["strategy.heavy_cache_loss_max"].new is None
    assert (
        changes["strategy.heavy_cache_loss_max"].direction
        == "belonged to the old strategy; Cache aware does not use it"
    )
    assert changes["strategy.hit_weight"].old is None
    assert changes["strategy.hit_weight"].direction == "comes with the strategy Cache aware"


def test_a_changed_choice_has_no_direction() -> None:
    (change,) = diff(document.default(), changed(admission__refuse_status=503))
    assert (change.old, change.new, change.direction) == (429, 503, "changed")


def test_an_invalid_draft_is_still_compared() -> None:
    draft = {"strategy": {"name": "nope"}, "classes": {"typo": 1}, "failure": 5}
    told = {change.path: change.direction for change in diff(document.default(), draft)}
    assert told["strategy.name"] == "not a known strategy"
    assert told["classes.typo"] == "not a known parameter"
    assert told["failure"] == "not a known parameter"


@given(valid(), valid())
def test_a_diff_lists_exactly_the_parameters_that_differ(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = document.parse(old), document.parse(new)
    differs = {path for path in {**before, **after} if before.get(path) != after.get(path)}
    changes = diff(old, new)
    assert {change.path for change in changes} == differs
    assert all(change.direction and change.title == PARAMETERS[change.path].title for change in changes)


@given(JSON, JSON)
def test_any_two_objects_can_be_compared(old: Any, new: Any) -> None:
    diff({"strategy": old, "classes": new}, {"strategy": new, "x": old})
