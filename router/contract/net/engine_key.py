"""Keys that engines ask for (vLLM's and SGLang's `--api-key`), of which Weir keeps the whereabouts only.

`env:NAME` is an environment variable of the process that asks the engine, `file:/PATH` a file with one line. Both are
read again when they change. The key itself is in no database, Redis value, log line, receipt or answer.
"""

import os
import re
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from router.contract import installation
from router.contract.verdict import KEY_REFUSED

ALLOWED = "env:NAME, whose name has API_KEY or ENGINE_KEY in it, or file:/PATH"
OPTION = "engine_key"
VARIABLE = "VLLM_API_KEY"  # variable in which vLLM, and a simulated engine, look for the key that they ask for
LONGEST = 4096  # bytes of a key
RULE = f"up to {LONGEST} visible characters"
LOOK_S = 1.0  # between two looks at a file
FOLDER = "engine-keys"  # folder in the data folder; no other file there is a key
_REFERENCE = re.compile(r"env:(?=\w*(?:API_KEY|ENGINE_KEY))[A-Za-z_]\w{0,199}|file:/[\w./@+~-]{1,1000}", re.ASCII)
_KEY = re.compile(rb"[!-~]+")
_REFUSAL = re.compile(r"GET \S+ answers 40[13]: ")
_CLOSED = ("/proc", "/sys", "/dev", "/run/secrets/kubernetes.io")
FOLDERS = "WEIR_ALLOWED_FOLDERS"
UNTOLD = f"what is wrong with it is told where {FOLDERS} is set"
_OWN = re.compile(rb"^(?:authorization|x-api-key|api-key):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)


class EngineKeyMissing(OSError):
    """The key cannot be read; the message is one sentence without the key."""


@dataclass(frozen=True, slots=True)
class _Read:
    looked_at: float  # s, monotonic
    version: tuple[int, ...]  # version of the file
    key: bytes
    why: str  # it cannot be used; empty: it can


_files: dict[str, _Read] = {}  # by path


def is_reference(given: str) -> bool:
    return _REFERENCE.fullmatch(given) is not None and "/../" not in f"{given}/"


def line(reference: str) -> bytes:
    """The header line for an engine; empty of an empty reference. Raises EngineKeyMissing."""
    return b"authorization: Bearer %b\r\n" % _key(reference) if reference else b""


def text(reference: str) -> str:
    """Return the key. Raise EngineKeyMissing."""
    return _key(reference).decode("ascii")


def headers(reference: str) -> dict[str, str]:
    """Return what `line` does, for httpx. Raise EngineKeyMissing."""
    return {"authorization": f"Bearer {text(reference)}"} if reference else {}


def line_if_any(reference: str) -> bytes:
    """Return what `line` does, or nothing if the key is unreadable: the engine then reports that it needs one."""
    return b"" if trouble(reference) else line(reference)


def trouble(reference: str) -> str:
    """Return why the key cannot be read; empty if it can, or if there is none."""
    try:
        line(reference)
    except EngineKeyMissing as error:
        return str(error)
    return ""


def refusal(status: int, path: str, reference: str) -> str:
    """Return what an engine's 401 or 403 means, and what to do; empty for another status."""
    if status not in KEY_REFUSED:
        return ""
    said = f"GET {path} answers {status}"
    if not reference:
        return f"{said}: the engine asks for a key, and none is named ({OPTION}: env:NAME or file:/PATH)"
    return f"{said}: {trouble(reference) or f'the engine does not take the key of {reference}'}"


def is_refusal(reason: str) -> bool:
    """Tell whether an instance's reason comes from `refusal`."""
    return _REFUSAL.match(reason) is not None


def is_engines(status: int, reference: str, *, sent: bytes, known: bool) -> bool:
    """Whether an engine's answer is about a key that its client cannot give: that of the pool, or one that nobody has
    named for a client of ours. `sent`: the client's header lines, as passed on; `known`: it showed a key of Weir."""
    if status not in KEY_REFUSED:
        return False
    return bool(reference) or (status == 401 and known and _OWN.search(sent) is None)


def replaced(lines: bytes, reference: str) -> bytes:
    """A client's header lines with the engine's key in place of its own. Raises EngineKeyMissing."""
    return line(reference) + _OWN.sub(b"", lines)


def _key(reference: str) -> bytes:
    if not is_reference(reference):
        raise EngineKeyMissing(f"its engine key is not named as {ALLOWED}")
    kind, _, name = reference.partition(":")
    return _of_variable(name) if kind == "env" else _of_file(name)


def _of_variable(name: str) -> bytes:
    patterns = listed("WEIR_ALLOWED_VARIABLES")
    if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
        raise EngineKeyMissing(f"its engine key is missing: WEIR_ALLOWED_VARIABLES does not allow {name}")
    return _checked(os.environ.get(name, "").encode("utf-8", "surrogateescape"), f"the environment variable {name}")


def _of_file(path: str) -> bytes:
    now, known = time.monotonic(), _files.get(path)
    if known is None or now - known.looked_at >= LOOK_S:
        known = _files[path] = _looked(path, now, known)
    if known.why:
        raise EngineKeyMissing(known.why)
    return known.key


def _looked(path: str, now: float, known: _Read | None) -> _Read:
    """Where administrators do not say which files may be named, no two paths are told apart."""
    found = _opened(path, now, known)
    if not found.why or listed(FOLDERS):
        return found
    why = f"its engine key is missing: the file {path} cannot be read, or does not have {RULE}; {UNTOLD}"
    return replace(found, why=why)


def _opened(path: str, now: float, known: _Read | None) -> _Read:
    try:
        if why := _closed(path):
            return _Read(now, (), b"", f"its engine key is missing: {why}")
        about = os.stat(path)
        version = (about.st_ino, about.st_mtime_ns, about.st_size, about.st_dev)
        if known is not None and known.version == version:
            return _Read(now, version, known.key, known.why)
        with open(path, "rb") as file:
            return _Read(now, version, _checked(file.read(LONGEST + 3), f"the file {path}"), "")
    except EngineKeyMissing as error:
        return _Read(now, (), b"", str(error))
    except OSError as error:
        return _Read(now, (), b"", f"its engine key is missing: {path}: {error.strerror}")


def _closed(path: str) -> str:
    """Return why this file is no engine key, links followed; empty if it may be one."""
    real, data = os.path.realpath(path), os.path.realpath(_data_folder())
    folders = listed(FOLDERS)  # first: of a path outside nothing else is told
    if folders and not any(_is_inside(real, os.path.realpath(folder)) for folder in folders):
        return f"{FOLDERS} does not allow {path}"
    if not os.path.isfile(real) and os.path.exists(real):
        return f"{path} is not a file"
    inside = [folder for folder in (*_CLOSED, data) if _is_inside(real, os.path.realpath(folder))]
    if inside and not _is_inside(real, os.path.join(data, FOLDER)):
        return f"{path} is in {inside[0]}"
    return ""


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _data_folder() -> str:
    return os.environ.get("WEIR_DATA_DIR") or str(installation.DATA)


def listed(name: str) -> list[str]:
    """A setting of words with commas between them; `NAME_FILE` may hold it instead."""
    path = os.environ.get(f"{name}_FILE")
    value = Path(path).read_text() if path else os.environ.get(name, "")
    return [word.strip() for word in value.split(",") if word.strip()]


def _checked(raw: bytes, what: str) -> bytes:
    key = raw.strip()
    if not key:
        raise EngineKeyMissing(f"its engine key is missing: {what} is not set or empty")
    if len(key) > LONGEST or not _KEY.fullmatch(key):
        raise EngineKeyMissing(f"its engine key cannot be used: {what} must be {RULE}")
    return key
