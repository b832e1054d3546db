"""Ways to serve a request: a flow sends it to engines and answers with the connection that carries the answer.

The policy decides between colocated and offload and names the instance for the prefill; how the KV gets from there to
the decoder is a fact of the fleet, the instances' connector. A new way is a file here and a line in `OFFLOADS`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from router.flows import bodies, colocated, mooncake_p2p, mooncake_store, nixl, parallel_pd
from router.http.errors import Refusal
from router.policy.types import Decision
from router.pool.endpoint import Lease, Member
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.response import Answering

# (call, instance for the prefill, instance that decodes, what becomes of it, body, new tokens of the prefill)
Flow = Callable[[Call, Member, Member, Offload, Mapping[str, Any], int], Awaitable[Answering]]
Again = Callable[[Call, Member, Offload, Mapping[str, Any]], Awaitable[Answering]]

OFFLOADS: dict[str, Flow] = {
    "nixl": nixl.serve,
    "mooncake_store": mooncake_store.serve,
    "mooncake_p2p": mooncake_p2p.serve,
    "neuron": parallel_pd.serve,
}
# Those whose blocks wait for any decoder: when the one could not be reached, another one gets them.
AGAIN: dict[str, Again] = {"nixl": nixl.again, "mooncake_store": mooncake_store.again}


async def serve(call: Call, decision: Decision, member: Member, lease: Lease) -> Answering:
    """What carries the answer; the caller releases it. Raises UpstreamError and Refusal."""
    before = call.offload
    if before is None and not decision.prefill:
        return await colocated.serve(call, member, call.pool.policy)
    way = _again(call, member, before) if before is not None else _offload(call, decision, member)
    try:
        answering = await way
    except PrefillFailed as error:
        _give_up(call, error)
        answering = None
    if answering is not None and call.flow != "colocated":
        return answering
    lease.charge(decision.new_tokens)
    return answering or await colocated.serve(call, member, call.pool.policy)


def _give_up(call: Call, error: PrefillFailed) -> None:
    """Refusal when the policy wants no fallback."""
    assert call.offload is not None  # noqa: S101 - narrows the type: only an offload raises it
    if call.pool.policy["failure.offload_fallback"] == "local":
        call.offload.local("fallback", str(error))
        return
    call.offload.local("failed", str(error))
    status, code = (504, "prefill_timeout") if error.timed_out else (502, "prefill_failed")
    raise Refusal(status, code, f"the prompt could not be computed: {error}") from None


async def _again(call: Call, member: Member, before: Offload) -> Answering | None:
    """After an attempt that failed: with the KV that is still held; None without."""
    again = AGAIN.get(before.connector)
    if before.kept is not None and again and member.connector == before.connector and member.id != before.prefill:
        return await again(call, member, before, before.kept)
    if before.outcome in ("", "ok"):
        before.local("fallback", "the instance that should have decoded failed")
    return None


async def _offload(call: Call, decision: Decision, member: Member) -> Answering | None:
    """None when it cannot be."""
    prefiller = call.pool.members.get(decision.prefill)
    offload = call.offload = Offload(member.connector, decision.prefill)
    document = orjson.loads(call.body)
    why = _unable(prefiller, member) or bodies.unsuited(document, call.endpoint, member.connector)
    if why or prefiller is None:
        offload.local("ineligible", why)
        return None
    flow = OFFLOADS[member.connector]
    return await flow(call, prefiller, member, offload, document, decision.prefill_new_tokens)


def _unable(prefiller: Member | None, member: Member) -> str:
    if prefiller is None:
        return "the instance for the prefill has left the fleet"
    if member.connector not in OFFLOADS or prefiller.connector != member.connector:
        return f"{prefiller.id} cannot hand KV over to {member.id}"
    return ""


__all__ = ["OFFLOADS", "serve"]
