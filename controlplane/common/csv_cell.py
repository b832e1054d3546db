"""A cell of a CSV: people choose names, so none may begin like a formula. Pure."""

from datetime import datetime

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return f"{value:.6f}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
