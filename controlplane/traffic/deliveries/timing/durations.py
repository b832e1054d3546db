"""Durations: as text, as a countdown, and as people enter them. Pure."""

import re

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
TYPED = re.compile(r"(\d+(?:\.\d+)?)\s*(min|sec|m|s|h|d)", re.IGNORECASE)
SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


def words(seconds: float) -> str:
    """Format a duration: 1 h 30 min, 45 s. `parse` reads it."""
    left, said = round(seconds), []
    for unit, size in UNITS:
        count, left = divmod(left, size)
        if count:
            said.append(f"{count} {unit}")
    return " ".join(said) or "0 s"


def countdown(seconds: float) -> str:
    """Format the remaining time: 4:10, 1:04:10. static/js/deliveries.js continues the countdown in the same format."""
    left = max(0, round(seconds))
    hours, minutes = divmod(left // 60, 60)
    return f"{hours}:{minutes:02}:{left % 60:02}" if hours else f"{minutes}:{left % 60:02}"


def parse(text: str) -> int:
    """Return the seconds in a text such as "1 h 30 min". The ValueError says what is allowed."""
    found = TYPED.findall(text)
    if not found or TYPED.sub("", text).strip():
        raise ValueError(f"{text[:40]!r} is not a time; write 10 min, 90 s, 1 h 30 min")
    return round(sum(float(number) * SECONDS[unit.lower()] for number, unit in found))
