"""Restricts the data folder to the OS user that runs Weir: its database, token and logs are secrets."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077  # inherited by every process that Weir starts
OTHERS = 0o077  # mode bits of the group and of all others


def guard() -> None:
    """Make this process and its children create files for their own user only."""
    os.umask(UMASK)


def _own(folder: Path) -> Iterator[Path]:
    """Yield the files that Weir itself writes; the folder's own mode protects the rest, which may be large."""
    yield folder
    yield from folder.glob("*")
    yield from (folder / "logs").glob("**/*")
    yield from (folder / "traces").glob("*")


def _is_open(path: Path) -> bool:
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return False  # a journal of the database may have disappeared in the meantime
    return bool(found & OTHERS) and not stat.S_ISLNK(found)


def readable_by_others(folder: Path) -> list[Path]:
    """Return the folder, and the files in it, that other users may read or enter."""
    return [path for path in _own(folder) if _is_open(path)]


def tighten(folder: Path) -> list[Path]:
    """Deny other users access to files that they can read, and return those files. Files of another owner stay as they
    are; `manage.py doctor` reports them.
    """
    return [path for path in readable_by_others(folder) if _close(path)]


def _close(path: Path) -> bool:
    try:
        path.chmod(path.stat().st_mode & 0o777 & ~OTHERS)
    except (FileNotFoundError, PermissionError):
        return False
    return True


def describe(paths: list[Path]) -> str:
    names = ", ".join(str(path) for path in paths[:3])
    return f"{names} and {len(paths) - 3} more" if len(paths) > 3 else names
