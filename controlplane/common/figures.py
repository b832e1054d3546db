"""Numbers as text: three significant digits, a unit, "–" for unknown. static/js/format.js formats the same way."""

import re
from datetime import UTC, datetime
from typing import Any

from fleet.counted import UNKNOWN as UNKNOWN
from fleet.counted import percent as in_percent
from fleet.counted import significant as significant

NOUNS = re.compile(r"\w{2,}s")  # units with a singular form: tokens, but not ms


def words(name: str | None) -> str:
    """Write an identifier such as least_decode as words."""
    return (name or UNKNOWN).replace("_", " ")


def whole(value: float | str | None) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else UNKNOWN


def size(value: float | None, per: str = "") -> str:
    """Format a number of bytes; `per` is "/s" for a rate."""
    # Imported here, as processes that compute without Django format other numbers.
    from django.template.defaultfilters import filesizeformat

    return filesizeformat(value) + per if isinstance(value, int | float) else UNKNOWN


def limit(value: Any) -> str:
    """Format an option's default or limit: 1,048,576, 0.01, h100_sxm, true, A=1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:,.15g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def setting(value: Any, unit: str) -> str:
    """Format an option's value for people: off, 1 hit, 4 GPUs."""
    if isinstance(value, bool):
        return "on" if value else "off"
    noun = unit[:-1] if value == 1 and NOUNS.fullmatch(unit) else unit
    return f"{limit(value)} {noun}".strip()


def dollars(value: float) -> str:
    """Format a sum; one that rounds to nothing is not zero."""
    return "under $0.01" if 0 < value < 0.005 else f"${value:,.2f}"


def percent(share: float | str | None) -> str:
    return in_percent(share) if isinstance(share, int | float) else UNKNOWN


def ms(value: float | str | None, limit: float | None = None) -> str:
    """Format a time so that it differs from the limit beside it: 1.504 s, SLO 1.5 s."""
    if not isinstance(value, int | float):
        return UNKNOWN
    scale, unit = (1, "ms") if value < 1000 else (1000, "s")
    return f"{significant(value / scale, limit=None if limit is None else limit / scale)} {unit}"


def seconds(value: float | str | None) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if value < limit:
            return f"{significant(round(value, 1)) if value < 10 else round(value / size)} {unit}"
    return f"{round(value / 86_400)} d"


def moment(unix: float | str | None) -> datetime | None:
    """Return Unix seconds as an aware datetime, for components/time.html."""
    return datetime.fromtimestamp(unix, UTC) if isinstance(unix, int | float) else None
