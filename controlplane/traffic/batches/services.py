"""Creates, cancels and closes batches; stores and deletes files. Each change by a person has an audit entry."""

import os
import shutil
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Sum, Window
from django.db.models.expressions import OrderBy
from django.db.models.functions import RowNumber
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.batches import lines as batch_lines
from controlplane.traffic.batches import store
from controlplane.traffic.batches.models import Batch, StoredFile
from controlplane.traffic.keys.models import ApiKey
from fleet import jobs
from fleet.jobs import CANCELLED, DONE, ENDED, QUEUED
from router.contract.api_paths import BATCHED

WINDOWS = {"1h": 3600, **{f"{hours}h": hours * 3600 for hours in (2, 4, 8, 12, 24, 48, 72)}, "7d": 7 * 86_400}
MOST_FILES, MOST_BYTES = 1_000, 10 << 30  # files per key, and their bytes
MOST_BATCHES = 1_000  # unfinished batches per key
MOST_METADATA = 16  # entries
KEPT = timedelta(days=30)  # how long results, and inputs that no batch needs, are stored


class Refused(ValueError):
    """A request was refused; the message has the reason, `param` names the field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def keep_file(key: ApiKey, filename: str, purpose: str, parts: Iterable[bytes]) -> StoredFile:
    """Store an uploaded file. Raise Refused."""
    if purpose != "batch":
        raise Refused("purpose: must be batch", "purpose")
    # Checked before anything is written, and again later, because others may upload at the same time
    _check_room(key, "file", 0)
    row = StoredFile(key=key, filename=filename[:200], purpose=purpose, bytes=0)
    path = store.content(row.name)
    try:
        with path.open("xb") as file:
            for part in parts:
                row.bytes += file.write(part)
                if row.bytes > store.LARGEST:
                    raise Refused(f"a file may have at most {store.LARGEST:,} bytes", "file", 413)
            file.flush()
            os.fsync(file.fileno())
        if not row.bytes:
            raise Refused("the file is empty", "file")
        with held(ApiKey.objects.filter(pk=key.pk), f"API key {key.name}"):
            _check_room(key, "file", row.bytes)
            row.save()
            audit.record(actor_of(key), "file.upload", f"file {row.name}", "", None, {"bytes": row.bytes})
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return row


def _check_room(key: ApiKey, param: str, size: int) -> None:
    """Check that the key may store `size` more bytes. A batch without results counts as much as its file, because the
    results may be as large. Raise Refused."""
    files = StoredFile.objects.filter(key=key)
    kept = files.aggregate(files=Count("pk"), bytes=Sum("bytes", default=0))
    if param == "file" and kept["files"] >= MOST_FILES:
        raise Refused(f"the API key has {MOST_FILES:,} files: delete some first", param)
    read = Subquery(files.filter(name=OuterRef("input_file")).values("bytes")[:1])
    to_come = Batch.objects.filter(key=key, closed_at=None).aggregate(bytes=Sum(read, default=0))
    if kept["bytes"] + to_come["bytes"] + size > MOST_BYTES:
        why = f"files of an API key, with those that its batches will make, may have {MOST_BYTES:,} bytes"
        raise Refused(f"{why}: delete some first", param, 413)


def delete_file(row: StoredFile) -> None:
    """Delete a file. Raise Refused."""
    if Batch.objects.filter(input_file=row.name).exclude(status__in=ENDED).exists():
        raise Refused("a batch that has not ended needs this file: cancel it first", "file_id", 409)
    with transaction.atomic():
        row.delete()
        audit.record(actor_of(row.key), "file.delete", f"file {row.name}", "", {"bytes": row.bytes}, None)
    store.content(row.name).unlink(missing_ok=True)


def create_batch(key: ApiKey, asked: dict[str, Any]) -> Batch:
    """Create a batch. Raise Refused."""
    window, metadata = asked.get("completion_window"), asked.get("metadata")
    if not isinstance(window, str) or window not in WINDOWS:
        raise Refused(f"completion_window: must be one of {', '.join(WINDOWS)}", "completion_window")
    if asked.get("endpoint") not in BATCHED:
        raise Refused(f"endpoint: must be one of {', '.join(BATCHED)}", "endpoint")
    metadata = {} if metadata is None else metadata
    if not _is_metadata(metadata):
        raise Refused(f"metadata: at most {MOST_METADATA} texts of at most 512 characters, without NUL", "metadata")
    name = asked.get("input_file_id")
    is_name = isinstance(name, str) and _is_text(name, 40)
    file = StoredFile.objects.filter(key=key, name=name, purpose="batch").first() if is_name else None
    if file is None:
        raise Refused(f"input_file_id: there is no file {str(name)[:60]!r} with the purpose batch", "input_file_id")
    row = Batch(key=key, api_path=asked["endpoint"], window_s=WINDOWS[window], metadata=metadata, input_file=file.name)
    row.actor = actor_of(key).name
    with held(ApiKey.objects.filter(pk=key.pk), f"API key {key.name}"):
        if Batch.objects.filter(key=key).exclude(status__in=ENDED).count() >= MOST_BATCHES:
            why = f"{MOST_BATCHES:,} batches of the API key have not ended: wait for one or cancel it"
            raise Refused(why, status=429)
        _check_room(key, "input_file_id", file.bytes)
        row.save()
        after = {"endpoint": row.api_path, "input_file": name, "completion_window": window}
        audit.record(actor_of(key), "batch.create", f"batch {row.name}", "", None, after)
        transaction.on_commit(lambda: jobs.send(row))
    return row


def actor_of(key: ApiKey) -> Actor:
    return Actor("token", f"API key {key.name}")


def _is_metadata(given: object) -> bool:
    if not isinstance(given, dict) or len(given) > MOST_METADATA:
        return False
    return all(isinstance(value, str) and _is_text(name, 64) and _is_text(value, 512) for name, value in given.items())


def _is_text(given: str, longest: int) -> bool:
    """Return whether the value is text without NUL, which PostgreSQL cannot store."""
    return len(given) <= longest and "\0" not in given


def cancel_batch(row: Batch, actor: Actor, *, if_match: str | None = None) -> bool:
    """Cancel the batch; return False if it had already ended. Raise ChangedMeanwhile."""
    with held(Batch.objects.filter(pk=row.pk), f"batch {row.name}", if_match):
        if not jobs.cancel(row, actor.name):
            return False
        audit.record(actor, "batch.cancel", f"batch {row.name}", "", None, None)
    return True


def download(row: Batch, which: str, actor: Actor) -> Path | None:
    """Return the path of a batch's output or error file; None if there is none. Access is audited, because the file
    contains a client's texts."""
    name = row.output_file if which == "output" else row.error_file
    path = store.content(name)
    if not name or not path.exists():
        return None
    audit.record(actor, "batch.download", f"batch {row.name}", "", None, {"file": which})
    return path


def close(row: Batch) -> None:
    """Create the files of the batch's results, with an error for every unanswered line. This is repeated until it
    succeeds."""
    if row.status not in ENDED or row.closed_at is not None:
        return
    with store.alone(row.name) as mine:
        if not mine:
            return
        row.refresh_from_db()
        if row.status not in ENDED or row.closed_at is not None:
            return
        values = _files(row) if row.in_progress_at is not None else {}
        with transaction.atomic():
            for name, (path, filename) in values.items():
                moved = StoredFile(key=row.key, filename=filename, purpose="batch_output", bytes=path.stat().st_size)
                os.replace(path, store.content(moved.name))
                moved.save()
                setattr(row, name, moved.name)
            row.closed_at = timezone.now()
            row.save(update_fields=["closed_at", "output_file", "error_file", "completed", "failed"])
        shutil.rmtree(store.results(row.name), ignore_errors=True)


def _files(row: Batch) -> dict[str, Any]:
    """Return field → (path, name of the file) for the files with lines."""
    if row.status != DONE or row.completed + row.failed < row.total:
        _answer_for_the_rest(row)
    output, errors = (store.result(row.name, which) for which in ("output", "errors"))
    return {
        **({"output_file": (output, f"{row.name}_output.jsonl")} if row.completed else {}),
        **({"error_file": (errors, f"{row.name}_error.jsonl")} if row.failed else {}),
    }


def _answer_for_the_rest(row: Batch) -> None:
    """Write an error for each unanswered line, and count the lines of both files."""
    code = "batch_cancelled" if row.status == CANCELLED else "batch_expired" if row.is_expired else "batch_failed"
    message = {"batch_cancelled": "the batch was cancelled", "batch_expired": "the time of the batch was over"}
    with store.content(row.input_file).open("rb") as raw:
        lines = batch_lines.check(raw, row.api_path, has_begun=True).lines
    with closing(store.BatchResults(row.name)) as results:
        for number, line in enumerate(lines, 1):
            if line.custom_id not in results.written:
                why = message.get(code, row.cause or "the batch failed")
                written = batch_lines.without_answer(row.name, number, line.custom_id, code, why)
                results.add(results.errors, written)
        results.flush()
    row.completed, row.failed = results.counts[results.output], results.counts[results.errors]


def close_left() -> None:
    """Close batches that were cancelled before they began, or whose worker was lost before it created their files."""
    for row in Batch.objects.filter(closed_at=None, status__in=ENDED):
        close(row)


def requeue(row: Batch, cause: str) -> bool:
    """Queue the batch again after its worker was lost, so that another worker continues it. From then on, the batch
    waits for others.
    """
    due_at = row.heartbeat_at or timezone.now()
    if row.waits_for and row.due_at is not None:
        due_at = max(due_at, row.due_at)
    return jobs.requeue(row, "", due_at=due_at)


def due(now: datetime) -> "QuerySet[Batch]":
    """Return the batches that wait for a place, longest waiting first."""
    is_due = Q(due_at=None) | Q(due_at__lte=now)
    return Batch.objects.filter(is_due, status=QUEUED).order_by(F("due_at").asc(nulls_first=True), "pk")


def first_due(now: datetime, of_key: int) -> "QuerySet[Batch, tuple[int, int]]":
    """Return (pk, key) of up to `of_key` due batches of each key, so that one key's batches do not hide those of
    others."""
    order: list[OrderBy | str] = [F("due_at").asc(nulls_first=True), "pk"]
    number = Window(RowNumber(), partition_by="key_id", order_by=order)
    return due(now).annotate(number=number).filter(number__lte=of_key).values_list("pk", "key_id")


def send_due(now: datetime) -> None:
    """Have a worker send the batches that are due, unless a worker is already doing so."""
    late = due(now).filter(sent_at__lte=now - timedelta(seconds=jobs.SENT_AGAIN_S)).first()
    if late is not None and Batch.objects.filter(pk=late.pk, sent_at=late.sent_at).update(sent_at=now):
        jobs.send(late)


def forget_old(now: datetime) -> None:
    """Delete files of ended batches, and files that no batch has named, after KEPT."""
    needed = Batch.objects.exclude(status__in=ENDED).values("input_file")
    for row in StoredFile.objects.filter(created_at__lt=now - KEPT).exclude(name__in=needed):
        row.delete()
        store.content(row.name).unlink(missing_ok=True)
    for batch in Batch.objects.filter(closed_at__lt=now - KEPT):
        batch.delete()
        store.forget(batch.name)
