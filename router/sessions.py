"""Sessions of requests: found here, else in Redis where the other routers put theirs; and what the policy is asked."""

import asyncio
import time

from router import wire
from router.affinity import Bound
from router.call import Call
from router.link import FAILURES, Link
from router.live import Live
from router.member import Member
from router.policy.types import Request
from router.prefix.chain import CHUNK_BYTES

LOOK_UP_S = 0.1  # a slow Redis costs a session its cache, not its time
RECHECK_S = 5.0  # with other routers about, a binding older than this may have moved


class Sessions:
    def __init__(self, link: Link, live: Live) -> None:
        self._link = link
        self._live = live

    def bind(self, call: Call) -> bool:
        """Find out which session the request belongs to; True when Redis is to be asked where that lives."""
        if call.session is None:
            call.session = call.pool.affinity.session_of_chain(call.chunks)
        bound = self._bound(call)
        if bound is not None and bound.used_at < call.at:
            call.pause_s = call.at - bound.used_at
        return call.session_shared and self._link.up and self._may_have_moved(bound, call.at)

    def _bound(self, call: Call) -> Bound | None:
        pool = call.pool
        if call.session is None:
            return None
        return pool.affinity.get(call.session, call.at, pool.policy["affinity.ttl_s"])

    def _may_have_moved(self, bound: Bound | None, now: float) -> bool:
        return bound is None or (self._live.others > 0 and now - bound.used_at > RECHECK_S)

    async def look_up(self, call: Call) -> None:
        """Take up what another router has written about the session."""
        pool, session = call.pool, call.session or ""
        before = self._bound(call)
        try:
            async with asyncio.timeout(LOOK_UP_S):
                instance = await self._link.get(wire.affinity_key(pool.name, session))
        except TimeoutError:
            return
        except FAILURES as error:
            self._link.failed(error)
            return
        if instance is not None and (before is None or before.instance != instance):
            pool.affinity.learned(session, instance, call.at)

    def request(self, call: Call) -> Request:
        """As the policy sees it, now: sessions move and prefixes come and go while a request waits."""
        bound = self._bound(call)
        return Request(
            prompt_tokens=call.prompt_tokens,
            session=call.session,
            bound_to=bound.instance if bound is not None else None,
            history_tokens=bound.history_tokens if bound is not None else 0,
            held=_held(call),
            turn=call.turn,
        )

    def sent(self, call: Call, member: Member) -> None:
        """The instance computes the prompt from now on, so it holds it, and the session lives there."""
        pool = call.pool
        pool.index.insert(member.id, member.epoch, call.chunks)
        if call.session is not None:
            ttl_s = pool.policy["affinity.ttl_s"]
            pool.affinity.bind(call.session, member.id, time.time(), ttl_s, shared=call.session_shared)


def _held(call: Call) -> dict[str, int]:
    """h_i by instance: matched chunks as tokens, in whole KV blocks."""
    pool, read = call.pool, call.prompt
    matched = pool.index.match(call.chunks)
    if not matched:
        return {}
    per_chunk = call.prompt_tokens * CHUNK_BYTES / len(read.rendered)
    held = {}
    for instance, chunks in matched.items():
        member = pool.members.get(instance)
        if member is not None:
            tokens = min(int(chunks * per_chunk), call.prompt_tokens)
            held[instance] = tokens - tokens % member.block_size
    return held
