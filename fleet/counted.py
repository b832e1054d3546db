"""Formats numbers in sentences: 1 instance, 2,000 instances, 51 %. Pure; static/js/format.js formats them in the same
way."""

import math
from collections.abc import Iterable

UNKNOWN = "–"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def significant(value: float | str | None, decimals: int = 3, limit: float | None = None) -> str:
    """Format with three significant digits, or with enough of them to distinguish the value from a limit beside it.
    `decimals` is the largest number of decimals.
    """
    if not isinstance(value, int | float):
        return UNKNOWN
    if value == 0:
        return "0"
    digits = decimals_apart(value, (limit,), min(max(0, 2 - math.floor(math.log10(abs(value)))), decimals))
    if digits == 0:
        return f"{value:,.0f}"
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")


def signed(value: float, size: str) -> str:
    """Format a difference, always with its sign; `size` formats its absolute value."""
    return f"+{size}" if value > 0 else f"−{size}" if value < 0 else size


def decimals_apart(value: float, limits: Iterable[float | None], least: int) -> int:
    """Return the number of decimals, `least` or up to three more, that distinguishes a value from the limits beside
    it: 1.252 is not 1.25."""
    others = [limit for limit in limits if limit is not None and limit != value]
    apart = (n for n in range(least, least + 4) if all(round(value, n) != round(limit, n) for limit in others))
    return next(apart, least)


def times(ratio: float, *limits: float | None) -> str:
    """Format a ratio, such as 1.04×, so that it differs from the limits beside it."""
    return f"{ratio:.{decimals_apart(ratio, limits, 2)}f}×"


def percent(share: float | None, digits: str = ".0f") -> str:
    if share is None:
        return UNKNOWN
    return f"{100 * share:{digits}} %".replace("-", "−")
