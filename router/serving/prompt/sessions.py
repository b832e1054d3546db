"""Identifies a request's session, by this router's records or through other routers, and builds the policy's view of
the request."""

import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

import xxhash

from router.contract.redis.api_keys import PublishedKey
from router.contract.values.json_value import JsonObject
from router.policy.types import RoutingRequest
from router.pool.affinity import Bound
from router.pool.endpoint import Endpoint
from router.request import lending, predict
from router.request.call import Call
from router.serving.division import division


class SharedSessions(Protocol):
    """The sessions of other routers (router/sync/session_directory.py)."""

    def must_look_up(self, call: Call, bound: Bound | None) -> bool: ...

    async def look_up(self, call: Call) -> str | None: ...

    def sent(self, call: Call, endpoint: Endpoint) -> None: ...


DRAWN_CHARS: Final = 16  # length of a random id; sequential ids are shorter, or have Kimi's form functions.read:0
PREFIX_CHUNKS: Final = 4  # number of 256-byte chunks that must be equal for prompts to have the same beginning


class Sessions:
    def __init__(self, shared: SharedSessions | None = None) -> None:
        self._shared = shared

    def bind(self, call: Call) -> bool:
        """Identify the request's session; return True if `look_up` must be called."""
        if call.session is None:
            prompt, affinity = call.request.prompt, call.pool.affinity
            chunks = call.request.chunks
            call.session = (
                affinity.session_of_chain(chunks)
                if prompt.plain or "tools" not in prompt.document
                else affinity.session_of_calls(chunks, calls_of(prompt.document, call.key))
            )
        if call.session is not None:
            call.session_key = session_key(call.pool.name, call.session)
        pool, session = call.pool, call.session
        bound = pool.affinity.get(session, call.at, pool.policy["affinity.ttl_s"]) if session is not None else None
        if bound is not None and bound.used_at < call.at:
            call.pause_s = call.at - bound.used_at
        return self._shared is not None and self._shared.must_look_up(call, bound)

    async def look_up(self, call: Call) -> None:
        """Learn the session's instance from other routers."""
        instance = await self._shared.look_up(call) if self._shared is not None else None
        if instance is None:
            return
        pool, session = call.pool, call.session or ""
        bound = pool.affinity.get(session, call.at, pool.policy["affinity.ttl_s"])
        if bound is None or bound.instance != instance:
            pool.affinity.learned(session, instance, call.at)

    def request(self, call: Call) -> RoutingRequest:
        """Return the policy's view now, since sessions and prefixes change while a request waits."""
        pool, session = call.pool, call.session
        bound = pool.affinity.get(session, call.at, pool.policy["affinity.ttl_s"]) if session is not None else None
        held, tiers = predict.held(call)
        if pool.lendings.by_session:
            held = lending.priced(call, held, pool.rates)
        asked, tokens, rates = call.request, call.prediction.prompt_tokens, pool.rates
        bound_to, history_tokens = (bound.instance, bound.history_tokens) if bound is not None else (None, 0)
        # Hash of the prompt's beginning; too short to reveal the prompt in a receipt
        prefix_key = asked.chunks[:PREFIX_CHUNKS][-1] & 0xFFFF if asked.chunks else 0
        further: tuple[Any, ...] = division(call) if pool.decode_connectors is not None else ()
        if call.band:
            further = *division(call), call.band
        return RoutingRequest(  # positional, which takes less than half the time of keywords
            tokens, call.session_key, bound_to, history_tokens, held, tiers, rates, prefix_key, asked.turn, *further
        )

    def expect_cached(self, call: Call, endpoint: Endpoint) -> int:
        """Expect the prompt in the endpoint's cache and announce it to other routers. Return how many of its chunks
        were already expected there."""
        if self._shared is not None:
            self._shared.sent(call, endpoint)
        return call.pool.index.insert(endpoint.id, endpoint.epoch, call.request.chunks)

    def sent(self, call: Call, endpoint: Endpoint) -> None:
        """Note that the request is sent to this instance: bind the session, and expect the prompt in the instance's
        cache."""
        pool = call.pool
        if call.decision is not None and call.decision.pull_ms is not None:
            held = pool.index.match(call.request.chunks).get(endpoint.id, 0)
            predict.sent(call, endpoint, held, pulls=True)
        else:
            if self._shared is not None:  # inlined `expect_cached`
                self._shared.sent(call, endpoint)
            predict.sent(call, endpoint, pool.index.insert(endpoint.id, endpoint.epoch, call.request.chunks))
        if call.session is not None:
            ttl_s = pool.policy["affinity.ttl_s"]
            pool.affinity.bind(call.session, endpoint.id, time.time(), ttl_s, shared=call.request.session is not None)


def calls_of(document: JsonObject, key: PublishedKey | None) -> Iterator[int]:
    """Hash the ids of a conversation's tool calls, latest first; engines generate them at random. The latest id is
    followed by the positions of the turns since, counted from the prompt's end. Some clients rewrite or drop earlier
    turns."""
    turns = document.get("messages") or document.get("input")
    whose, latest = key.id if key is not None else "", ""
    for since, turn in enumerate(reversed(turns) if isinstance(turns, list) else ()):
        found = _call_id(turn)
        if found and found != latest:
            mark = xxhash.xxh3_64_intdigest(f"{whose}\0{found}".encode())
            yield mark
            if not latest:
                latest = found
                yield from range(mark + 1 + since, mark, -1)


def _call_id(turn: Any) -> str:
    """Return the id of a turn's first call; empty if there is none, or if it is sequential instead of random."""
    if type(turn) is not dict:
        return ""
    found = turn.get("call_id")
    if found is None:
        calls = turn.get("tool_calls") or turn.get("content")
        ids = (each.get("id") for each in calls if type(each) is dict) if isinstance(calls, list) else ()
        found = next(filter(None, ids), None)
    return found if isinstance(found, str) and len(found) >= DRAWN_CHARS and ":" not in found else ""


def session_key(pool: str, session: str) -> str:
    """Hash the session for policies and receipts, because its id may name a person."""
    return xxhash.xxh64_hexdigest(f"{pool}\0{session}".encode("utf-8", "surrogatepass"))
