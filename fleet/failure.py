"""Why an instance failed, in words an operator can act on, and what a failure does to its record. Pure."""

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

from fleet.models import Instance
from fleet.state import backoff_s

_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"address already in use|errno 98|cannot assign requested address", re.I), "its port is in use"),
    (re.compile(r"CUDA out of memory|OutOfMemoryError", re.I), "the GPU has too little memory"),
    (re.compile(r"MemoryError|cannot allocate memory|errno 12\b", re.I), "the host has too little memory"),
    (
        re.compile(r"unrecognized arguments|invalid choice|expected one argument|invalid \w+ value", re.I),
        "an option is wrong",
    ),
    (re.compile(r"No module named|command not found", re.I), "a program is not installed"),
    (re.compile(r"No space left on device", re.I), "the disk is full"),
    (re.compile(r"Permission denied", re.I), "a permission is missing"),
)


def last_words(lines: Sequence[str]) -> str:
    """The known cause and the last line of the log: `its port is in use: OSError: [Errno 98] …`."""
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return "it wrote nothing to its log (killed?)"
    for line in reversed(said):
        for pattern, cause in _CAUSES:
            if pattern.search(line):
                return f"{cause}: {line[:300]}"
    return f"its log ends with: {said[-1][:300]}"


def failure_fields(instance: Instance, now: dt.datetime) -> dict[str, Any]:
    """What a failure changes in the record: one more in a row, and when to try again."""
    failures = instance.failures + 1
    return {"failures": failures, "next_start_at": now + dt.timedelta(seconds=backoff_s(failures))}
