"""Log files of instances in the node's data folder: for each instance, the current file and one rotated file."""

import contextlib
import datetime as dt
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from router.contract.values.secret_text import masked

TAIL = 200  # number of lines searched for the cause of a failure
ROTATE_BYTES = 10 * 1024 * 1024
LONGEST_LINE = 2000  # characters
_TAIL_BYTES = 64 * 1024
# Colours and cursor movements; titles and links, which end with BEL or ESC \; two-character sequences.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
# Characters that move the cursor or change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def folder() -> Path:
    return Path(settings.DATA_DIR) / "logs" / "instances"


def path_of(instance_name: str) -> Path:
    return folder() / f"{instance_name}.log"


def prepare(instance_name: str) -> Path:
    """Rotate a large log file (one old file is kept). Return the file to append to."""
    path = path_of(instance_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path


def trim(path: Path, limit: int = ROTATE_BYTES) -> None:
    """Copy the end of a log above `limit` bytes to .log.1 and truncate the log; its writers append, so they can
    continue. The log is truncated even if the copy fails, for example on a full disk, which the log itself may have
    filled.
    """
    aside = path.with_suffix(".log.1")
    with contextlib.suppress(OSError):
        if path.stat().st_size <= limit:
            return
        try:
            aside.write_bytes(_end_of(path, limit))
        except OSError:
            aside.unlink(missing_ok=True)
        os.truncate(path, 0)


def _end_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        return file.read(size)


def tail(path: Path, lines: int, start: int = 0) -> list[str]:
    """Return the last lines after byte `start`, with secrets masked and without control characters; [] if there is
    no such file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = max(start, end - _TAIL_BYTES)
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    read = masked(text).splitlines()
    if begin > start and len(read) > 1:
        read = read[1:]  # the first line is partial
    return [plain(line) for line in read[-lines:]]


def plain(line: str) -> str:
    """Clean a line written by an engine, for pages and terminals: no escape sequences, at most LONGEST_LINE
    characters."""
    shown = line if len(line) <= LONGEST_LINE else "…" + line[-LONGEST_LINE:]
    return _CONTROL.sub("\ufffd", _ESCAPE.sub("", shown))


_HEADER = "== weir: epoch "


def header(epoch: int, at: dt.datetime, command_line: str) -> str:
    """Return the first line of a start in the log."""
    return f"{_HEADER}{epoch} at {at:%Y-%m-%d %H:%M:%S} UTC: {command_line}\n"


def begin(instance_name: str, epoch: int, at: dt.datetime, argv: Sequence[str]) -> Path:
    """Write the first line of a start into the log. Return the file to append to."""
    path = prepare(instance_name)
    with path.open("a") as file:
        file.write(header(epoch, at, subprocess.list2cmdline(argv)))
    return path


def append(instance_name: str, lines: Sequence[str]) -> None:
    """Append output that was stored in another place, such as a Pod's."""
    with prepare(instance_name).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def of_latest_start(lines: list[str]) -> list[str]:
    """Return the lines of the latest start only."""
    starts = [index for index, line in enumerate(lines) if line.startswith(_HEADER)]
    return lines[starts[-1] + 1 :] if starts else lines
