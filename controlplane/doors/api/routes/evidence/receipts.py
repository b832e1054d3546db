"""Routing receipts over REST: the decision of a request, its reasons and its outcome."""

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from msgspec import to_builtins
from ninja import Field, Router, Schema
from ninja import Query as QueryOf
from ninja.params.functions import Query

from controlplane.common.as_seen import found
from controlplane.doors.api.auth import needs
from controlplane.doors.api.openapi import ROW_MAX
from controlplane.doors.api.problems import ApiProblem, errors
from controlplane.pages.receipts import by_law, explain, reader
from controlplane.pages.receipts.query import ReceiptQuery
from controlplane.pages.receipts.replay import asked_rules, compare
from fleet.redis import connect
from router.contract.redis.receipt import Receipt
from router.contract.redis.redis_keys import RECEIPT_TTL_S
from router.policy.columns import FIELDS
from router.policy.replay import NotReplayable, ReplayedDecision, reasons
from router.policy.types import Candidate, InstanceState

router = Router(tags=["receipts"])
CLASS = {"request_class": "class"}


class DecidedOut(Schema):
    id: str
    cached_tokens: int
    new_tokens: int
    score: float | None = Field(
        description="Score by which the strategy compares instances, lowest wins; null if it had none"
    )
    refused: str = Field(description="Why it was not a candidate; empty if it was")


class CandidateOut(DecidedOut):
    """A candidate with its load at the time of the decision, as sent by all routers."""

    running: int = 0
    waiting: int | None = Field(0, description="null: its load was not known, as its last figures were too old")
    decodes: int = 0
    prefill_tokens: int = 0
    kv_usage: float | None = Field(0.0, description="null: as for `waiting`; it ranked last")
    kv_tokens: int = Field(0, description="0 when unknown")
    block_size: int = 16
    role: str = "both"
    connector: str = ""
    pair: str = Field("", description="The only instance that can prefill for it; empty: any")


class AttemptOut(Schema):
    instance: str
    status: int | None = Field(None, description="HTTP status of the engine; 0 or null without an answer")
    result: str | None = Field(None, description="Result of the attempt, as in docs/router.md; null from older routers")
    error: str = ""


class ReceiptOut(Schema):
    """A receipt (docs/redis.md). Times in ms count from `at`; null means unknown."""

    request_id: str = Field(description="Id from the client, if it sent one")
    own_id: str | None = Field(None, description="Request id at the engines; the client gave the other one")
    earlier: str | None = Field(None, description="Name of the receipt of an earlier request with the same id")
    at: float = Field(description="Arrival, Unix seconds")
    router: str | None = None
    pool: str | None = None
    model: str | None = Field(None, description="Model name at the engines")
    alias: str | None = Field(None, description="The name that the client asked for, in the document Models")
    adapter: str | None = Field(None, description="LoRA adapter of the model")
    target_reason: str | None = Field(None, description="Why this target of the alias")
    endpoint: str | None = None
    policy: str | None = None
    version: int | None = None
    strategy: str | None = None
    request_class: str | None = Field(None, alias="class")
    flow: str | None = None
    instance: str | None = None
    index: str | None = Field(None, description="The prefix index in use: exact, approximate or none")
    index_reason: str | None = Field(None, description="Why no exact index was in use")
    rule: str | None = None
    reasons: list[str] = []
    prefill_instance: str | None = Field(None, description="The prefill instance of an offload")
    prefill_ms: float | None = None
    transfer_ms: float | None = None
    transfer_bytes: int | None = None
    offload: str | None = Field(
        None, description="ok, fallback, ineligible, failed or cancelled; null without an offload"
    )
    offload_reason: str | None = None
    lent_by: str | None = Field(
        None, description="Decoder that lent the prefill the blocks of the session's last answer"
    )
    lent_tokens: int | None = Field(None, description="Prompt tokens in those blocks")
    pull_ms: float | None = Field(
        None, description="Predicted duration of a pull from a peer; prefill_ms and transfer_ms are measured"
    )
    delivery: int | None = Field(None, description="Delivery under way when the request was assigned")
    arm: str | None = Field(None, description="Arm of that delivery: candidate or control")
    session: str | None = Field(None, description="Hash that all requests of a session share")
    session_by: str | None = Field(None, description="Source of the session's name, or why it has none")
    key: str | None = Field(None, description="Name of the API key")
    band: int | None = Field(None, description="Priority band as granted; null if none was requested")
    band_asked: int | None = None
    band_asked_by: str | None = Field(None, description="From a header, a field of the body, or the API key")
    prompt_tokens: int | None = Field(None, description="Estimate on arrival")
    predicted_cached: int | None = None
    predicted_tiers: list[int] | None = Field(
        None,
        description="Split of these: on device, in host memory and on disk; null if none is known below the device",
    )
    predicted_store: int | None = Field(
        None, description="Of these, tokens in a store that the pool shares; null: none"
    )
    new_tokens: int | None = None
    cached_tokens: int | None = Field(None, description="As reported by the engine")
    cached_tiers: list[int] | None = Field(
        None, description="Split of these: from device, host memory and disk; null if the engine does not report it"
    )
    actual_prompt_tokens: int | None = Field(None, description="As counted by the engine")
    output_tokens: int | None = None
    retries: int | None = None
    attempts: list[AttemptOut] = []
    stream: bool | None = None
    status: int | None = Field(None, description="HTTP status sent to the client")
    outcome: str | None = Field(None, description="ok, client_error, error, refused, cancelled or picked")
    result: str | None = Field(None, description="Detailed result; null from older routers, like the next field")
    fault: str | None = Field(None, description="client, engine, router or nobody")
    error: str | None = None
    code: str | None = Field(None, description="Of the error")
    wake_ms: float | None = Field(None, description="Part of queue_ms until the pool had woken")
    queue_ms: float | None = Field(None, description="Time in the admission queue")
    first_byte_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class InputsOut(Schema):
    """Inputs of the decision other than the candidates, `prompt_tokens` and `session`. A replay needs all of them."""

    turn: int = Field(description="Number of earlier decisions of the router for the pool")
    draw: float = Field(description="Random number from 0 to 1 that breaks ties")
    bound_to: str | None = Field(None, description="Instance to which the session was bound")
    history_tokens: int = Field(0, description="Tokens of the session's previous request; 0 when unknown")
    prefix_key: int = Field(0, description="0 to 65535, from the hash of the start of the prompt")
    pool: list[float] | None = Field(
        None,
        description="Of a large pool, of which the candidates are a part: mean number of requests on an instance, and "
        "the share of the instances that compute no prompt",
    )
    rates: list[float] | None = Field(
        None,
        description="Prefill tokens/s, KV bytes per token, transfer bytes/s, transfer setup s; 0 is unknown",
    )


class PhaseOut(Schema):
    name: str = Field(
        description="queue, prefill (of an offload), transfer, first (network, the queue of the engine and prefill), "
        "decode; engine when its first token is not known"
    )
    ms: float
    typical_ms: float | None = Field(description="Null when too few others are alike")


class TimeOut(Schema):
    """Where the time of a request went, beside recent answers of its pool and class with the same phases."""

    sentence: str = Field(description="Empty when too little is known")
    phases: list[PhaseOut]
    typical_ms: float | None = Field(description="Median of the whole request; null when too few others are alike")
    n: int = Field(description="Requests behind the typical times")


class WholeReceiptOut(ReceiptOut):
    inputs: InputsOut | None = Field(None, description="Null without a decision")
    candidates: list[CandidateOut] = []
    left_out: dict[str, int] = Field(
        {}, description="Instances that the decision did not compare, counted by the reason"
    )
    time: TimeOut


class OutcomeOut(Schema):
    instance: str = Field(description="Empty when no instance could take the request")
    prefill: str = Field(description="The prefill instance, if another one; else empty")
    request_class: str = Field(alias="class")
    flow: str = Field(description="colocated or offload")
    strategy: str
    rule: str
    reasons: list[str]
    cached_tokens: int
    new_tokens: int
    candidates: list[DecidedOut]


class ExplanationOut(Schema):
    """A recorded decision, and the decision recomputed from the same inputs."""

    request_id: str
    policy: str = Field(description="The policy of the recomputed decision; empty for the built-in default")
    version: int
    own_version: bool = Field(description="This version made the recorded decision")
    same: bool
    drift: bool = Field(description="The recorded version now decides differently")
    changed: list[str] = Field(description="Fields that differ")
    recorded: OutcomeOut
    recomputed: OutcomeOut


class ReceiptsOut(Schema):
    receipts: list[ReceiptOut] = Field(description="Without candidates, in the asked order")


@router.get("", response={200: ReceiptsOut, **errors(503)}, by_alias=True, auth=needs("receipts:read"))
def list_receipts(
    request: HttpRequest, query: QueryOf[ReceiptQuery], limit: int = Query(50, ge=1, le=reader.LIMIT_MAX)
) -> Any:
    """Recent receipts: the newest, or the slowest"""
    return {"receipts": [_plain(each) for each in reader.search(connect(), query, limit)]}


@router.get("/{request_id}", response={200: WholeReceiptOut, **errors(503)}, by_alias=True, auth=needs("receipts:read"))
def get_receipt(request: HttpRequest, request_id: str) -> Any:
    """One receipt with its candidates, and where its time went"""
    receipt = _receipt(request_id)
    spent = explain.waterfall(receipt, reader.alike(connect(), receipt))
    candidates = [_candidate(*each) for each in by_law.recorded(receipt)]
    more = {"candidates": candidates, "left_out": explain.left_out(receipt), "time": _time(spent)}
    return _plain(receipt) | more


@router.get(
    "/{request_id}/explain",
    response={200: ExplanationOut, **errors(503)},
    by_alias=True,
    auth=needs("receipts:read", "policy:read"),
)
def explain_receipt(
    request: HttpRequest,
    request_id: str,
    policy: str = Query("", max_length=200, description="Another policy; default: the one that decided"),
    version: int = Query(
        0, ge=0, le=ROW_MAX, description="0: the version that decided, or the live version of the other policy"
    ),
) -> Any:
    """Recompute a decision from its recorded inputs, with the same or another version"""
    receipt = _receipt(request_id)
    try:
        compared = compare(receipt, asked_rules(receipt, policy, version or None))
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


def _plain(receipt: Receipt) -> dict[str, Any]:
    return {**to_builtins(receipt), "reasons": reasons(receipt)}


def _receipt(request_id: str) -> Receipt:
    detail = f"no receipt is kept under {request_id!r}; receipts are kept for {RECEIPT_TTL_S // 60} minutes"
    return found(reader.find(connect(), request_id), detail)


def _candidate(one: Candidate, state: InstanceState) -> CandidateOut:
    return CandidateOut(**asdict(one), **{name: getattr(state, name) for name in FIELDS} | state.known)


def _time(spent: explain.Waterfall) -> dict[str, Any]:
    typical: list[float | None] = [phase.ms for phase in spent.typical] or [None] * len(spent.own)
    return {
        "sentence": spent.sentence,
        "phases": [
            {"name": own.name, "ms": own.ms, "typical_ms": usual} for own, usual in zip(spent.own, typical, strict=True)
        ],
        "typical_ms": spent.typical_ms if spent.typical else None,
        "n": spent.n,
    }


def _outcome(outcome: ReplayedDecision) -> dict[str, Any]:
    made = asdict(outcome)
    return {**made, "class": made.pop("request_class")}
