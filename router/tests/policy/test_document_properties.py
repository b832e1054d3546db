"""Any input is either accepted as a stable document or refused with InvalidInput."""

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.contract.values.fields import accept
from router.contract.values.problem import InvalidInput, Problem
from router.policy.schema import document
from router.policy.schema.json_schema import json_schema
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES
from router.tests.policy import checker

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
SECTIONS = sorted({path.partition(".")[0] for path in PARAMETERS})
WEIGHTS = {  # weights of each strategy that must not all be 0
    strategy.name: [
        parameter.path.partition(".")[2]
        for parameter in strategy.parameters
        if "weight" in parameter.path and parameter.kind == "float"
    ]
    for strategy in STRATEGIES.values()
}
KEYS = sorted({path.partition(".")[2] for path in PARAMETERS})


def values_of(parameter: Parameter) -> st.SearchStrategy[Any]:
    low, high = parameter.range
    if parameter.kind == "choice":
        return st.sampled_from(parameter.choices)
    if parameter.kind == "int":
        return st.integers(int(low), int(high))
    return st.floats(low, high) | st.integers(math.ceil(low), int(high))


@st.composite
def nearly_valid(draw: st.DrawFn) -> dict[str, Any]:
    """Draw documents with known sections and keys and values of every kind, some of them valid."""
    result: dict[str, Any] = {}
    for path in draw(st.lists(st.sampled_from(sorted(PARAMETERS)), max_size=8)):
        section, _, key = path.partition(".")
        result.setdefault(section, {})[key] = draw(values_of(PARAMETERS[path]) | JSON)
    if draw(st.booleans()):
        result["schema"] = draw(st.just(1) | JSON)
    return result


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Any]:
    strategy = draw(st.sampled_from(sorted(STRATEGIES)))
    result = document.default(strategy)
    for parameter in document.parameters_of(strategy)[1:]:
        section, _, key = parameter.path.partition(".")
        if draw(st.booleans()):
            result[section][key] = draw(values_of(parameter))
    classes, weights = result["classes"], result["strategy"]
    if classes["warm_new_tokens"] >= classes["heavy_new_tokens"]:
        classes["warm_new_tokens"] = classes["heavy_new_tokens"] - 1
    for one in WEIGHTS[strategy]:
        weights[one] = weights[one] or 1.0
    return result


def faults(value: object) -> list[Problem]:
    """Return the errors, empty if the document is accepted; anything but InvalidInput fails the test."""
    try:
        document.parse(value)
    except InvalidInput as refused:
        return refused.problems or [Problem("", None, "refused without a word")]
    return []


def check(value: object) -> None:
    found = faults(value)
    assert len(found) <= document.PROBLEMS_SHOWN
    assert all(problem.message for problem in found)
    json.dumps([[problem.path, problem.value, problem.text] for problem in found], allow_nan=False).encode()


@given(JSON)
def test_any_json_is_accepted_or_refused(value: Any) -> None:
    check(value)


@given(st.dictionaries(st.sampled_from([*SECTIONS, "schema"]), st.dictionaries(st.sampled_from(KEYS), JSON) | JSON))
def test_any_value_at_a_known_path_is_accepted_or_refused(value: Any) -> None:
    check(value)


@given(valid())
def test_a_valid_document_is_accepted_and_dumping_it_changes_nothing(value: dict[str, Any]) -> None:
    policy = document.parse(value)
    dumped = document.dump(policy)
    assert document.parse(dumped) == policy
    assert document.dump(document.parse(dumped)) == dumped
    assert document.sha256(dumped) == document.sha256(json.loads(json.dumps(dumped)))


@given(nearly_valid())
def test_the_schema_and_the_parser_agree_except_on_rules_between_fields(value: dict[str, Any]) -> None:
    if not faults(value):
        assert checker.valid(json_schema(), document.upgrade(value))
    elif checker.valid(json_schema(), value):
        with_defaults = document.values_of(value)
        classes = with_defaults["classes.warm_new_tokens"] >= with_defaults["classes.heavy_new_tokens"]
        owned = [[f"strategy.{name}" for name in names] for names in WEIGHTS.values() if names]
        assert classes or any(all(with_defaults.get(path) == 0 for path in paths) for paths in owned)


@given(JSON, st.sampled_from(sorted(PARAMETERS)))
def test_a_value_that_a_parameter_refuses_is_reported_at_its_path(value: Any, path: str) -> None:
    section, _, key = path.partition(".")
    owner = PARAMETERS[path].strategies[:1] if section == "strategy" and key != "name" else ()
    changed = document.apply_overrides(document.default(*owner), {path: value})
    if isinstance(accept(PARAMETERS[path], value), Problem):
        assert path in [problem.path for problem in faults(changed)]
