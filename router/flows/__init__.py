"""Flows: ways to serve a request. Each flow sends the request to engines and returns the connection with the answer.
The policy decides between colocated and offload, and chooses the instance for the prefill. How KV moves from there to
the decoder depends on the instances' connector, which the fleet sets. A new flow is a file here and a line in
`OFFLOADS`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection

import orjson

from router.contract import connectors
from router.flows import bodies, mooncake, nixl, parallel_pd, sglang, trtllm
from router.flows.decode import decode
from router.flows.post import post
from router.http.errors import ErrorResponse
from router.policy.types import KV_UNKNOWN, Decision
from router.pool.endpoint import Endpoint
from router.pool.lease import Lease
from router.pool.load.pull import Pull
from router.pool.load.unheld import Unheld
from router.request import fault
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.tokenize.prompt import TOO_DEEP
from router.upstream.response import EngineResponse

# (call, prefill instance, decoder, the offload's record, new tokens of the prefill)
Flow = Callable[[Call, Endpoint, Endpoint, Offload, int], Awaitable[EngineResponse]]

OFFLOADS: dict[str, Flow] = {
    connectors.NIXL: nixl.serve,
    connectors.MOONCAKE_STORE: mooncake.through_store,
    connectors.MOONCAKE_P2P: mooncake.from_peer,
    connectors.NEURON: parallel_pd.serve,
    connectors.TRTLLM: trtllm.serve,
    connectors.SGLANG: sglang.serve,
}


def serve(call: Call, decision: Decision, endpoint: Endpoint, lease: Lease) -> Awaitable[EngineResponse]:
    """Return the connection with the answer; the caller releases it.
    Raise UpstreamError, ErrorResponse, and PrefillFailed if the decoder must not compute the prompt itself.
    """
    before = call.outcome.offload
    if before is None and not decision.prefill:
        return post(call, endpoint, call.request.body) if endpoint.role != "decode" else _alone(call, endpoint)
    return _with_others(call, decision, endpoint, lease, before)


async def _with_others(
    call: Call, decision: Decision, endpoint: Endpoint, lease: Lease, before: Offload | None
) -> EngineResponse:
    way = _again(call, decision, endpoint, before) if before is not None else _offload(call, decision, endpoint)
    try:
        answering = await way
    except PrefillFailed as error:
        if not _falls_back(call, endpoint, error):
            raise
        answering = None
    finally:
        if (offload := call.outcome.offload) is not None:
            offload.computed()
    if answering is not None and call.outcome.flow != "colocated":
        return answering
    if (offload := call.outcome.offload) is not None and offload.pull is not None:
        offload.pull.over()
    lease.charge(decision.new_tokens)
    return answering or await _alone(call, endpoint)


def _alone(call: Call, endpoint: Endpoint) -> Awaitable[EngineResponse]:
    """Let the instance compute the prompt itself; refuse if it only decodes, because it would wait forever."""
    if endpoint.role == "decode":
        why = call.outcome.offload.reason if call.outcome.offload is not None else "no instance computes the prompt"
        message = f"{endpoint.id} only decodes: {why}: retry in 1 s"
        raise ErrorResponse(503, "no_instance_ready", message, retry_after_s=1)
    return post(call, endpoint, call.request.body)


def _falls_back(call: Call, endpoint: Endpoint, error: PrefillFailed) -> bool:
    """Return whether the decoder may compute the prompt itself: not if it only decodes or the policy forbids the
    fallback."""
    assert call.outcome.offload is not None  # noqa: S101 - narrows the type: only an offload raises it
    allowed = call.rules["failure.offload_fallback"] == "local" and endpoint.role != "decode"
    allowed = allowed and not fault.is_spent(call)
    call.outcome.offload.local("fallback" if allowed else "failed", str(error))
    return allowed


async def _again(call: Call, decision: Decision, endpoint: Endpoint, before: Offload) -> EngineResponse | None:
    """After a failed attempt, decode with the KV that the prefill instance still holds; None if it holds none. For an
    instance that only decodes, offload again instead.
    """
    if before.kept is not None and endpoint.connector == before.connector and endpoint.id != before.prefill:
        return await decode(call, endpoint, before, before.kept)
    if decision.prefill and endpoint.role == "decode":
        return await _offload(call, decision, endpoint)
    if before.outcome in ("", "ok"):
        before.local("fallback", "the decoder failed")
    return None


async def _offload(call: Call, decision: Decision, endpoint: Endpoint) -> EngineResponse | None:
    """Offload the request; None if it cannot be offloaded."""
    prefiller = call.pool.endpoints.get(decision.prefill)
    reason = call.outcome.offload.reason if call.outcome.offload is not None else ""  # reason for an earlier attempt
    offload = Offload(endpoint.connector, decision.prefill, reason=reason, pull_ms=decision.pull_ms)
    call.outcome.offload = offload
    document = call.request.prompt.document
    why = _unable(prefiller, endpoint) or bodies.unsuited(document, call.api_path, endpoint.connector)
    if why or prefiller is None:
        offload.local("ineligible", why)
        return None
    offload.unheld = Unheld(endpoint)
    if decision.pull_ms is not None:
        offload.pull = Pull(prefiller, endpoint, decision.pull_tokens)
    try:
        return await _through(call, decision, prefiller, endpoint, offload)
    except orjson.JSONEncodeError:  # a field outside the prompt is nested too deeply
        offload.local("ineligible", TOO_DEEP)
        return None


async def _through(
    call: Call, decision: Decision, prefiller: Endpoint, endpoint: Endpoint, offload: Offload
) -> EngineResponse:
    """Retry failed prefills on other instances, as often as the policy allows. A pull is never retried, because it
    needs the instance that holds the KV.
    """
    flow = OFFLOADS[endpoint.connector]
    tokens, tried = decision.prefill_new_tokens, {endpoint.id, prefiller.id}
    left: int = call.rules["failure.retries"]
    while True:
        try:
            return await flow(call, prefiller, endpoint, offload, tokens)
        except PrefillFailed as error:
            moves = error.elsewhere and left > 0 and offload.pull_ms is None and not fault.is_spent(call)
            another = _another(call, endpoint, tried) if moves else None
            if another is None:
                raise
            offload.moved(another.id, str(error))
        prefiller, left = another, left - 1
        tried.add(prefiller.id)
        known = (one.new_tokens for one in decision.candidates if one.id == prefiller.id)
        tokens = next(known, call.prediction.prompt_tokens)


def _another(call: Call, decoder: Endpoint, tried: Collection[str]) -> Endpoint | None:
    """Return the instance for another prefill with the least queued work; None for a fixed pair."""
    if decoder.kv.pair or decoder.kv.peer:
        return None
    now, open_s = asyncio.get_running_loop().time(), call.rules["failure.breaker_open_s"]
    able = [
        one
        for one in call.pool.endpoints.values()
        if one.connector == decoder.connector
        and one.role != "decode"
        and one.id not in tried
        and (not call.adapter or call.adapter not in call.pool.adapters or call.adapter in one.adapters)
        and not one.refusal(now, open_s)
    ]
    return min(able, key=lambda one: (one.kv_usage == KV_UNKNOWN, one.view("").prefill_tokens), default=None)


def _unable(prefiller: Endpoint | None, endpoint: Endpoint) -> str:
    if prefiller is None:
        return "the prefill instance has left the fleet"
    if endpoint.connector not in OFFLOADS or prefiller.connector != endpoint.connector:
        return f"{prefiller.id} cannot transfer KV to {endpoint.id}"
    if prefiller.role != "prefill" and connectors.CONNECTORS[endpoint.connector].needs_prefill_role:
        return f"{prefiller.id} is not a prefill-only instance, which {endpoint.connector} needs"
    if endpoint.kv.pair not in ("", prefiller.id):
        return f"{endpoint.id} takes KV from {endpoint.kv.pair} only"
    return ""


__all__ = ["OFFLOADS", "serve"]
