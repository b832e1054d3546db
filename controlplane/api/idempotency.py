"""Idempotency-Key: a repeated POST gets the first answer again and changes nothing. Answers are kept for a day."""

import hashlib
from collections.abc import Callable
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone

from controlplane.api.auth import principal_of
from controlplane.api.models import IdempotentAnswer
from controlplane.api.problems import ApiProblem, response
from router.contract.problem import Problem

KEPT = timedelta(hours=24)
GIVEN_UP = timedelta(minutes=2)  # an older claim without an answer was left by a process that died
HEADERS = ("Content-Type", "ETag", "Location")
KEY_MAX = 200


class Idempotency:
    """Middleware for POSTs under /api/ with the header. Calls without credentials pass on to the operation's 401."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        key = request.headers.get("Idempotency-Key")
        if key is None or request.method != "POST" or not request.path.startswith("/api/"):
            return self.get_response(request)
        principal = principal_of(request)
        if principal is None:
            return self.get_response(request)
        if not 0 < len(key) <= KEY_MAX:
            error = Problem("Idempotency-Key", key, "", f"1 to {KEY_MAX} characters")
            return response(request, ApiProblem(422, errors=[error]))
        return self._once(request, f"{principal.kind}:{principal.user_id}:{principal.name}"[:80], key)

    def _once(self, request: HttpRequest, owner: str, key: str) -> HttpResponseBase:
        sha256 = fingerprint(request)
        claim = _claim(owner, key, sha256)
        if claim is None:
            return _replay(request, IdempotentAnswer.objects.filter(owner=owner, key=key).first(), sha256)
        try:
            answer = self.get_response(request)
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
    """The row that claims the key, or None when the key is taken."""
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
    """Keep the answer, unless it may differ a moment later (not allowed, failed): then the key may be used again."""
    if answer.status_code in (401, 403, 429) or answer.status_code >= 500 or not isinstance(answer, HttpResponse):
        claim.delete()
        return
    claim.status = answer.status_code
    if "no-store" not in answer.headers.get("Cache-Control", ""):  # secrets are not stored
        claim.headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
        claim.body = answer.content.decode()
    # Not `save`: a claim without an answer for GIVEN_UP is another request's by now, and this one has succeeded.
    values = {"status": claim.status, "headers": claim.headers, "body": claim.body}
    IdempotentAnswer.objects.filter(pk=claim.pk).update(**values)


def _replay(request: HttpRequest, kept: IdempotentAnswer | None, sha256: str) -> HttpResponse:
    if kept is None:  # deleted between our claim and this look: its request failed
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
