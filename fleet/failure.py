"""Why an instance failed, in words an operator can act on, and what a failure does to its record. Pure."""

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

from fleet.models import Instance
from fleet.state import backoff_s

_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"larger than the available KV cache memory|No available memory for the cache blocks", re.I),
        "its KV cache is too small for the longest request: give it more memory, or lower max_model_len",
    ),
    (
        re.compile(
            r"not a valid model identifier|does not appear to have a file named|Repo id must|HFValidation", re.I
        ),
        "the model was not found: correct engine.model",
    ),
    (
        re.compile(r"Unsupported connector type|is not available for (nixl|mooncake)|requires? .{0,40}connector", re.I),
        "the KV connector does not go with this build: choose another engine.kv",
    ),
    (
        re.compile(r"Failed to (connect|setup).{0,40}(master|mooncake)|master.{0,30}(unreachable|refused)", re.I),
        "the Mooncake master was not reached",
    ),
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


_ERROR = re.compile(r"(^|\s)\w*(Error|Exception): ")
_GENERAL = re.compile(r"Engine core initialization failed")


def last_words(lines: Sequence[str]) -> str:
    """The known cause and the last line of the log: `its port is in use: OSError: [Errno 98] …`."""
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return "it wrote nothing to its log (killed?)"
    for line in reversed(said):
        for pattern, cause in _CAUSES:
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
