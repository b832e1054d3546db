"""The cause of a failure, with advice for the operator, and its effect on the record. Pure."""

import datetime as dt
import re
from collections.abc import Sequence

from fleet.models import Changes, Instance
from fleet.plan.causes import CAUSES
from fleet.plan.state import backoff_s

_ERROR = re.compile(r"(^|\s)\w*(Error|Exception): ")
_GENERAL = re.compile(r"Engine core initialization failed")


def failure_cause(lines: Sequence[str]) -> str:
    """Return the known cause and the last line of the log: `its port is in use: OSError: [Errno 98] …`."""
    written = [line.strip() for line in lines if line.strip()]
    if not written:
        return "it wrote nothing to its log"
    for line in reversed(written):
        for pattern, cause in CAUSES:
            if pattern.search(line):
                return f"{cause}: {line[:300]}"
    return f"its log ends with: {_latest_error(written)[:300]}"


def _latest_error(written: Sequence[str]) -> str:
    """Return the latest specific error; tracebacks and warnings may follow it."""
    return next((line for line in reversed(written) if _ERROR.search(line) and not _GENERAL.search(line)), written[-1])


def failure_fields(instance: Instance, now: dt.datetime) -> Changes:
    """Return updates of the record: the failure count and the end of the back-off."""
    failures = instance.failures + 1
    return {"failures": failures, "next_start_at": now + dt.timedelta(seconds=backoff_s(failures))}
