"""What routers record of each request: its receipt, and an entry of recorded traffic. Pure."""

from typing import Any

from msgspec import Struct, field

from router.contract.redis.codec import RedisValue

BLOCK_CHUNKS = 8  # chunks of the prefix index (256 bytes each) in a block of recorded traffic


class ReceiptAttempt(Struct, frozen=True, kw_only=True):
    instance: str
    status: int | None = None  # HTTP, of the engine
    result: str | None = None  # router/contract/answer/verdict.py; None in receipts of older routers
    error: str = ""


class ShadowDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a delivery's candidate would have decided in the situation of the receipt's decision."""

    version: int
    instance: str = ""  # empty: it refuses the request
    flow: str = ""
    request_class: str = field(name="class", default="")
    changed: bool = False  # True if instance, prefill instance or refusal differ
    refused: bool = False
    error: str = ""  # error raised by the candidate


class Receipt(RedisValue, tag=2, frozen=True, kw_only=True):
    """weir:receipt:<request id>, of the latest request with that id, expires; stream weir:receipts, field r, without
    `inputs` and `candidates`.

    Written by routers. None is unknown; times in ms count from `at`.
    """

    request_id: str  # the client's, if it gave one
    own_id: str | None = None  # id at the engines, drawn by the router; absent if equal to `request_id`
    earlier: str | None = None  # name of the previous request's receipt with the same id
    at: float  # Unix s, of the arrival
    router: str | None = None
    pool: str | None = None
    model: str | None = None  # model of the pool, as its engines serve it
    alias: str | None = None  # the name that the client asked for, in the document Models
    adapter: str | None = None  # LoRA adapter of the model
    target_reason: str | None = None  # why this target of the alias
    endpoint: str | None = None  # HTTP path
    policy: str | None = None
    version: int | None = None
    delivery: int | None = None  # under way when the request was assigned
    arm: str | None = None  # arm of the delivery: candidate, control
    session: str | None = None  # hash of pool and session
    session_by: str | None = (
        None  # source of the session, or why there is none; absent if only the prompt identifies it
    )
    key: str | None = None  # name of the API key
    band: int | None = None  # granted priority band; absent if not asked for, like the next two
    band_asked: int | None = None
    band_asked_by: str | None = None  # a header, a field of the body, or the API key
    prompt_tokens: int | None = None  # L, as estimated
    cached_tokens: int | None = None  # reported by the engine, like the next two
    actual_prompt_tokens: int | None = None
    output_tokens: int | None = None
    retries: int | None = None
    attempts: tuple[ReceiptAttempt, ...] = ()
    stream: bool | None = None
    status: int | None = None  # HTTP, to the client
    # ok, client_error, error, refused, cancelled, picked (by a gateway, which reports no outcome)
    outcome: str | None = None
    result: str | None = None  # router/contract/answer/verdict.py, like the next; None in receipts of older routers
    fault: str | None = None  # client, engine, router, nobody
    error: str | None = None
    code: str | None = None  # code of the error
    queue_ms: float | None = None  # time in the router's admission queue
    wake_ms: float | None = None  # wait for the pool to wake; absent if it was awake
    first_byte_ms: float | None = None
    ttft_ms: float | None = None  # streamed answers only
    tpot_ms: float | None = None  # streamed answers only
    e2e_ms: float | None = None
    strategy: str | None = None
    request_class: str | None = field(name="class", default=None)
    flow: str | None = None
    instance: str | None = None
    rule: str | None = None
    reasons: tuple[str, ...] = ()
    index: str | None = None  # predicting index: exact, approximate, none
    index_reason: str | None = None  # why no exact index predicted
    predicted_cached: int | None = None  # tokens, h
    predicted_tiers: tuple[int, int, int] | None = None  # on device, host, disk; None: none below it
    predicted_store: int | None = None  # tokens from a store that the pool shares
    cached_tiers: tuple[int, int, int] | None = None  # tiers of `cached_tokens`, as the engine reports
    new_tokens: int | None = None  # n
    # Set if the policy wanted the prompt computed on another instance:
    prefill_instance: str | None = None
    prefill_ms: float | None = None
    transfer_ms: float | None = None  # streams only: time to the decoder's first byte, the transfer and one step
    transfer_bytes: int | None = None  # predicted bytes that the decoder lacked
    offload: str | None = None  # ok, fallback (the decoder computed the prompt), ineligible, failed, cancelled
    offload_reason: str | None = None
    lent_by: str | None = None  # decoder whose blocks of the session's last answer the prefill took
    lent_tokens: int | None = None  # tokens of the prompt in them
    pull_ms: float | None = None  # predicted time of a pull; `prefill_ms` and `transfer_ms` are actual
    shadow: ShadowDecision | None = None  # sampled
    # Inputs of the last decision, for router/policy/replay.py; None without a decision:
    inputs: dict[str, Any] | None = None  # turn, draw, bound_to, history_tokens, prefix_key, rates
    candidates: Any = None  # one list per figure (router/policy/columns.py)


class TrafficEntry(RedisValue, tag=1, frozen=True, kw_only=True):
    """Stream weir:traffic, field t, beside p (the pool), written by routers: one finished request.

    Session and blocks are hashed with the salt in weir:traffic:salt; prompts are not kept.
    """

    at: float  # Unix s, of the arrival
    pool: str
    model: str = ""
    session: str = ""  # 16 hex digits; empty if unknown
    input_tokens: int  # reported by the engine, else estimated
    output_tokens: int | None = None
    block_tokens: int  # in a block of 2,048 prompt bytes: 512 at four bytes each
    blocks: bytes  # 8 bytes for each whole block: equal hash, equal prompt up to its end; base64 on the wire
    outcome: str
    policy: str = ""  # deciding policy, if any
    version: int = 0
    delivery: int = 0  # under way when the request was assigned; 0: none
    arm: str = ""  # arm of the delivery: candidate, control
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    band: int = 0  # band of priority
    tenant: str = ""  # 16 hex digits, of its API key or the client's address
