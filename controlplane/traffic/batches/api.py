"""OpenAI's API of files and batches, for clients with an API key; routers pass these calls on."""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import orjson
from django.contrib.auth.decorators import login_not_required
from django.db.models import QuerySet
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from controlplane.people.accounts.models import digest
from controlplane.people.audit.services import Actor
from controlplane.traffic.batches import services, store
from controlplane.traffic.batches.models import Batch, StoredFile
from controlplane.traffic.batches.services import Refused
from controlplane.traffic.keys.models import ApiKey
from router.contract.redis.api_keys import secret_of

MOST = 100  # largest number of rows of a page
USUAL = 20
OTHERS = "turn"  # code for a batch that waits while other batches have their turn
CODES = {404: "not_found", 409: "in_use", 413: "file_too_large", 429: "too_many_batches"}
View = Callable[..., HttpResponseBase]
Row = TypeVar("Row", StoredFile, Batch)


def key_of(headers: Mapping[bytes, bytes]) -> ApiKey | None:
    """Return the key in `authorization`, `x-api-key` or `api-key`; None unless it is valid."""
    secret = secret_of(headers)
    if secret is None:
        return None
    row = ApiKey.objects.filter(sha256=digest(secret.decode("latin-1"))).first()
    return row if row is not None and row.is_usable(timezone.now()) else None


class NotFound(Refused):
    def __init__(self, what: str) -> None:
        super().__init__(f"there is no {what} of this API key", status=404)


def _answer(body: object, status: int = 200) -> HttpResponse:
    return HttpResponse(orjson.dumps(body), content_type="application/json", status=status)


def _error(status: int, message: str, code: str, param: str | None = None) -> HttpResponse:
    kind = "invalid_request_error"
    return _answer({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


def door(**methods: Callable[..., object]) -> View:
    """Create the view of an API path: one function per method, which receives the key and returns a document or a
    response."""

    @csrf_exempt
    @login_not_required
    @never_cache
    @wraps(next(iter(methods.values())))
    def view(request: HttpRequest, **named: str) -> HttpResponseBase:
        headers = {name.lower().encode(): value.encode("latin-1", "replace") for name, value in request.headers.items()}
        key = key_of(headers)
        if key is None:
            message = "files and batches need a valid API key: send it as `Authorization: Bearer`"
            return _error(401, message, "invalid_api_key")
        answer = methods.get(request.method or "")
        if answer is None:
            refused = _error(405, f"{request.path[:200]} takes {', '.join(methods)}", "method_not_allowed")
            refused.headers["Allow"] = ", ".join(methods)
            return refused
        try:
            made = answer(request, key, **named)
        except Refused as error:
            return _error(error.status, str(error), CODES.get(error.status, "invalid_value"), error.param)
        return made if isinstance(made, HttpResponseBase) else _answer(made)

    return view


def _upload(request: HttpRequest, key: ApiKey) -> object:
    file = request.FILES.get("file")
    if file is None:
        raise Refused("file: send one as multipart/form-data", "file")
    row = services.keep_file(key, file.name or "", request.POST.get("purpose", ""), file.chunks())
    return _file(row)


def _files(request: HttpRequest, key: ApiKey) -> object:
    rows = StoredFile.objects.filter(key=key)
    if purpose := request.GET.get("purpose"):
        rows = rows.filter(purpose=purpose)
    return _page(request, rows, _file, 10_000)


def _one_file(request: HttpRequest, key: ApiKey, name: str) -> object:
    return _file(_of(key, StoredFile, name))


def _delete(request: HttpRequest, key: ApiKey, name: str) -> object:
    services.delete_file(_of(key, StoredFile, name))
    return {"id": name, "object": "file", "deleted": True}


def _content(request: HttpRequest, key: ApiKey, name: str) -> object:
    row = _of(key, StoredFile, name)
    try:
        file = store.content(row.name).open("rb")
    except FileNotFoundError:
        raise NotFound(f"content of the file {name}") from None
    return FileResponse(file, content_type="application/octet-stream", filename=row.filename, as_attachment=True)


def _create(request: HttpRequest, key: ApiKey) -> object:
    try:
        asked = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise Refused("the body must be a JSON object")
    return batch(services.create_batch(key, asked))


def _batches(request: HttpRequest, key: ApiKey) -> object:
    return _page(request, Batch.objects.filter(key=key), batch, MOST)


def _one_batch(request: HttpRequest, key: ApiKey, name: str) -> object:
    return batch(_of(key, Batch, name))


def _cancel(request: HttpRequest, key: ApiKey, name: str) -> object:
    row = _of(key, Batch, name)
    if not services.cancel_batch(row, Actor("token", f"API key {key.name}")):
        raise Refused(f"the batch has ended: it is {row.state}", status=409)
    return batch(_of(key, Batch, name))


def _of(key: ApiKey, model: type[Row], name: str) -> Row:
    row = model._default_manager.filter(key=key, name=name).first()
    if row is None:
        raise NotFound(f"{'file' if model is StoredFile else 'batch'} {name[:60]}")
    return row


def _page(request: HttpRequest, rows: "QuerySet[Any]", written: Callable[[Any], dict[str, Any]], most: int) -> object:
    """Return a page of rows after the row `after`, newest first."""
    limit = request.GET.get("limit", str(USUAL if most == MOST else most))
    if re.fullmatch("[0-9]{1,5}", limit) is None or not 1 <= int(limit) <= most:
        raise Refused(f"limit: must be a whole number from 1 to {most:,}", "limit")
    if after := request.GET.get("after"):
        last = rows.filter(name=after).first()
        if last is None:
            raise Refused(f"after: there is no {after[:60]}", "after")
        rows = rows.filter(pk__lt=last.pk)
    found = list(rows[: int(limit) + 1])
    data = [written(row) for row in found[: int(limit)]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": len(found) > int(limit)}


def _file(row: StoredFile) -> dict[str, Any]:
    return {
        "id": row.name,
        "object": "file",
        "bytes": row.bytes,
        "created_at": int(row.created_at.timestamp()),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
    }


def batch(row: Batch) -> dict[str, Any]:
    """Return a batch as an object of OpenAI's API."""
    ended: dict[str, int | None] = {
        f"{name}_at": None for name in ("finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    }
    if row.ended_at is not None:
        at = int(row.ended_at.timestamp())
        ended["cancelling_at" if row.state in ("cancelling", "cancelled") else "finalizing_at"] = at
        if row.closed_at is not None or row.state == "failed":
            ended[f"{row.state}_at"] = at
    created, tokens = int(row.created_at.timestamp()), (row.input_tokens, row.output_tokens)
    return {
        "id": row.name,
        "object": "batch",
        "endpoint": row.api_path,
        "errors": {"object": "list", "data": row.faults or _cause(row)} if row.state == "failed" else None,
        "input_file_id": row.input_file,
        "completion_window": next(name for name, s in services.WINDOWS.items() if s == row.window_s),
        "status": row.state,
        "output_file_id": row.output_file or None,
        "error_file_id": row.error_file or None,
        "created_at": created,
        "in_progress_at": int(row.in_progress_at.timestamp()) if row.in_progress_at is not None else None,
        "expires_at": int(row.expires_at.timestamp()),
        **ended,
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": tokens[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(tokens),
        },
        "metadata": row.metadata,
        "waiting": _waiting(row),
    }


def _waiting(row: Batch) -> dict[str, Any] | None:
    """Return why the batch is sending nothing now."""
    if not row.waits:
        return None
    again = row.asked_again_at
    code, at = (row.waits_code, int(again.timestamp())) if again is not None else (OTHERS, None)
    return {"code": code, "message": row.waits, "asked_again_at": at}


def _cause(row: Batch) -> list[dict[str, Any]]:
    return [{"code": "batch_failed", "line": None, "message": row.cause, "param": None}]


files = door(GET=_files, POST=_upload)
file = door(GET=_one_file, DELETE=_delete)
content = door(GET=_content)
batches = door(GET=_batches, POST=_create)
one_batch = door(GET=_one_batch)
cancel = door(POST=_cancel)
