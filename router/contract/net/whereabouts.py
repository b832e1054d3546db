"""Values of which Weir keeps only references: `env:NAME`, a variable of the process that uses the value, or
`file:/PATH`.
Both are read again when they change. The value itself is never in a database, Redis value, log line, receipt or answer.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from router.contract import installation

LOOK_S = 1.0  # between two checks of a file
MOST = 256  # cached files, of up to 1 MiB: one file may have many paths
FOLDER = "engine-keys"  # folder in the data folder; no other file of the data folder may be read
FOLDERS = "WEIR_ALLOWED_FOLDERS"
UNTOLD = f"the reason is shown only where {FOLDERS} is set"
_CLOSED = ("/proc", "/sys", "/dev", "/run/secrets/kubernetes.io")


class Missing(OSError):
    """The value cannot be read; the message is one sentence without it."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A kind of value, and the rule for it."""

    noun: str  # for messages, as in "engine key"
    rule: str  # description of the rule, for messages
    longest: int  # bytes
    fits: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class _Read:
    looked_at: float  # s, monotonic
    version: tuple[int, ...]  # version of the file
    value: bytes
    why: str  # why the value cannot be used; empty if it can


_files: dict[tuple[str, str], _Read] = {}  # by path and kind of value


def is_named(given: str) -> bool:
    """Return whether the path stays within its folder, without `..`."""
    return "/../" not in f"{given}/"


def read(reference: str, sought: Sought) -> bytes:
    """Return the value to which a valid reference points. Raise Missing."""
    kind, _, name = reference.partition(":")
    return _of_variable(name, sought) if kind == "env" else _of_file(name, sought)


def _of_variable(name: str, sought: Sought) -> bytes:
    patterns = listed("WEIR_ALLOWED_VARIABLES")
    if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
        raise Missing(f"its {sought.noun} is missing: WEIR_ALLOWED_VARIABLES does not allow {name}")
    return _checked(
        os.environ.get(name, "").encode("utf-8", "surrogateescape"), f"the environment variable {name}", sought
    )


def _of_file(path: str, sought: Sought) -> bytes:
    now, known = time.monotonic(), _files.get((path, sought.noun))
    if known is None or now - known.looked_at >= LOOK_S:
        if len(_files) >= MOST:
            _files.clear()
        known = _files[path, sought.noun] = _looked(path, sought, now, known)
    if known.why:
        raise Missing(known.why)
    return known.value


def _looked(path: str, sought: Sought, now: float, known: _Read | None) -> _Read:
    """Check the file. If administrators do not limit which files may be named, all failures give the same message, so
    that it reveals nothing about the file."""
    found = _opened(path, sought, now, known)
    if not found.why or listed(FOLDERS):
        return found
    why = f"its {sought.noun} is missing: the file {path} cannot be read, or does not have {sought.rule}; {UNTOLD}"
    return replace(found, why=why)


def _opened(path: str, sought: Sought, now: float, known: _Read | None) -> _Read:
    missing = f"its {sought.noun} is missing"
    try:
        if why := _closed(path):
            return _Read(now, (), b"", f"{missing}: {why}")
        about = os.stat(path)
        version = (about.st_ino, about.st_mtime_ns, about.st_size, about.st_dev)
        if known is not None and known.version == version:
            return _Read(now, version, known.value, known.why)
        with open(path, "rb") as file:
            return _Read(now, version, _checked(file.read(sought.longest + 3), f"the file {path}", sought), "")
    except Missing as error:
        return _Read(now, (), b"", str(error))
    except OSError as error:
        return _Read(now, (), b"", f"{missing}: {path}: {error.strerror}")


def _closed(path: str) -> str:
    """Return why this file may not be read, after following links; empty if it may be read."""
    real, data = os.path.realpath(path), os.path.realpath(os.environ.get("WEIR_DATA_DIR") or str(installation.DATA))
    folders = listed(FOLDERS)  # checked first, so that a path outside the folders reveals nothing else
    if folders and not any(is_inside(real, os.path.realpath(folder)) for folder in folders):
        return f"{FOLDERS} does not allow {path}"
    if not os.path.isfile(real) and os.path.exists(real):
        return f"{path} is not a file"
    inside = [folder for folder in (*_CLOSED, data) if is_inside(real, os.path.realpath(folder))]
    if inside and not is_inside(real, os.path.join(data, FOLDER)):
        return f"{path} is in {inside[0]}"
    return ""


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def listed(name: str) -> list[str]:
    """Return the words of a comma-separated setting; a file named by `NAME_FILE` may hold it instead."""
    path = os.environ.get(f"{name}_FILE")
    value = Path(path).read_text() if path else os.environ.get(name, "")
    return [word.strip() for word in value.split(",") if word.strip()]


def _checked(raw: bytes, what: str, sought: Sought) -> bytes:
    value = raw.strip()
    if not value:
        raise Missing(f"its {sought.noun} is missing: {what} is not set or empty")
    if len(value) > sought.longest or not sought.fits(value):
        raise Missing(f"its {sought.noun} cannot be used: {what} must be {sought.rule}")
    return value
