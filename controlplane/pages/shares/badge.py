"""The state of a pool in one line, as an image and as JSON. Pure."""

from dataclasses import dataclass
from html import escape
from typing import Literal

from controlplane.live.dashboard.frame.types import Frame
from router.contract.redis.staleness import FRAME_OLD_S

Color = Literal["brightgreen", "yellow", "red", "lightgrey"]  # colour names of shields.io
HEX: dict[Color, str] = {"brightgreen": "#2f7d32", "yellow": "#8a6100", "red": "#b3261e", "lightgrey": "#616161"}
SERVING = ("ready", "saturated")
CHARACTER = 6.6  # mean width of a character of 11 px
PADDING = 6


@dataclass(frozen=True, slots=True)
class Badge:
    pool: str
    message: str
    color: Color
    ready: int | None  # number of ready instances; None if unknown
    wanted: int | None
    at: float | None  # Unix s


def badge(frame: Frame | None, pool: str, now: float) -> Badge:
    """Return the badge of a pool in the frame; `unknown` without a fresh frame."""
    if frame is None or now - frame["at"] > FRAME_OLD_S:
        return Badge(pool, "unknown", "lightgrey", None, None, frame["at"] if frame is not None else None)
    wanted = frame["pools"][pool]["wanted"]
    columns = zip(frame["instances"]["pool"], frame["instances"]["status"], strict=True)
    ready = sum(name == pool and status in SERVING for name, status in columns)
    missed = sorted(name for name, miss in frame["slo"].get(pool, {}).items() if miss["listed"])
    if frame["pools"][pool].get("at_zero"):
        return Badge(pool, "asleep", "lightgrey", ready, wanted, frame["at"])
    message = f"{ready}/{wanted} ready"
    if missed:
        message += f", SLO missed: {', '.join(missed)}"
    color: Color = "red" if not ready else "yellow" if missed or ready < wanted else "brightgreen"
    return Badge(pool, message, color, ready, wanted, frame["at"])


def shields(made: Badge) -> dict[str, object]:
    """Return the JSON of an endpoint badge (https://shields.io/badges/endpoint-badge)."""
    return {"schemaVersion": 1, "label": made.pool, "message": made.message, "color": made.color}


def svg(made: Badge) -> str:
    label, message = escape(made.pool), escape(made.message)
    left = len(made.pool) * CHARACTER + 2 * PADDING
    right = len(made.message) * CHARACTER + 2 * PADDING
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img"'
        f' aria-label="{label}: {message}"><title>{label}: {message}</title>'
        f'<rect width="{left + right:.0f}" height="20" rx="3" fill="{HEX[made.color]}"/>'
        f'<path d="M3 0h{left - 3:.1f}v20h-{left - 3:.1f}a3 3 0 0 1-3-3v-14a3 3 0 0 1 3-3z" fill="#3c3c3c"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2:.1f}" y="14" textLength="{left - 2 * PADDING:.1f}">{label}</text>'
        f'<text x="{left + right / 2:.1f}" y="14" textLength="{right - 2 * PADDING:.1f}">{message}</text></g></svg>'
    )
