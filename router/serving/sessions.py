"""Sessions of requests: found here, else where other routers put theirs; and what the policy is asked."""

import time
from collections.abc import Sequence
from typing import Protocol

import xxhash

from router.policy.types import RoutingRequest
from router.pool.affinity import Bound
from router.pool.endpoint import Endpoint
from router.request import predict
from router.request.call import Call


class Elsewhere(Protocol):
    """What other routers know of sessions (directory.py)."""

    def is_to_be_asked(self, call: Call, bound: Bound | None) -> bool: ...

    async def look_up(self, call: Call) -> str | None: ...

    def sent(self, call: Call, endpoint: Endpoint) -> None: ...


PREFIX_CHUNKS = 4  # of 256 bytes: prompts that are alike in these begin alike


class Sessions:
    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere

    def bind(self, call: Call) -> bool:
        """Find out which session the request belongs to; True when `look_up` is to be called for it."""
        if call.session is None:
            call.session = call.pool.affinity.session_of_chain(call.request.chunks)
        if call.session is not None:
            call.session_key = session_key(call.pool.name, call.session)
        bound = self._bound(call)
        if bound is not None and bound.used_at < call.at:
            call.pause_s = call.at - bound.used_at
        return self._elsewhere is not None and self._elsewhere.is_to_be_asked(call, bound)

    def _bound(self, call: Call) -> Bound | None:
        pool = call.pool
        if call.session is None:
            return None
        return pool.affinity.get(call.session, call.at, pool.policy["affinity.ttl_s"])

    async def look_up(self, call: Call) -> None:
        """Take up what another router knows of the session."""
        instance = await self._elsewhere.look_up(call) if self._elsewhere is not None else None
        if instance is None:
            return
        bound = self._bound(call)
        if bound is None or bound.instance != instance:
            call.pool.affinity.learned(call.session or "", instance, call.at)

    def request(self, call: Call) -> RoutingRequest:
        """As the policy sees it, now: sessions move and prefixes come and go while a request waits."""
        bound = self._bound(call)
        held, tiers = predict.held(call)
        asked, tokens = call.request, call.prediction.prompt_tokens
        bound_to, history_tokens = (bound.instance, bound.history_tokens) if bound is not None else (None, 0)
        prefix_key, rates = _prefix_key(asked.chunks), call.pool.rates
        return RoutingRequest(  # by place: by name it would take more than twice as long
            tokens, call.session_key, bound_to, history_tokens, held, tiers, rates, prefix_key, asked.turn
        )

    def sent(self, call: Call, endpoint: Endpoint) -> None:
        """The instance computes the prompt from now on, so it holds it, and the session lives there."""
        pool = call.pool
        predict.sent(call, endpoint, pool.index.insert(endpoint.id, endpoint.epoch, call.request.chunks))
        if self._elsewhere is not None:
            self._elsewhere.sent(call, endpoint)
        if call.session is not None:
            ttl_s = pool.policy["affinity.ttl_s"]
            pool.affinity.bind(call.session, endpoint.id, time.time(), ttl_s, shared=call.request.session is not None)


def session_key(pool: str, session: str) -> str:
    """Told apart, not told: the name may be a person's. Policies and receipts know the session by this."""
    return xxhash.xxh64_hexdigest(f"{pool}\0{session}".encode("utf-8", "surrogatepass"))


def _prefix_key(chunks: Sequence[int]) -> int:
    """Of the prompt's beginning; short, so that a receipt does not tell what the prompt was."""
    return chunks[:PREFIX_CHUNKS][-1] & 0xFFFF if chunks else 0
