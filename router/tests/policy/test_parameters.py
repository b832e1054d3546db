"""One definition of each parameter provides the form, the check, the documentation and the schema."""

import math

import pytest

from router.contract.values.fields import accept
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import COMMON, PARAMETERS, STRATEGY_NAME
from router.policy.strategies import STRATEGIES

# Metrics that the page can show beside a field; see controlplane/live/dashboard.
METRICS = {
    "class.new_tokens_p90",
    "class.hit_share_p50",
    "instance.kv_usage_max",
    "instance.running_max",
    "instance.waiting_max",
    "queue.waiting",
    "queue.wait_p99_s",
    "instance.prefill_ratio",
    "instance.prefill_tokens_max",
    "router.retries_per_min",
    "session.reuse_gap_p90_s",
    "ttft_p99_ms",
    "",
}
SHARE = Parameter(name="t.share", title="Share", default=0.5, range=(0, 0.8), help="More.")
COUNT = Parameter(name="t.count", title="Count", unit="tokens", default=5, range=(1, 20_000), help="More.")
FLAG = Parameter(name="t.flag", title="Flag", default=True, help="Turns it on.")
STATUS = Parameter(name="t.status", title="Status", default=429, choices=(429, 503), help="Another.")


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_is_defined_completely(parameter: Parameter) -> None:
    assert parameter.title
    assert parameter.help.endswith(".")
    assert "\n" not in parameter.help
    assert parameter.metric in METRICS
    assert set(parameter.strategies) <= set(STRATEGIES)
    assert accept(parameter, parameter.default) == parameter.default
    if parameter.kind in ("int", "float"):
        assert parameter.step
        assert -math.inf < parameter.range[0] < parameter.range[1] < math.inf
        assert parameter.unit


def test_the_description_says_whether_a_value_was_raised_or_lowered() -> None:
    for parameter in PARAMETERS.values():
        if parameter.kind in ("int", "float"):
            assert parameter.up not in ("higher", parameter.down), parameter.path


def test_a_strategy_owns_its_parameters_by_name() -> None:
    for strategy in STRATEGIES.values():
        for parameter in strategy.parameters:
            assert parameter.path.startswith("strategy.")
    assert all(not parameter.path.startswith("strategy.") for parameter in COMMON)
    assert STRATEGY_NAME.choices == tuple(STRATEGIES)


@pytest.mark.parametrize(
    ("parameter", "value", "taken"),
    [
        (COUNT, 1, 1),
        (COUNT, 20_000.0, 20_000),
        (SHARE, 0, 0.0),
        (SHARE, -0.0, 0.0),
        (SHARE, 0.8, 0.8),
        (FLAG, False, False),
        (STATUS, 503, 503),
    ],
)
def test_a_valid_value_gets_the_parameters_type(parameter: Parameter, value: object, taken: object) -> None:
    accepted = accept(parameter, value)
    assert accepted == taken
    assert type(accepted) is type(taken)
    assert math.copysign(1, accepted) == 1


@pytest.mark.parametrize(
    ("parameter", "value", "shown", "message"),
    [
        (COUNT, 0, 0, "0 is below 1; allowed: a whole number from 1 to 20,000 tokens"),
        (COUNT, 20_001, 20_001, "20001 is above 20,000; allowed: a whole number from 1 to 20,000 tokens"),
        (COUNT, 2.5, 2.5, "2.5 is not a whole number; allowed: a whole number from 1 to 20,000 tokens"),
        (COUNT, True, True, "true is not allowed; allowed: a whole number from 1 to 20,000 tokens"),
        (COUNT, "12", "12", '"12" is not allowed; allowed: a whole number from 1 to 20,000 tokens'),
        (COUNT, None, None, "null is not allowed; allowed: a whole number from 1 to 20,000 tokens"),
        (SHARE, 0.85, 0.85, "0.85 is above 0.8; allowed: a number from 0 to 0.8"),
        (SHARE, math.nan, "nan", "nan is not a number; allowed: a number from 0 to 0.8"),
        (SHARE, math.inf, "inf", "inf is above 0.8; allowed: a number from 0 to 0.8"),
        (SHARE, -math.inf, "-inf", "-inf is below 0; allowed: a number from 0 to 0.8"),
        (SHARE, [], "a list", '"a list" is not allowed; allowed: a number from 0 to 0.8'),
        (FLAG, 1, 1, "1 is not allowed; allowed: true or false"),
        (FLAG, {}, "an object", '"an object" is not allowed; allowed: true or false'),
        (STATUS, 418, 418, "418 is not allowed; allowed: one of 429, 503"),
        (STATUS, 429.0, 429.0, "429.0 is not allowed; allowed: one of 429, 503"),
        (
            STATUS,
            {1},
            "a value of another kind",
            '"a value of another kind" is not allowed; allowed: one of 429, 503',
        ),
    ],
)
def test_a_wrong_value_is_refused_with_the_value_and_the_range(
    parameter: Parameter, value: object, shown: object, message: str
) -> None:
    problem = accept(parameter, value)
    assert (problem.path, problem.value, problem.text) == (parameter.path, shown, message)


def test_a_huge_number_is_refused_without_printing_it() -> None:
    """Python refuses to print an int of more than 4300 digits."""
    rejected = accept(COUNT, 10**10_000)
    assert rejected.value == "a number beyond 53 bits"
    assert rejected.text.startswith("a number beyond 53 bits is above 20,000")
    assert accept(SHARE, -(10**400)).message.startswith("a number beyond 53 bits is below 0")


def test_a_long_text_is_shortened_and_a_lone_surrogate_replaced() -> None:
    assert accept(COUNT, "x" * 1_000).value == "x" * 59 + "…"
    assert accept(COUNT, "\ud800").value == "?"
