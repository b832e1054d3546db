"""Traces by name: uploads, built-in generated traces, files of the folder WEIR_TRACE_DIR, recorded traffic.
Recorded traffic keeps changing, so `recorded:<pool>` is stored like an upload (`keep`) before an experiment plays it.

    TraceError
    ├── NoSuchTrace
    └── NameTaken       another trace has that name
    BadTrace (traces/types.py): the content is not valid
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction

from controlplane.base.process import env
from controlplane.common.computing import computed
from controlplane.common.description import ALWAYS_SENT, Description
from controlplane.evidence.traces import generated, recorded_traffic
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.models import Trace
from controlplane.evidence.traces.summary import read, summarise
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceSummary
from controlplane.people.audit.services import Actor, record
from router.contract.values.reading import read_value

log = structlog.get_logger(__name__)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAME_RULE = "1 to 100 letters, digits, dots, hyphens and underscores, beginning with a letter or digit"
SUFFIXES = (".jsonl", ".json", ".csv", ".log")
RECORDED = "recorded:"  # followed by the name of a pool
SMALL = 1 << 16  # bytes of a file that is read faster than a process starts


class TraceError(Exception):
    pass


class NoSuchTrace(TraceError):
    pass


class NameTaken(TraceError):
    pass


@dataclass(frozen=True, slots=True)
class TraceEntry:
    __pydantic_config__ = ALWAYS_SENT

    name: str
    format: str
    source: Annotated[str, Description("built-in, upload, folder or recorded")]
    bytes: int  # 0 for a built-in trace, and for recorded traffic until it is read
    summary: Annotated[TraceSummary | None, Description("null until the file has been read")]
    recorded: Annotated[
        recorded_traffic.RecordedTraffic | None, Description("For recorded traffic: what is recorded now")
    ] = None


def store() -> Path:
    """Return the folder of uploads, each named by the hash of its content."""
    return Path(settings.DATA_DIR) / "traces"


def folder() -> Path | None:
    """Return WEIR_TRACE_DIR, if set."""
    text = env.text("WEIR_TRACE_DIR")
    return Path(text) if text else None


def entries(*, with_built_in: bool = False) -> list[TraceEntry]:
    """Return every trace, by name. `with_built_in` includes the summaries of built-in traces, which take half a
    second once per process."""
    rows = {row.name: row for row in Trace.objects.all()}
    found = {
        name: TraceEntry(name, "generated", "built-in", 0, _built_in(name)[1] if with_built_in else None)
        for name in generated.BUILT_IN
    }
    found |= {path.name: _folder_entry(path, rows.get(path.name)) for path in _folder_files()}
    found |= {row.name: _row_entry(row) for row in rows.values() if row.source == "upload"}
    found |= {
        name: TraceEntry(name, "recorded", "recorded", 0, None, recorded) for name, recorded in _recorded().items()
    }
    return [found[name] for name in sorted(found)]


def names() -> list[str]:
    return [entry.name for entry in entries()]


def entry(name: str) -> TraceEntry:
    """Return a trace with its summary; may read the file. Raise NoSuchTrace, BadTrace."""
    if name in generated.BUILT_IN:
        return TraceEntry(name, "generated", "built-in", 0, _built_in(name)[1])
    if name.startswith(RECORDED):
        data = _recorded_lines(name)
        _, summary = _looked_at(data)
        return TraceEntry(name, "recorded", "recorded", len(data), summary, _recorded().get(name))
    return _row_entry(_row(name))


def load(name: str, seed: int) -> LoadedTrace:
    """Load the trace. The seed determines what its file leaves open (arrivals within a bucket, starts of sessions)."""
    if name in generated.BUILT_IN:
        return generated.BUILT_IN[name]()
    return registry.read(content(name), seed)


def content(name: str) -> bytes:
    """Return the file of a trace that is not built in. Raise NoSuchTrace, BadTrace, Busy."""
    if name.startswith(RECORDED):
        return _recorded_lines(name)
    row = _row(name)
    path = _folder_path(name) if row.source == "folder" else store() / row.sha256
    try:
        return path.read_bytes()
    except OSError as error:
        raise NoSuchTrace(f"{name}: its file cannot be read ({error.strerror})") from None


def sha256(name: str) -> str:
    """Return the SHA-256 of the file, or of a built-in trace's requests. Raise NoSuchTrace, BadTrace."""
    if name in generated.BUILT_IN:
        return _built_in(name)[0]
    return _row(name).sha256


@cache
def _built_in(name: str) -> tuple[str, TraceSummary]:
    """Return SHA-256 and summary of a built-in trace, which never changes while a process runs."""
    requests = generated.BUILT_IN[name]().requests
    return hashlib.sha256(repr(requests).encode()).hexdigest(), summarise(requests)


def upload(name: str, data: bytes, actor: Actor) -> tuple[Trace, bool]:
    """Store a trace; return (row, whether it is new). The same content again is accepted. Raise BadTrace, NameTaken,
    Busy."""
    check_name(name)
    sha256 = hashlib.sha256(data).hexdigest()
    known = Trace.objects.filter(name=name, source="upload").first()
    if known is not None and known.sha256 == sha256:
        return known, False
    if known is not None or name in generated.BUILT_IN or _folder_path(name).is_file():
        raise NameTaken(f"{name}: another trace has this name; choose a different one")
    # This is done before the transaction, during which no other process could write to SQLite.
    kind, summary = _looked_at(data)
    _write(store() / sha256, data)
    values = {"format": kind, "source": "upload", "sha256": sha256, "bytes": len(data), "actor": actor.name}
    try:
        with transaction.atomic():
            row = Trace.objects.create(name=name, summary=asdict(summary), **values)
            record(actor, "trace.upload", f"trace {name}", after=values)
    except IntegrityError:
        raise NameTaken(f"{name}: another trace has this name; choose a different one") from None
    return row, True


def keep(name: str, actor: Actor) -> str:
    """Return the name of an unchanging trace: a copy of recorded traffic, otherwise the same name. The same recording
    is stored once. Raise NoSuchTrace, BadTrace.
    """
    if not name.startswith(RECORDED):
        return name
    data = _recorded_lines(name)
    newest = max(json.loads(line)["at"] for line in data.splitlines())
    stamp = datetime.fromtimestamp(newest, UTC).strftime("%Y%m%d-%H%M%S")
    copy = f"recorded-{name.removeprefix(RECORDED)}-{stamp}-{hashlib.sha256(data).hexdigest()[:8]}"
    row, _ = upload(copy, data, actor)
    return row.name


def check_name(name: str) -> None:
    """Raise BadTrace if the name cannot be used in a path or a URL."""
    if not NAME.fullmatch(name):
        raise BadTrace(0, "name", name, NAME_RULE)


def _recorded() -> dict[str, recorded_traffic.RecordedTraffic]:
    """Return recorded traces by name; empty while Redis is unreachable, so that the other traces stay usable."""
    try:
        return {f"{RECORDED}{pool}": recorded for pool, recorded in recorded_traffic.recorded().items()}
    except redis.RedisError:
        return {}


def _recorded_lines(name: str) -> bytes:
    """Return the current recording as a file."""
    pool = name.removeprefix(RECORDED)
    try:
        lines = recorded_traffic.lines_of(pool)
    except redis.RedisError as error:
        raise NoSuchTrace(f"{name}: recorded traffic is in Redis, which does not answer ({error})") from None
    if not lines:
        known = ", ".join(_recorded()) or "none"
        raise NoSuchTrace(f"{name}: the routers have recorded no request of pool {pool}; known: {known}")
    return b"\n".join(lines) + b"\n"


def _looked_at(data: bytes) -> tuple[str, TraceSummary]:
    """Return (format, summary); a large file is read beside the web process. Raise BadTrace, Busy."""
    seen = read(data) if len(data) <= SMALL else computed(read, data)
    if isinstance(seen, BadTrace):
        raise seen
    return seen


def _write(path: Path, data: bytes) -> None:
    """Write atomically: a reader never sees a part of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)


def _row(name: str) -> Trace:
    """Return the row of an upload, or of a file in the folder in its current state."""
    row = Trace.objects.filter(name=name).first()
    if row is not None and row.source == "upload":
        return row
    path = _folder_path(name)
    if not NAME.fullmatch(name) or not path.is_file():
        raise NoSuchTrace(f"there is no trace {name}; known traces: {', '.join(names()) or 'none'}")
    if row is not None and row.mtime_ns == path.stat().st_mtime_ns:
        return row
    return _read_in(name, path)


def _read_in(name: str, path: Path) -> Trace:
    about = path.stat()
    if about.st_size > registry.MAX_BYTES:
        raise BadTrace(0, "", about.st_size, f"at most {registry.MAX_BYTES:,} bytes")
    data = path.read_bytes()
    kind, summary = _looked_at(data)
    values = {
        "format": kind,
        "source": "folder",
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "mtime_ns": about.st_mtime_ns,
        "summary": asdict(summary),
    }
    try:
        return Trace.objects.update_or_create(name=name, defaults=values)[0]
    except DatabaseError as error:  # on a full disk, the trace can still be read
        log.warning("trace.summary_lost", trace=name, error=str(error))
        return Trace(name=name, **values)


def _folder_path(name: str) -> Path:
    """Return the path of a file of that name. A name that matches NAME cannot leave the folder."""
    root = folder()
    return root / name if root is not None and NAME.fullmatch(name) else Path("/nonexistent")


def _folder_files() -> Iterator[Path]:
    root = folder()
    if root is None or not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        if path.suffix in SUFFIXES and NAME.fullmatch(path.name) and path.is_file() and _format_of(path):
            yield path


def _format_of(path: Path) -> str:
    """Return the format; empty if the file is not a trace or cannot be read."""
    try:
        with path.open("rb") as file:
            return registry.detect(file.read(registry.HEAD_BYTES))
    except (OSError, BadTrace):
        return ""


def _folder_entry(path: Path, row: Trace | None) -> TraceEntry:
    about = path.stat()
    fresh = row is not None and row.source == "folder" and row.mtime_ns == about.st_mtime_ns
    return TraceEntry(path.name, _format_of(path), "folder", about.st_size, _summary(row) if fresh and row else None)


def _row_entry(row: Trace) -> TraceEntry:
    return TraceEntry(row.name, row.format, row.source, row.bytes, _summary(row))


def _summary(row: Trace) -> TraceSummary | None:
    return read_value(row.summary, TraceSummary) if row.summary else None
