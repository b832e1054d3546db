"""Receipts: the record of one decision and what came of it (shape: wire.py)."""

from typing import Any

import orjson

from router import wire
from router.call import Call
from router.policy.candidates import Candidates


def receipt(call: Call, router: str) -> dict[str, Any]:
    """Everything but what the decision was made from."""
    usage, decision = call.usage, call.decision
    made: dict[str, Any] = {
        "schema": wire.SCHEMA,
        "request_id": call.id,
        "at": call.at,
        "router": router,
        "pool": call.pool.name or None,
        "model": call.pool.model or None,
        "endpoint": call.endpoint,
        "policy": call.policy,
        "version": call.version,
        "session": call.session_key,
        "key": call.key.name if call.key is not None else None,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": usage.cached_tokens if usage is not None else None,
        "actual_prompt_tokens": usage.prompt_tokens if usage is not None else None,
        "output_tokens": usage.output_tokens if usage is not None else None,
        "retries": call.retries,
        "attempts": [
            {"instance": attempt.instance, "status": attempt.status, "error": attempt.error}
            for attempt in call.attempts
        ],
        "stream": call.streamed,
        "status": call.status,
        "outcome": call.outcome,
        "error": call.error,
        "code": call.code,
        "queue_ms": round(call.queued_s * 1000, 3),
        "first_byte_ms": _ms(call, call.first_byte),
        "ttft_ms": _rounded(call.ttft_ms),
        "tpot_ms": _rounded(call.tpot_ms),
        "e2e_ms": _rounded(call.e2e_ms),
    }
    if decision is not None:
        made |= {
            "route": decision.route,
            "class": decision.request_class,
            "flow": call.flow,
            "instance": decision.instance or None,
            "rule": decision.rule,
            "reasons": decision.reasons,
            "index": call.index,
            "predicted_cached": decision.cached_tokens,
            "new_tokens": decision.new_tokens,
        }
        made |= _offload(call)
    else:
        names = ("route", "class", "flow", "instance", "rule", "index", "predicted_cached", "new_tokens")
        made |= {**dict.fromkeys(names), "reasons": ()}
    return made


def _offload(call: Call) -> dict[str, Any]:
    """Of a prefill elsewhere; nothing when the policy did not want one."""
    offload = call.offload
    if offload is None:
        return {}
    return {
        "prefill_instance": offload.prefill,
        "prefill_ms": _rounded(offload.prefill_ms),
        "transfer_ms": _rounded(offload.transfer_ms),
        "transfer_bytes": offload.transfer_bytes,
        "offload": offload.outcome or "cancelled",
        "offload_reason": offload.reason,
    }


def encoded(call: Call, router: str) -> tuple[str, bytes, bytes]:
    """(request id, the whole receipt, the same without what the decision was made from), as JSON."""
    short = receipt(call, router)
    brief = orjson.dumps(short)
    candidates = call.decision.candidates if call.decision is not None else None
    if not isinstance(candidates, Candidates):
        return call.id, brief, brief
    made_from = orjson.dumps({"inputs": candidates.inputs(), "candidates": candidates.columns()})
    return call.id, b"%b,%b" % (brief[:-1], made_from[1:]), brief


def _ms(call: Call, moment: float | None) -> float | None:
    return _rounded((moment - call.started) * 1000) if moment is not None else None


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if value is not None else None
