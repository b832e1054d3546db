"""Numbers are parsed as pydantic parses them; engines use pydantic to parse their requests."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from router.contract.values.lax import LONGEST, number

INT = TypeAdapter(int)
PIECES = ("0", "0", "_", "1", "7", "1000", ".", ".0", "+", "-", " ", "\t", "e3", "x", "\u0663", "0" * 50, "9" * 50)
SPELLINGS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(SPELLINGS | st.text(max_size=9) | st.integers() | st.booleans() | st.floats(allow_nan=False))
@example("0_1000")
@example("+0_4_096." + "0" * 50)
@example("0" * 5_000 + "8")
@example("9" * 5_000)
@example("0-5")
@example("0_")
@example("1__0")
@example("5.")
def test_a_number_is_read_as_pydantic_reads_it_or_as_the_largest(value: object) -> None:
    found = number(value)
    try:
        read = INT.validate_python(value)
    except ValidationError:
        if isinstance(value, str):
            assert found == math.inf or value.strip("\x1c\x1d\x1e\x1f") != value
        return
    if read <= 0:
        assert found in (0, math.inf)
    else:
        assert found == (float(read) if read < 10**LONGEST else math.inf)


@pytest.mark.parametrize(
    ("value", "read"), [(None, 0), ([], math.inf), ({}, math.inf), (True, 1), (False, 0), (2.5, 2.5)]
)
def test_null_is_not_a_number_and_an_unreadable_value_counts_as_the_largest(value: object, read: float) -> None:
    assert number(value) == read
