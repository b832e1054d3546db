"""The output of each instance: one file, and the one before it, in the data folder of its node."""

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from router.contract.secret_text import masked

TAIL = 200  # lines searched for the cause of a failure
ROTATE_BYTES = 10 * 1024 * 1024
_TAIL_BYTES = 64 * 1024


def folder() -> Path:
    return Path(settings.DATA_DIR) / "logs" / "instances"


def path_of(instance_name: str) -> Path:
    return folder() / f"{instance_name}.log"


def prepare(instance_name: str) -> Path:
    """The file to append to, after rotation when large (one old file is kept)."""
    path = path_of(instance_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path


def tail(path: Path, lines: int, start: int = 0) -> list[str]:
    """The last lines after byte `start`, secrets masked; [] when there is no such file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = max(start, end - _TAIL_BYTES)
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    found = masked(text).splitlines()
    if begin > start:
        found = found[1:]  # a partial line
    return found[-lines:]


_HEADER = "== weir: epoch "


def header(epoch: int, at: dt.datetime, command_line: str) -> str:
    """First line of each start in the log."""
    return f"{_HEADER}{epoch} at {at:%Y-%m-%d %H:%M:%S} UTC: {command_line}\n"


def begin(instance_name: str, epoch: int, at: dt.datetime, command_line: str) -> Path:
    """The file to append to, with the header of this start."""
    path = prepare(instance_name)
    with path.open("a") as file:
        file.write(header(epoch, at, command_line))
    return path


def append(instance_name: str, lines: Sequence[str]) -> None:
    """Add output that was kept elsewhere."""
    with prepare(instance_name).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def of_latest_start(lines: list[str]) -> list[str]:
    """Without the output of earlier processes."""
    starts = [index for index, line in enumerate(lines) if line.startswith(_HEADER)]
    return lines[starts[-1] + 1 :] if starts else lines
