"""Idempotency-Key: a repeated POST gets the first answer again and changes nothing. Answers are kept for a day."""

import functools
import hashlib
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from ninja.operation import Operation

from controlplane.doors.api.models import IdempotentAnswer
from controlplane.doors.api.problems import ApiProblem, response
from controlplane.people.permissions import Principal
from router.contract.values.problem import Problem

KEPT = timedelta(hours=24)
GIVEN_UP = timedelta(minutes=2)  # age of a claim without an answer after which its process counts as dead
HEADERS = ("Content-Type", "ETag", "Location")
KEY_MAX = 200


Run = Callable[..., HttpResponseBase]


def once(run: Run) -> Run:
    """Wrap `Operation.run` of a POST that has the header. A caller without permission for the operation gets no stored
    answer either."""
    operation: Operation = inspect.unwrap(run).__self__
    if "POST" not in operation.methods:
        return run

    @functools.wraps(run)
    def answered(request: HttpRequest, **path: Any) -> HttpResponseBase:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return run(request, **path)
        try:
            principal = _allowed(operation, request)
        except ApiProblem as refusal:
            return response(request, refusal)
        if principal is None:
            return run(request, **path)
        if not 0 < len(key) <= KEY_MAX:
            error = Problem("Idempotency-Key", key, "", f"1 to {KEY_MAX} characters")
            return response(request, ApiProblem(422, errors=[error]))
        return _once(request, owner_of(principal), key, functools.partial(run, request, **path))

    return answered


def _allowed(operation: Operation, request: HttpRequest) -> Principal | None:
    """Return the caller, None without credentials. Raise ApiProblem 403 if a scope is missing."""
    callers = [check(request) for check in operation.auth_callbacks]
    return callers[0] if callers else None


def owner_of(principal: Principal) -> str:
    """Identify the caller by id: two tokens of one user may have the same name."""
    return f"token:{principal.token_id}" if principal.token_id else f"user:{principal.user_id}"


def _once(request: HttpRequest, owner: str, key: str, answer_of: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    sha256 = fingerprint(request)
    claim = _claim(owner, key, sha256)
    if claim is None:
        return _replay(request, IdempotentAnswer.objects.filter(owner=owner, key=key).first(), sha256)
    try:
        answer = answer_of()
    except BaseException:
        claim.delete()
        raise
    _keep(claim, answer)
    return answer


def fingerprint(request: HttpRequest) -> str:
    head = f"{request.method} {request.get_full_path()}\n".encode()
    # An upload is identified by its length: its boundary differs each time, and it is too large to read twice.
    upload = request.content_type == "multipart/form-data"
    body = request.headers.get("Content-Length", "").encode() if upload else request.body
    return hashlib.sha256(head + body).hexdigest()


def _claim(owner: str, key: str, sha256: str) -> IdempotentAnswer | None:
    """Return the row that claims the key, or None if the key is taken."""
    now = timezone.now()
    rows = IdempotentAnswer.objects.filter(owner=owner, key=key)
    rows.filter(created_at__lt=now - KEPT).delete()
    rows.filter(status=0, created_at__lt=now - GIVEN_UP).delete()
    try:
        with transaction.atomic():
            return IdempotentAnswer.objects.create(owner=owner, key=key, request_sha256=sha256)
    except IntegrityError:
        return None


def _keep(claim: IdempotentAnswer, answer: HttpResponseBase) -> None:
    """Store the answer, unless it may differ a moment later (not allowed, failed); in that case the key can be used
    again."""
    if answer.status_code in (401, 403, 429) or answer.status_code >= 500 or not isinstance(answer, HttpResponse):
        claim.delete()
        return
    claim.status = answer.status_code
    if "no-store" not in answer.headers.get("Cache-Control", ""):  # Secrets are not stored.
        claim.headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
        claim.body = answer.content.decode()
    # `save` is not used: after GIVEN_UP, a claim without an answer may belong to another request, although this one has
    # succeeded.
    values = {"status": claim.status, "headers": claim.headers, "body": claim.body}
    IdempotentAnswer.objects.filter(pk=claim.pk).update(**values)


def _replay(request: HttpRequest, kept: IdempotentAnswer | None, sha256: str) -> HttpResponse:
    if kept is None:  # deleted between the claim and this check, because its request failed
        return response(
            request, ApiProblem(409, detail="the first request with this key has just failed; send it again")
        )
    if kept.request_sha256 != sha256:
        return response(request, ApiProblem(422, detail="this Idempotency-Key was used for another request"))
    if kept.status == 0:
        wait = {"Retry-After": "1"}
        return response(
            request, ApiProblem(409, detail="the first request with this key is still running", headers=wait)
        )
    if not kept.body and kept.status not in (204, 304):
        return response(
            request, ApiProblem(409, detail="the request succeeded; its answer held a secret and was not stored")
        )
    answer = HttpResponse(kept.body.encode(), status=kept.status, headers=kept.headers)
    answer.headers["Idempotent-Replayed"] = "true"
    return answer


def forget_old() -> int:
    """Delete answers older than a day and return their number."""
    return IdempotentAnswer.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]
