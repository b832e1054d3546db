"""Routing receipts over REST: what was decided for a request, why, and what came of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import redis
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from controlplane.api.auth import require
from controlplane.api.openapi import ROW_MAX
from controlplane.api.problems import ApiProblem, errors
from controlplane.policies.errors import NoSuchPolicy
from controlplane.receipts import explain
from controlplane.receipts import reader as receipts
from controlplane.receipts.replay import asked_rules, compare
from fleet.redis import connect
from router.contract.redis_keys import RECEIPT_TTL_S
from router.policy.replay import NotReplayable, ReplayedDecision
from router.policy.types import CLASSES

router = Router(tags=["receipts"])
CLASS_OR_ALL = f"^({'|'.join(CLASSES)})?$"
CLASS = {"request_class": "class"}
OUTCOME_OR_ALL = f"^({'|'.join(receipts.OUTCOMES)})?$"


class DecidedOut(Schema):
    id: str
    cached_tokens: int
    new_tokens: int
    score: float | None = Field(
        description="What the strategy compared instances by, the least wins; null when it did not"
    )
    refused: str = Field(description="Why it was not considered; empty when it was")


class CandidateOut(DecidedOut):
    """With its load at that moment, as all routers had sent it."""

    running: int = 0
    waiting: int = 0
    decodes: int = 0
    prefill_tokens: int = 0
    kv_usage: float = 0.0
    kv_tokens: int = Field(0, description="0 when unknown")
    block_size: int = 16
    role: str = "both"
    connector: str = ""


class AttemptOut(Schema):
    instance: str
    status: int | None = Field(None, description="HTTP status of the engine; 0 or null when it gave none")
    error: str = ""


class ReceiptOut(Schema):
    """As docs/redis.md says. Times in ms count from `at`; null means unknown."""

    request_id: str
    at: float = Field(description="When the request came in, Unix seconds")
    router: str | None = None
    pool: str | None = None
    model: str | None = None
    endpoint: str | None = None
    policy: str | None = None
    version: int | None = None
    strategy: str | None = None
    request_class: str | None = Field(None, alias="class")
    flow: str | None = None
    instance: str | None = None
    index: str | None = Field(None, description="The prefix index that was believed: exact, approximate or none")
    rule: str | None = None
    reasons: list[str] = []
    prefill_instance: str | None = Field(None, description="Where the prompt was to be computed, of an offload")
    prefill_ms: float | None = None
    transfer_ms: float | None = None
    transfer_bytes: int | None = None
    offload: str | None = Field(
        None, description="ok, fallback, ineligible, failed or cancelled; null without an offload"
    )
    offload_reason: str | None = None
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


class InputsOut(Schema):
    """What the decision was made from besides the candidates, `prompt_tokens` and `session`; replaying needs it all."""

    turn: int = Field(description="How many requests of the pool the router had decided before")
    draw: float = Field(description="0 to 1, decided between equals")
    bound_to: str | None = Field(None, description="Instance that the session was bound to")
    history_tokens: int = Field(0, description="Of the session's previous request; 0 when unknown")
    prefix_key: int = Field(0, description="0 to 65535, from the hash of the prompt's beginning")
    rates: list[float] | None = Field(
        None,
        description="Prefill tokens/s, KV bytes per token, transfer bytes/s, transfer setup s; 0 is unknown",
    )


class WholeReceiptOut(ReceiptOut):
    inputs: InputsOut | None = Field(None, description="Null when nothing was decided")
    candidates: list[CandidateOut] = []


class OutcomeOut(Schema):
    instance: str = Field(description="Empty when nobody could take it")
    prefill: str = Field(description="Who computes the prompt when that is another instance, else empty")
    request_class: str = Field(alias="class")
    flow: str = Field(description="colocated or offload")
    strategy: str
    rule: str
    reasons: list[str]
    cached_tokens: int
    new_tokens: int
    candidates: list[DecidedOut]


class ExplanationOut(Schema):
    """A recorded decision beside the same one made again from the same inputs."""

    request_id: str
    policy: str = Field(description="The policy that decides now; empty for the built-in default")
    version: int
    own_version: bool = Field(description="This version made the recorded decision")
    same: bool
    drift: bool = Field(description="The version that made the recorded decision decides otherwise now")
    changed: list[str] = Field(description="Names of the fields that differ")
    recorded: OutcomeOut
    recomputed: OutcomeOut


class ReceiptsOut(Schema):
    receipts: list[ReceiptOut] = Field(description="Newest first, without candidates")


@contextmanager
def readable() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise ApiProblem(503, detail="Redis does not answer: receipts cannot be read") from error


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
        filters = receipts.ReceiptFilters(pool, request_class, instance, outcome)
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
    found = _found(request_id)
    return {**found, "candidates": explain.rows(found)}


@router.get(
    "/{request_id}/explain",
    response={200: ExplanationOut, **errors(404, 422, 503)},
    by_alias=True,
    operation_id="explain_receipt",
    summary="The decision made again from the recorded inputs, by the same version or any other",
)
def explain_receipt(
    request: HttpRequest,
    request_id: str,
    policy: str = Query("", max_length=200, description="Of another policy; without it the one that decided"),
    version: int = Query(0, ge=0, le=ROW_MAX, description="0: the version that decided, or another policy's live one"),
) -> Any:
    require(request, "receipts:read")
    require(request, "policy:read")
    found = _found(request_id)
    try:
        compared = compare(found, asked_rules(found, policy, version or None))
    except NoSuchPolicy as error:
        raise ApiProblem(404, detail=str(error)) from None
    except NotReplayable as error:
        raise ApiProblem(422, detail=f"the receipt of {request_id!r} cannot be replayed: {error}") from None
    return {
        "request_id": request_id,
        "policy": compared.rules.policy,
        "version": compared.rules.version,
        "own_version": compared.own,
        "same": not compared.changed,
        "drift": compared.drift,
        "changed": [CLASS.get(name, name) for name in compared.changed],
        "recorded": _outcome(compared.recorded),
        "recomputed": _outcome(compared.recomputed),
    }


def _found(request_id: str) -> dict[str, Any]:
    with readable():
        found = receipts.find(connect(), request_id)
    if found is None:
        detail = f"no receipt is kept under {request_id!r}; receipts are kept for {RECEIPT_TTL_S // 60} minutes"
        raise ApiProblem(404, detail=detail)
    return found


def _outcome(outcome: ReplayedDecision) -> dict[str, Any]:
    made = asdict(outcome)
    return {**made, "class": made.pop("request_class")}
