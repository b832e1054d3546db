"""Numbers in sentences: 1 instance, 2,000 instances, 51 %. Pure; static/js/format.js formats alike."""

import math

UNKNOWN = "–"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def significant(value: float | str | None, decimals: int = 3) -> str:
    """Format with three significant digits; `decimals`: the most behind the point."""
    if not isinstance(value, int | float):
        return UNKNOWN
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    if digits == 0:
        return f"{value:,.0f}"
    return f"{value:.{min(digits, decimals)}f}".rstrip("0").rstrip(".")


def signed(value: float, size: str) -> str:
    """Format a difference, always with its sign; `size`: its text without a sign."""
    return f"+{size}" if value > 0 else f"−{size}" if value < 0 else size


def times(ratio: float) -> str:
    """Format a ratio as 1.04×."""
    return f"{ratio:.2f}×"


def percent(share: float | None, digits: str = ".0f") -> str:
    if share is None:
        return UNKNOWN
    return f"{100 * share:{digits}} %".replace("-", "−")
