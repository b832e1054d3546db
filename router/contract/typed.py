"""What a person typed into a form, as a value. Pure."""

import math
import re

_SEPARATOR = "[, _\u202f\u00a0]"
_GROUPED = re.compile(rf"[+-]?\d{{1,3}}({_SEPARATOR}\d{{3}})+(\.\d+)?")
_WHOLE = re.compile(r"[+-]?\d{1,18}")


def typed_number(text: str) -> int | float | str:
    """A finite number, with or without separators of thousands; other text as it is, which the check then refuses."""
    text = text.strip()
    digits = re.sub(_SEPARATOR, "", text) if _GROUPED.fullmatch(text) else text
    if _WHOLE.fullmatch(digits):
        return int(digits)
    try:
        value = float(digits)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def typed_flag(text: str) -> bool | str:
    """`true` or `false`; other text as it is."""
    return {"true": True, "false": False}.get(text.strip(), text)
