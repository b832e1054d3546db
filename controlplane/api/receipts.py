"""Routing receipts over REST: what was decided for a request, why, and what came of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from controlplane.api.auth import require
from controlplane.api.problems import Problem, errors
from controlplane.dashboard import receipts
from fleet.redis import connect
from router.policy.types import CLASSES
from router.wire import RECEIPT_TTL_S

router = Router(tags=["receipts"])
CLASS_OR_ALL = f"^({'|'.join(CLASSES)})?$"
OUTCOME_OR_ALL = f"^({'|'.join(receipts.OUTCOMES)})?$"


class CandidateOut(Schema):
    id: str
    cached_tokens: int
    new_tokens: int
    score: float | None
    refused: str = Field(description="Why it was not considered; empty when it was")


class AttemptOut(Schema):
    instance: str
    status: int | None = Field(None, description="HTTP status of the engine; 0 or null when it gave none")
    error: str = ""


class ReceiptOut(Schema):
    """As router/wire.py says. Times in ms count from `at`; null means unknown."""

    request_id: str
    at: float = Field(description="When the request came in, Unix seconds")
    router: str | None = None
    pool: str | None = None
    model: str | None = None
    endpoint: str | None = None
    policy: str | None = None
    version: int | None = None
    route: str | None = None
    request_class: str | None = Field(None, alias="class")
    flow: str | None = None
    instance: str | None = None
    rule: str | None = None
    reasons: list[str] = []
    session: str | None = Field(None, description="A hash: the same for requests of one session")
    prompt_tokens: int | None = Field(None, description="As estimated when the request came in")
    predicted_cached: int | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = Field(None, description="What the engine said it found")
    actual_prompt_tokens: int | None = Field(None, description="What the engine counted")
    output_tokens: int | None = None
    retries: int | None = None
    attempts: list[AttemptOut] = []
    stream: bool | None = None
    status: int | None = Field(None, description="HTTP status that the client was given")
    outcome: str | None = None
    error: str | None = None
    code: str | None = Field(None, description="Of the error")
    queue_ms: float | None = Field(None, description="Waiting in the router for room")
    first_byte_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class WholeReceiptOut(ReceiptOut):
    candidates: list[CandidateOut] = []


class ReceiptsOut(Schema):
    receipts: list[ReceiptOut] = Field(description="Newest first, without candidates")


@contextmanager
def readable() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise Problem(503, detail="Redis does not answer: receipts cannot be read") from error


@router.get(
    "",
    response={200: ReceiptsOut, **errors(422, 503)},
    by_alias=True,
    operation_id="list_receipts",
    summary="Recent receipts, newest first",
)
def list_receipts(
    request: HttpRequest,
    limit: int = Query(50, ge=1, le=receipts.LIMIT_MAX),
    pool: str = Query("", max_length=200),
    request_class: str = Query("", alias="class", pattern=CLASS_OR_ALL),
    instance: str = Query("", max_length=200),
    outcome: str = Query("", pattern=OUTCOME_OR_ALL),
) -> Any:
    require(request, "receipts:read")
    with readable():
        filters = receipts.Filters(pool, request_class, instance, outcome)
        return {"receipts": receipts.recent(connect(), filters, limit)}


@router.get(
    "/{request_id}",
    response={200: WholeReceiptOut, **errors(404, 503)},
    by_alias=True,
    operation_id="get_receipt",
    summary="One receipt with its candidates",
)
def get_receipt(request: HttpRequest, request_id: str) -> Any:
    require(request, "receipts:read")
    with readable():
        found = receipts.find(connect(), request_id)
    if found is None:
        detail = f"no receipt is kept under {request_id!r}; receipts are kept for {RECEIPT_TTL_S // 60} minutes"
        raise Problem(404, detail=detail)
    return found
