"""Why an instance failed, in words an operator can act on, and what a failure does to its record. Pure."""

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

from fleet.models import Instance
from fleet.plan.causes import CAUSES
from fleet.plan.state import backoff_s

_ERROR = re.compile(r"(^|\s)\w*(Error|Exception): ")
_GENERAL = re.compile(r"Engine core initialization failed")


def failure_cause(lines: Sequence[str]) -> str:
    """The known cause and the last line of the log: `its port is in use: OSError: [Errno 98] …`."""
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return "it wrote nothing to its log (killed?)"
    for line in reversed(said):
        for pattern, cause in CAUSES:
            if pattern.search(line):
                return f"{cause}: {line[:300]}"
    return f"its log ends with: {_telling(said)[:300]}"


def _telling(said: Sequence[str]) -> str:
    """The latest error that says what it is; Python's tracebacks and warnings go on below it."""
    return next((line for line in reversed(said) if _ERROR.search(line) and not _GENERAL.search(line)), said[-1])


def failure_fields(instance: Instance, now: dt.datetime) -> dict[str, Any]:
    """What a failure changes in the record: one more in a row, and when to try again."""
    failures = instance.failures + 1
    return {"failures": failures, "next_start_at": now + dt.timedelta(seconds=backoff_s(failures))}
