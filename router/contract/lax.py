"""Booleans and numbers as engines read them: their request models (pydantic) accept more than JSON's own. Pure."""

_TRUE = frozenset(("1", "on", "t", "true", "y", "yes"))


def is_true(value: object) -> bool:
    """Return whether an engine reads the value as true; it refuses what is neither true nor false."""
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, bool | int | float) and value == 1


def number(value: object) -> float:
    """Return the positive number that an engine reads from `12`, `12.0` or `"12"`; 0 for anything else."""
    if isinstance(value, str):
        text = value.strip().lstrip("0")  # engines read any number of zeros
        try:
            value = float(text or "0") if len(text) <= LONGEST else 0.0
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value < float("inf") else 0.0


LONGEST = 40  # characters of a number in text, without zeros in front
