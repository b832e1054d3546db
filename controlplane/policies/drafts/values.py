"""Values of parameters as people read and type them. Pure."""

import re
from typing import Any

from router.policy.schema.parameter import Parameter

SHARES = ("share",)
BARE = ("share", "ratio")  # what is written beside a value that has no unit
GROUPED = re.compile(r"[+-]?\d{1,3}([, \u202f\u00a0_]\d{3})+(\.\d+)?")
WHOLE = re.compile(r"[+-]?\d{1,18}")


def shown(value: Any, unit: str = "") -> str:
    """20,000 tokens, 0.5, yes; a dash for what is not there."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        text = f"{value:,.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value:,}"
        return f"{text} {unit}" if unit and unit not in BARE else text
    return str(value)


def figure(value: float | None, unit: str) -> str:
    """A live figure with three significant digits."""
    if value is None:
        return "no data"
    if unit in SHARES:
        return f"{value * 100:.3g} %"
    if unit == "ms" and value >= 1_000:
        return f"{value / 1000:.3g} s"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}"


def typed(parameter: Parameter, text: str) -> Any:
    """What a person typed as a value of the document. What is not a number stays text: the document's own check
    refuses it in its own words."""
    text = text.strip()
    if parameter.kind == "bool":
        return {"true": True, "false": False}.get(text, text)
    if parameter.kind == "choice":
        return next((choice for choice in parameter.choices if str(choice) == text), text)
    if GROUPED.fullmatch(text):
        text = re.sub(r"[, \u202f\u00a0_]", "", text)
    if WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def as_input(value: Any) -> str:
    """The value as it stands in an input: without thousands separators."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return "" if value is None else str(value)
