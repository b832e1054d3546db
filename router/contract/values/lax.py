"""Booleans and numbers as engines read them: the engines' request models (pydantic) accept more
than JSON does. Pure.
"""

import math
import re

_TRUE = frozenset(("1", "on", "t", "true", "y", "yes"))


def is_true(value: object) -> bool:
    """Return whether an engine reads the value as true; the engine refuses a value that is neither true nor false."""
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, bool | int | float) and value == 1


def number(value: object) -> float:
    """Return the positive number that an engine reads from `12`, `12.0`, `"+0_12.00"` or true. Return 0 for null and
    for numbers not above 0. Return infinity for values that no engine accepts: an unreadable limit counts as the
    largest."""
    if isinstance(value, str):
        value = _of_text(value)
    if value is None:
        return 0.0
    if not isinstance(value, int | float):
        return math.inf
    return float(value) if value > 0 else 0.0


def _of_text(text: str) -> float:
    text = text.strip()
    digits, point, zeros = text[text.startswith(("+", "-")) :].partition(".")
    if digits.startswith("0") and digits[-1] != "_":
        digits = digits.lstrip("0_") or "0"  # engines accept any number of leading zeros
    if len(digits) > LONGEST or bool(point) != bool(zeros) or zeros.strip("0") or not _DIGITS.fullmatch(digits):
        return math.inf
    return -float(digits) if text.startswith("-") else float(digits)


LONGEST = 40  # characters of a number in text, without leading zeros
_DIGITS = re.compile("[0-9]+(?:_[0-9]+)*")
