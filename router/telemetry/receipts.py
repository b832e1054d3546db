"""Builds receipts, which record a decision and its outcome (router/contract/redis/receipt.py).
Receipts are dictionaries here: building a Receipt of 40 fields for each request takes twice as long.
"""

from types import SimpleNamespace
from typing import Any

import orjson
from msgspec import to_builtins

from router.contract.redis.receipt import Receipt
from router.contract.values.json_value import JsonObject
from router.policy.candidates import Candidates
from router.policy.reasons import InWords, in_words
from router.request.call import Call
from router.request.offload import Offload
from router.upstream.answer.used import Usage

SCHEMA = Receipt.__struct_config__.tag
# Placeholder for the decision of a request that was rejected before it
_UNDECIDED: Any = SimpleNamespace(
    strategy=None, request_class=None, instance=None, rule=None, reasons=(), cached_tokens=None, new_tokens=None
)
_UNTOLD = Usage()


def receipt(call: Call, router: str, *, worded: bool = True) -> dict[str, Any]:
    """Return the receipt without the inputs of the decision. Without `worded`, the reader of the receipt formats the
    reasons, since formatting takes a tenth of a request's instructions."""
    outcome = call.outcome
    usage = outcome.usage or _UNTOLD
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "request_id": call.id,
        "at": call.at,
        "router": router,
        "pool": call.pool.name or None,
        "model": call.pool.model or None,
        "endpoint": call.api_path,
        "policy": call.policy,
        "version": call.version,
        "session": call.session_key,
        "key": call.key.name if call.key is not None else None,
        "prompt_tokens": call.prediction.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "actual_prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "retries": outcome.retries,
        "attempts": _attempts(call),
        "stream": outcome.streamed,
        "status": outcome.status,
        "outcome": outcome.label,
        "result": outcome.result,
        "fault": outcome.fault,
        "error": outcome.error,
        "code": outcome.code,
        "queue_ms": _rounded(outcome.queued_s * 1000),
        "first_byte_ms": None if outcome.first_byte is None else _rounded((outcome.first_byte - call.started) * 1000),
        "ttft_ms": _rounded(outcome.ttft_ms),
        "tpot_ms": _rounded(outcome.tpot_ms),
        "e2e_ms": _rounded(outcome.e2e_ms),
    }
    _add_decision(made, call, worded)
    _add_circumstances(made, call)
    _add_further(made, call, usage)
    return made


def _attempts(call: Call) -> list[dict[str, Any]]:
    """Return the attempts. The last attempt has the request's result, unless the attempt itself failed."""
    made: list[dict[str, Any]] = []
    for attempt in call.outcome.attempts:
        result = attempt.result
        if result in (None, "served") and attempt is call.outcome.attempts[-1]:
            result = call.outcome.result
        made.append({"instance": attempt.instance, "status": attempt.status, "result": result, "error": attempt.error})
    return made


def _add_decision(made: dict[str, Any], call: Call, worded: bool) -> None:
    is_made, decision = call.decision is not None, call.decision or _UNDECIDED
    made["strategy"] = decision.strategy
    made["class"] = decision.request_class
    made["flow"] = call.outcome.flow if is_made else None
    made["instance"] = decision.instance or None
    made["rule"] = decision.rule
    reasons: InWords = decision.reasons
    if worded or isinstance(reasons, tuple):
        made["reasons"] = in_words(reasons)
    else:
        made["price"] = reasons.make(*reasons.given)
    made["index"] = call.prediction.index if is_made else None
    made["predicted_cached"] = decision.cached_tokens
    made["new_tokens"] = decision.new_tokens


def _add_further(made: dict[str, Any], call: Call, usage: Usage) -> None:
    """Add fields that most requests lack."""
    if call.prediction.why:
        made["index_reason"] = call.prediction.why
    if call.prediction.tiers is not None:
        made["predicted_tiers"] = call.prediction.tiers
    if call.prediction.store_tokens:
        made["predicted_store"] = call.prediction.store_tokens
    if usage.cached_tiers is not None:
        made["cached_tiers"] = usage.cached_tiers
    if call.alias is not None:
        made |= {"model": call.alias.serves, "alias": call.alias.name, "target_reason": call.alias.why}
    if call.assigned is not None:
        made |= {"delivery": call.assigned.delivery, "arm": call.assigned.arm}
        if call.shadow is not None:
            made["shadow"] = to_builtins(call.shadow)


def _add_circumstances(made: dict[str, Any], call: Call) -> None:
    """Add names, waiting times and offload, for requests that have them."""
    if call.own_id != call.id and call.own_id:
        made["own_id"] = call.own_id
    if call.session_by:
        made["session_by"] = call.session_by
    if call.adapter:
        made["adapter"] = call.adapter
    if call.asked_band.by or call.outcome.held_s:
        made |= _of_waiting(call)
    if call.outcome.offload is not None:
        made |= _offload(call.outcome.offload)


def _of_waiting(call: Call) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if call.asked_band.by:
        made |= {"band": call.band, "band_asked": call.asked_band.band, "band_asked_by": call.asked_band.by}
    if call.outcome.held_s:
        made["wake_ms"] = _rounded(call.outcome.held_s * 1000)
    return made


def _offload(offload: Offload) -> JsonObject:
    """Return the offload's part of the receipt."""
    made: JsonObject = {
        "prefill_instance": offload.prefill,
        "prefill_ms": _rounded(offload.prefill_ms),
        "transfer_ms": _rounded(offload.transfer_ms),
        "transfer_bytes": offload.transfer_bytes,
        "offload": offload.outcome or "cancelled",
        "offload_reason": offload.reason,
    }
    if offload.lent_by:
        made |= {"lent_by": offload.lent_by, "lent_tokens": offload.lent_tokens}
    if offload.pull_ms is not None:
        made["pull_ms"] = _rounded(offload.pull_ms)
    return made


def encoded(call: Call, router: str, *, worded: bool = False) -> tuple[bytes, bytes]:
    """Return the receipt as JSON without the decision's inputs, and the inputs as further JSON fields up to the
    closing brace. The latter is empty without a decision."""
    brief = orjson.dumps(receipt(call, router, worded=worded))
    candidates = call.decision.candidates if call.decision is not None else None
    if not isinstance(candidates, Candidates):
        return brief, b""
    return brief, orjson.dumps({"inputs": candidates.inputs(), "candidates": candidates.columns()})[1:]


def whole(call: Call, router: str, earlier: Call | None = None) -> bytes:
    """Return the whole receipt. `earlier` names the receipt of the previous request with the same id."""
    brief, further = encoded(call, router, worded=True)
    parts = [brief[:-1], *([b'"earlier":"%b"' % name(earlier).encode()] if earlier is not None else ())]
    return b",".join([*parts, further]) if further else b",".join(parts) + b"}"


def name(call: Call) -> str:
    """Return the name under which a receipt is kept when a later request reuses its id."""
    return call.own_id if call.own_id != call.id else f"{call.id}~earlier"


def _rounded(value: float | None) -> float | None:
    """Round to three decimals; round() is slower, because it goes through text."""
    return int(value * 1000 + 0.5) / 1000 if value is not None else None
