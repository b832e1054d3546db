"""Documents that are accepted, and the errors of those that are refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from router.contract.values.problem import InvalidInput
from router.policy.schema import document
from router.policy.strategies import STRATEGIES


class Watched(dict[str, Any]):
    """An iterable that counts the items read from it."""

    looked_at = 0

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        for item in super().items():
            self.looked_at += 1
            yield item


def faults(value: object) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        document.parse(value)
    return {problem.path: problem.text for problem in caught.value.problems}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_default_document_of_every_strategy_is_valid_and_complete(strategy: str) -> None:
    full = document.default(strategy)
    policy = document.parse(full)
    assert policy["strategy.name"] == strategy
    assert document.dump(policy) == full
    assert set(policy) == {parameter.path for parameter in document.parameters_of(strategy)}


def test_the_default_strategy_and_classes_are_those_that_the_findings_recommend() -> None:
    policy = document.parse(document.default())
    assert policy["strategy.name"] == "priced"
    assert policy["classes.heavy_new_tokens"] == 40_000
    assert policy["classes.warm_hit_share"] == 0.5
    assert policy["classes.warm_new_tokens"] == 5_000


def test_missing_keys_and_sections_get_their_defaults() -> None:
    assert document.parse({}) == document.parse(document.default())
    policy = document.parse({"strategy": {"name": "lpwl"}, "classes": {"heavy_new_tokens": 10_000}})
    assert policy["strategy.name"] == "lpwl"
    assert policy["classes.heavy_new_tokens"] == 10_000
    assert policy["failure.retries"] == 2


@pytest.mark.parametrize("value", [None, [], "{}", 1, True])
def test_a_document_must_be_an_object(value: object) -> None:
    assert faults(value) == {"": "the document must be a JSON object"}


@pytest.mark.parametrize("schema", [3, 0, True, 1.0, "1", None])
def test_another_schema_is_refused(schema: object) -> None:
    assert faults({"schema": schema, "flow": 5}) == {
        "schema": f"{json.dumps(schema)} is not a schema of policy documents; allowed: 1 to 2"
    }


def test_an_unknown_key_suggests_a_similar_one() -> None:
    assert faults({"classes": {"heavy_new_token": 1}}) == {
        "classes.heavy_new_token": "unknown parameter; did you mean heavy_new_tokens?"
    }
    assert faults({"clases": {}}) == {"clases": "unknown section; did you mean classes?"}


def test_an_unknown_key_without_a_similar_one_lists_all_keys() -> None:
    assert faults({"flow": {"zzz": 1}}) == {"flow.zzz": "unknown parameter; known are heavy, pull_gb_per_s"}


def test_a_parameter_of_another_strategy_names_that_strategy() -> None:
    assert faults({"strategy": {"name": "lpwl", "hit_weight": 1}}) == {
        "strategy.hit_weight": "is a parameter of the strategy cache_aware"
    }


def test_an_unknown_strategy_is_the_only_error_even_with_parameters() -> None:
    found = faults({"strategy": {"name": "lpwll", "hit_weight": 1}})
    assert list(found) == ["strategy.name"]
    assert "lpwl" in found["strategy.name"]


def test_a_section_that_is_not_an_object_is_reported_by_name() -> None:
    assert faults({"classes": 5, "strategy": "lpwl"}) == {
        "classes": "must be an object",
        "strategy": "must be an object",
    }


def test_all_faults_are_reported_at_once_with_path_value_and_range() -> None:
    with pytest.raises(InvalidInput) as caught:
        document.parse({"classes": {"warm_hit_share": 1.5}, "failure": {"retries": -1}})
    assert [(error.path, error.value) for error in caught.value.problems] == [
        ("classes.warm_hit_share", 1.5),
        ("failure.retries", -1),
    ]
    assert "failure.retries: -1 is below 0; allowed: a whole number from 0 to 10 retries" in str(caught.value)


@pytest.mark.parametrize(("warm", "heavy"), [(20_000, 20_000), (30_000, 20_000), (5_000, 4_000)])
def test_crossed_thresholds_are_reported_at_both_fields(warm: int, heavy: int) -> None:
    found = faults({"classes": {"warm_new_tokens": warm, "heavy_new_tokens": heavy}})
    assert found == {
        "classes.warm_new_tokens": f"must be below the heavy threshold ({heavy:,})",
        "classes.heavy_new_tokens": f"must be above the warm threshold ({warm:,})",
    }


def test_crossed_thresholds_are_not_reported_if_one_is_invalid_itself() -> None:
    assert list(faults({"classes": {"warm_new_tokens": 900_000, "heavy_new_tokens": -1}})) == [
        "classes.heavy_new_tokens"
    ]


def test_two_zero_weights_are_refused_at_both_paths() -> None:
    found = faults({"strategy": {"name": "cache_aware", "hit_weight": 0, "load_weight": 0}})
    assert set(found) == {"strategy.hit_weight", "strategy.load_weight"}
    assert document.parse({"strategy": {"name": "cache_aware", "hit_weight": 0}})["strategy.hit_weight"] == 0


def test_a_huge_document_is_not_read_to_its_end() -> None:
    huge = Watched({f"section-{number}": {} for number in range(10_000)})
    assert len(faults(huge)) == document.PROBLEMS_SHOWN
    assert huge.looked_at <= document.PROBLEMS_SHOWN + 1


def test_a_deeply_nested_document_is_refused_without_traversing_it() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"classes": deep}
    assert faults(deep) == {
        "classes.classes": "unknown parameter; known are heavy_new_tokens, warm_hit_share, warm_new_tokens"
    }


def test_a_long_key_is_shortened() -> None:
    with pytest.raises(InvalidInput) as caught:
        document.parse({"x" * 10_000: 1, "flow": {"y" * 10_000: 2}})
    assert all(len(error.path) <= 60 for error in caught.value.problems)


def test_the_hash_depends_on_the_content_and_not_on_the_order() -> None:
    assert document.sha256({"b": 1, "a": "ä"}) == document.sha256({"a": "ä", "b": 1})
    assert document.sha256({"a": 1}) != document.sha256({"a": 2})
    assert document.sha256({"a": "\ud800"})
    assert (
        document.sha256({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )  # printf {} | sha256sum


def test_overrides_are_applied_by_path_and_leave_the_original_unchanged() -> None:
    original = document.default()
    changed = document.apply_overrides(original, {"classes.heavy_new_tokens": 10_000, "failure.retries": 0})
    assert changed["classes"]["heavy_new_tokens"] == 10_000
    assert changed["failure"]["retries"] == 0
    assert original == document.default()


def test_an_override_of_the_strategy_drops_parameters_of_the_old_one() -> None:
    changed = document.apply_overrides(document.default(), {"strategy.name": "cache_aware", "strategy.hit_weight": 2})
    assert changed["strategy"] == {"name": "cache_aware", "hit_weight": 2}
    assert document.parse(changed)["strategy.name"] == "cache_aware"


def test_an_override_of_the_strategy_keeps_unknown_keys_for_parse_to_report() -> None:
    changed = document.apply_overrides({"strategy": {"typo": 1, "heavy_cache_loss_max": 5}}, {"strategy.name": "lpwl"})
    assert list(faults(changed)) == ["strategy.typo"]


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"clases.heavy_new_tokens": 1}, "clases"),
        ({"classes.heavy.tokens": 1}, "classes.heavy.tokens"),
        ({"classes": 7}, "classes"),
        ({"strategy.name": ["lpwl"]}, "strategy.name"),
        ({"": 1}, ""),
    ],
)
def test_an_invalid_override_is_left_for_parse_to_report(overrides: dict[str, object], path: str) -> None:
    assert path in faults(document.apply_overrides(document.default(), overrides))


def test_an_override_creates_a_section_that_is_missing_or_not_an_object() -> None:
    changed = document.apply_overrides({"classes": 5}, {"classes.warm_hit_share": 0.4, "failure.retries": 1})
    assert changed == {"classes": {"warm_hit_share": 0.4}, "failure": {"retries": 1}}


def test_parameters_of_an_unknown_strategy_name_the_known_strategies() -> None:
    with pytest.raises(InvalidInput, match="round_robin, random, least_requests"):
        document.parameters_of("nope")
    with pytest.raises(InvalidInput):
        document.default("nope")


def test_a_document_survives_a_round_trip_through_json() -> None:
    text = json.dumps(document.default("cache_aware"), allow_nan=False)
    assert document.parse(json.loads(text)) == document.parse(document.default("cache_aware"))
