import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.traffic.policies.drafts.editor import as_input, reading, shown, typed
from router.contract.values.fields import accept
from router.policy.schema.parameters import PARAMETERS

HEAVY = PARAMETERS["classes.heavy_new_tokens"]
SHARE = PARAMETERS["classes.warm_hit_share"]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (20_000, "tokens", "20,000 tokens"),
        (0.5, "share", "0.5"),
        (2.0, "s", "2 s"),
        (1_800, "s", "1,800 s"),
        (True, "", "yes"),
        (None, "tokens", "–"),
        ("lpwl", "", "lpwl"),
    ],
)
def test_values_are_formatted_as_text(value, unit, expected):
    assert shown(value, unit) == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (18_312.4, "tokens", "18,312 tokens"),
        (0.4567, "share", "45.7 %"),
        (12.345, "ms", "12.3 ms"),
        (65_000.0, "ms", "65 s"),
        (None, "tokens", "no data"),
        (0.0, "requests", "0 requests"),
    ],
)
def test_figures_have_three_digits_and_a_unit(value, unit, expected):
    assert reading(value, unit) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20000", 20_000),
        (" 20,000 ", 20_000),
        ("20 000", 20_000),
        ("1_000_000", 1_000_000),
        ("2e4", 20_000.0),
        ("-5", -5),
    ],
)
def test_numbers_are_read_as_people_paste_them(text, value):
    assert typed(HEAVY, text) == value


@pytest.mark.parametrize("text", ["", "abc", "1,00", "1.2.3", "0x10", "9" * 400, "nan", "inf"])
def test_text_that_is_not_a_number_is_left_to_the_documents_check(text):
    assert hasattr(accept(HEAVY, typed(HEAVY, text)), "message")


def test_choices_keep_their_type():
    assert typed(PARAMETERS["admission.refuse_status"], "503") == 503
    assert typed(PARAMETERS["strategy.name"], "lpwl") == "lpwl"
    assert typed(PARAMETERS["strategy.name"], "nonsense") == "nonsense"


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_unchanged_by_its_input(value):
    assert math.isclose(typed(SHARE, as_input(value)), value)


@given(st.integers(min_value=0, max_value=10**9))
def test_a_whole_number_is_unchanged_by_its_input(value):
    assert typed(HEAVY, as_input(value)) == value
