"""Numbers on pages: three significant digits, a unit, "–" for unknown. static/js/format.js writes the same."""

import math
from datetime import UTC, datetime
from typing import Any

from django import template
from django.template.defaultfilters import filesizeformat

register = template.Library()
UNKNOWN = "–"


@register.filter
def significant(value: float | str | None) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    if digits == 0:
        return f"{value:,.0f}"
    return f"{value:.{min(digits, 3)}f}".rstrip("0").rstrip(".")


@register.filter
def whole(value: float | str | None) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else UNKNOWN


@register.filter
def size(value: float | None, per: str = "") -> str:
    """Bytes; `per`: "/s" of a rate."""
    return filesizeformat(value) + per if isinstance(value, int | float) else UNKNOWN


@register.filter
def limit(value: Any) -> str:
    """An option's default or limit as text: 1,048,576, 0.01, h100_sxm, true, A=1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:,.15g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


@register.filter
def percent(share: float | str | None) -> str:
    return f"{share * 100:.0f} %" if isinstance(share, int | float) else UNKNOWN


@register.filter
def ms(value: float | str | None) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    return f"{significant(value)} ms" if value < 1000 else f"{significant(value / 1000)} s"


@register.filter
def seconds(value: float | str | None) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if value < limit:
            return f"{significant(round(value, 1)) if value < 10 else round(value / size)} {unit}"
    return f"{round(value / 86_400)} d"


@register.filter
def moment(unix: float | str | None) -> datetime | None:
    """Unix seconds as an aware datetime, for components/time.html."""
    return datetime.fromtimestamp(unix, UTC) if isinstance(unix, int | float) else None
