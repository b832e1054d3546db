"""The `Retry-After` of every answer that says "not now", from routers and the control plane alike."""

import time
from email.utils import parsedate_to_datetime

NOT_NOW = frozenset({429, 502, 503})
DEFAULT_S = 5  # used if no better estimate is known
# OpenAI's clients wait no longer than this; Anthropic's wait as long as the header says
LONGEST_S = 120
LONGEST_DATE = 60  # characters


def retry_after(status: int, known_s: int | None = None) -> int | None:
    """Return the seconds for `Retry-After`; None for a status without one."""
    if known_s is not None:
        return max(1, known_s)
    return DEFAULT_S if status in NOT_NOW else None


def seconds(value: bytes) -> float:
    """Read a `Retry-After`: a number or a date; 0 for anything else."""
    text = value[:LONGEST_DATE].decode("latin-1")
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
