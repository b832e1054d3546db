"""The searched parameters, their bounds and their scales."""

import pytest

from controlplane.evidence.tuning.space import Dimension, Range, searchable, space_of, suggested
from router.contract.values.problem import InvalidInput
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_has_parameters_to_search_within_their_own_bounds(strategy):
    for each in space_of(strategy):
        parameter = PARAMETERS[each.path]
        assert not parameter.strategies or strategy in parameter.strategies
        if each.choices:
            assert each.choices == (parameter.choices or (False, True))
        else:
            assert (each.value_at(0.0), each.value_at(1.0)) == parameter.range
            assert isinstance(each.value_at(0.5), int if parameter.kind == "int" else float)


def test_wide_bounds_are_searched_on_a_logarithmic_scale_even_from_zero():
    heavy, warm, share = space_of(
        "adaptive_v1",
        [Range("classes.heavy_new_tokens"), Range("classes.warm_new_tokens"), Range("classes.warm_hit_share")],
    )
    assert (heavy.log, warm.log, share.log) == (True, True, False)
    assert heavy.value_at(0.5) == 16_000  # the geometric mean of 256 and 1,000,000
    assert warm.value_at(0.0) == 0
    assert 0 < warm.value_at(0.5) < 50_000
    assert share.value_at(0.5) == 0.5


@pytest.mark.parametrize("path", ["classes.heavy_new_tokens", "classes.warm_new_tokens", "affinity.break_ratio"])
def test_a_position_can_be_converted_back_from_its_value(path):
    (dimension,) = space_of("adaptive_v1", [Range(path)])
    for position in (0.0, 0.3, 1.0):
        assert dimension.position_of(dimension.value_at(position)) == pytest.approx(position, abs=0.01)
    assert dimension.position_of(-1.0) is None
    assert Dimension.of(dimension.as_dict()) == dimension


@pytest.mark.parametrize(
    ("asked", "path", "message"),
    [
        (Range("failure.breaker_errors"), "parameters.0.path", "cannot be tuned"),
        (Range("strategy.name"), "parameters.0.path", "cannot be tuned"),
        (Range("classes.heavy_new_tokens", 1), "parameters.0.low", "1 is below 256"),
        (Range("classes.heavy_new_tokens", None, 2e6), "parameters.0.high", "2000000.0 is above 1,000,000"),
        (Range("classes.heavy_new_tokens", 900, 800), "parameters.0.low", "is not below the upper bound"),
        (Range("flow.heavy", 1), "parameters.0.low", "has no bounds"),
        (Range("flow.heavy", log=True), "parameters.0.log", "has no bounds"),
        (Range("classes.heavy_new_tokens", 256, 512, 257), "parameters.0.step", "a whole number from 1 to 256"),
        (Range("classes.heavy_new_tokens", 256, 512, 1.5), "parameters.0.step", "a whole number from 1 to 256"),
        (Range("classes.warm_hit_share", 0, 0.5, 0), "parameters.0.step", "above 0, at most 0.5"),
        (Range("classes.heavy_new_tokens", 256, 512, 16, True), "parameters.0.step", "logarithmic scale"),
    ],
)
def test_parameters_that_cannot_be_searched_are_named(asked, path, message):
    with pytest.raises(InvalidInput) as raised:
        space_of("adaptive_v1", [asked])
    (problem,) = raised.value.problems
    assert problem.path == path
    assert message in problem.text


def test_a_parameter_may_be_given_only_once():
    with pytest.raises(InvalidInput) as raised:
        space_of("adaptive_v1", [Range("load.request_tokens"), Range("load.request_tokens")])
    assert [problem.message for problem in raised.value.problems] == ["is named twice"]


def test_a_step_gives_only_multiples_above_the_lower_bound():
    heavy, share = space_of(
        "adaptive_v1",
        [Range("classes.heavy_new_tokens", 10_000, 24_000, 5_000), Range("classes.warm_hit_share", 0, 1, 0.25)],
    )
    positions = [i / 20 for i in range(21)]
    assert {heavy.value_at(at) for at in positions} == {10_000, 15_000, 20_000}
    assert {share.value_at(at) for at in positions} == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert not heavy.log


def test_the_scale_can_be_chosen():
    path = "classes.heavy_new_tokens"
    near, wide = (
        space_of("adaptive_v1", [Range(path, 1_000, 4_000, log=True)]),
        space_of("adaptive_v1", [Range(path, log=False)]),
    )
    assert near[0].value_at(0.5) == 2_000
    assert wide[0].value_at(0.5) == 500_128


def test_suggested_bounds_surround_the_current_value_within_the_allowed_range():
    known = searchable("adaptive_v1")
    assert suggested(known["classes.heavy_new_tokens"], 20_000) == (5_000, 80_000)
    assert suggested(known["classes.heavy_new_tokens"], 300) == (256, 1_200)
    assert suggested(known["classes.warm_new_tokens"], 0)[0] == 0
    assert suggested(known["classes.warm_hit_share"], 0.5) == (0.0, 1.0)
