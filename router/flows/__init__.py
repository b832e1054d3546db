"""Ways to serve a request: a flow sends it to engines and answers with the connection that carries the answer.

The policy decides between colocated and offload and names the instance for the prefill; how the KV gets from there to
the decoder is a fact of the fleet, the instances' connector. A new way is a file here and a line in `OFFLOADS`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from router.call import Call
from router.connection import Connection
from router.errors import Refusal
from router.flows import bodies, colocated, mooncake_store, nixl
from router.member import Lease, Member
from router.offload import Offload, PrefillFailed
from router.policy.types import Decision

# (call, instance for the prefill, instance that decodes, what becomes of it, body, new tokens of the prefill)
Flow = Callable[[Call, Member, Member, Offload, Mapping[str, Any], int], Awaitable[Connection]]
Again = Callable[[Call, Member, Offload, Mapping[str, Any]], Awaitable[Connection]]

OFFLOADS: dict[str, Flow] = {"nixl": nixl.serve, "mooncake_store": mooncake_store.serve}
# Those whose blocks wait for any decoder: when the one could not be reached, another one gets them.
AGAIN: dict[str, Again] = {"nixl": nixl.again, "mooncake_store": mooncake_store.again}


async def serve(call: Call, decision: Decision, member: Member, lease: Lease) -> Connection:
    """The connection that carries the answer; the caller releases it. Raises UpstreamError and Refusal."""
    before = call.offload
    if before is None and not decision.prefill:
        return await colocated.serve(call, member, call.pool.policy)
    if before is not None:
        return await _again(call, decision, member, lease, before)
    return await _offload(call, decision, member, lease)


async def _again(call: Call, decision: Decision, member: Member, lease: Lease, before: Offload) -> Connection:
    """After an attempt that failed: with the KV that is still held, else without."""
    again = AGAIN.get(before.connector)
    if before.kept is not None and again and member.connector == before.connector and member.id != before.prefill:
        return await again(call, member, before, before.kept)
    if before.outcome in ("", "ok"):
        before.local("fallback", "the instance that should have decoded failed")
    return await _here(call, decision, member, lease)


async def _here(call: Call, decision: Decision, member: Member, lease: Lease) -> Connection:
    lease.charge(decision.new_tokens)
    return await colocated.serve(call, member, call.pool.policy)


async def _offload(call: Call, decision: Decision, member: Member, lease: Lease) -> Connection:
    pool = call.pool
    prefiller = pool.members.get(decision.prefill)
    offload = call.offload = Offload(member.connector, decision.prefill)
    document = orjson.loads(call.body)
    why = bodies.unsuited(document, call.endpoint) or _unable(prefiller, member)
    if why or prefiller is None:
        offload.local("ineligible", why)
        return await _here(call, decision, member, lease)
    try:
        flow = OFFLOADS[member.connector]
        connection = await flow(call, prefiller, member, offload, document, decision.prefill_new_tokens)
    except PrefillFailed as error:
        if pool.policy["failure.offload_fallback"] == "fail":
            offload.local("failed", str(error))
            status, code = (504, "prefill_timeout") if error.timed_out else (502, "prefill_failed")
            raise Refusal(status, code, f"the prompt could not be computed: {error}") from None
        offload.local("fallback", str(error))
        return await _here(call, decision, member, lease)
    if offload.outcome != "ok":
        lease.charge(decision.new_tokens)
    return connection


def _unable(prefiller: Member | None, member: Member) -> str:
    if prefiller is None:
        return "the instance for the prefill has left the fleet"
    if member.connector not in OFFLOADS or prefiller.connector != member.connector:
        return f"{prefiller.id} cannot hand KV over to {member.id}"
    return ""


__all__ = ["OFFLOADS", "serve"]
