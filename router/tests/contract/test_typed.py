import pytest

from router.contract.values.fields import typed_flag, typed_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        (" -3 ", -3),
        ("1,234,567", 1_234_567),
        ("20\u202f000", 20_000),
        ("1_000.5", 1000.5),
        ("0.25", 0.25),
        ("3.0", 3.0),
        ("1e6", 1e6),
        ("1" * 19, 1.1111111111111112e18),
    ],
)
def test_numbers_are_read_as_people_type_them(text: str, value: float) -> None:
    assert typed_number(text) == value


@pytest.mark.parametrize("text", ["", "x", "NaN", "inf", "-Infinity", "1e999", "1,23", "1 2", "٣x", "0x10"])
def test_text_that_is_not_a_finite_number_stays_text_for_the_check_to_refuse(text: str) -> None:
    assert typed_number(text) == text


def test_a_switch_is_true_or_false_and_nothing_else() -> None:
    assert [typed_flag(text) for text in ("true", " false", "True", "")] == [True, False, "True", ""]
