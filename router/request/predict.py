"""Predicts how much of a prompt each instance has cached, by the index in use, and learns from answers."""

import asyncio
import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

from router.pool.endpoint import Endpoint
from router.pool.kv_event_state import KvEventState, Outcomes, SharedIndex, UnderWay
from router.prefix.belief import Belief
from router.prefix.blocks import TOKEN_BYTES, Medium, extra_keys, keys_ahead, linked, media_keys, part_hashes
from router.prefix.chain import CHUNK_BYTES
from router.prefix.exact.groups import EVERYONE, NONE
from router.prefix.exact.index import NO_PARTS, NOTHING, ExactIndex
from router.prefix.exact.stretches import Tokens as Tiers
from router.prefix.request_kind import ASKS_PROMPT, kind_of, reads_cache
from router.request.call import Call
from router.tokenize import salt
from router.tokenize.tokenizer import EngineRenders, NotTokenized

LONGEST_WHY: Final = 200  # characters
SHORT = Belief("approximate", "its prompt was not read as tokens", "request")
LATE = Belief("approximate", "the index process did not answer in time", "index_process")
NO_RULES: Mapping[str, int] = {}
_APPROXIMATE = ("approximate",)
_NOT_NONE = ("approximate", "exact")


def read_tokens(call: Call) -> bool:
    """Tokenize the prompt if instances publish KV events. Return False if that would take long; then call
    `read_slowly`."""
    reader = call.pool.kv_event_state.reader
    prompt, prediction = call.request.prompt, call.prediction
    prediction.kind = kind_of(call.api_path, prompt.document, plain=prompt.plain)
    prediction.reads_cache = ASKS_PROMPT.isdisjoint(prompt.document) or reads_cache(prompt.document)
    if reader is None or not call.pool.kv_event_state.sizes or not prompt.rendered:
        return True
    if not reader.is_quick(prompt):
        return False
    _hash_blocks(call)
    return True


async def read_slowly(call: Call) -> None:
    """Tokenize in a thread, so that the event loop stays free."""
    await asyncio.get_running_loop().run_in_executor(_thread(), _hash_blocks, call)


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="tokenize")  # a single thread, whose cache needs no lock


def _hash_blocks(call: Call) -> None:
    state, prediction = call.pool.kv_event_state, call.prediction
    if state.reader is None or state.known is None:
        return
    try:
        tokens = state.reader.tokens(call.request.prompt, call.api_path)
    except (NotTokenized, RecursionError) as why:
        state.untokenized += 1
        prediction.untokenized = str(why)[:LONGEST_WHY]
        prediction.engine_renders = isinstance(why, EngineRenders)
        return
    take(call, tokens)


def take(call: Call, tokens: bytes, media: Sequence[Medium] = ()) -> None:
    """Take the prompt's tokens and hash their blocks."""
    state, document = call.pool.kv_event_state, call.request.prompt.document
    index = state.known
    if index is None:
        return
    call.prediction.prompt_tokens = length = len(tokens) // TOKEN_BYTES
    adapter, salted, seed = call.adapter, salt.of(document), index.seed
    if salted and state.reader is not None and call.api_path in state.reader.unsalted:
        salted = ""
    ahead, hashes, parts = state.ahead, [], {}

    def keys(size: int, blocks: int) -> Sequence[bytes]:
        own = media_keys(adapter, salted, blocks, size, media, ahead) if media else extra_keys(adapter, salted, blocks)
        return keys_ahead(tokens, blocks, size, ahead, own) if ahead else own

    for size in state.sizes:
        # An engine computes at least one prompt token, to produce the first new one.
        whole = max(length - max(ahead, 1), 0) // size
        own = _hashed(state, tokens[: whole * size * TOKEN_BYTES], size, seed, keys(size, whole))
        hashes.append((size, own))
        if state.parts:
            parts[size] = {
                size // part: part_hashes(tokens, size, size // part, own, seed, keys(part, whole * size // part))
                for part in state.parts
                if part < size and not size % part
            }
    call.prediction.block_hashes, call.prediction.parts = tuple(hashes), parts


def _hashed(state: KvEventState, tokens: bytes, size: int, seed: int, extras: Sequence[bytes]) -> Sequence[int]:
    return linked(tokens, size, seed, extras) if extras else state.hashes(tokens, size, seed)


async def ask(call: Call, shared: SharedIndex) -> None:
    """Look the prompt up in the index processes; if they do not answer, the approximate index is used."""
    prediction = call.prediction
    if not prediction.block_hashes:
        return
    rules = call.pool.kv_event_state.rules.get(prediction.kind, NO_RULES)
    prediction.looked_up = looked_up = await shared.look_up(prediction.block_hashes, prediction.parts, rules)
    if looked_up is None:
        prediction.block_hashes = ()
    else:
        prediction.exactly = looked_up.held


def held(call: Call) -> tuple[Mapping[str, int], Mapping[str, Tiers] | None]:
    """Return tokens by instance, and by tier if some are below the device; instances without any are omitted."""
    prediction, pool = call.prediction, call.pool
    if not prediction.reads_cache:
        return {}, None
    if prediction.block_hashes and (index := pool.kv_event_state.known) is not None:
        return _exactly(call, index)
    size = pool.block_size
    if not size or pool.kv_event_state.some_unknown:
        return _approximate(call, _NOT_NONE), None
    # For all instances, even those that use the exact index
    tokens, length = CHUNK_BYTES * prediction.prompt_tokens, len(call.request.prompt.rendered) or 1
    return pool.index.tokens(call.request.chunks, tokens, length, block_size=size), None


def _exactly(call: Call, index: ExactIndex | SharedIndex) -> tuple[Mapping[str, int], Mapping[str, Tiers] | None]:
    state, endpoints, prediction = call.pool.kv_event_state, call.pool.endpoints, call.prediction
    found = prediction.exactly
    if isinstance(index, ExactIndex):
        prediction.asked_at = now = time.monotonic()
        prediction.exactly = found = {}
        rules = index.rules(state.rules.get(prediction.kind, NO_RULES)) if state.rules else EVERYONE
        for size, hashes in prediction.block_hashes:
            found |= index.look_up(hashes, size, now, prediction.parts.get(size, NO_PARTS), rules)
    if state.reach and (reach := state.reach.get(prediction.kind) or state.reach.get("")):
        prediction.exactly = found = _within(found, reach)
    if state.believed_of_all:
        return {name: sum(tiers) for name, tiers in found.items()}, found if index.has_lower else None
    tiers = {
        name: tokens
        for name, tokens in found.items()
        if name in endpoints and endpoints[name].index_for(prediction.kind) == "exact"
    }
    known = _approximate(call, _APPROXIMATE) | {name: sum(tokens) for name, tokens in tiers.items()}
    return known, tiers if index.has_lower else None


def _approximate(call: Call, believed: Container[str]) -> dict[str, int]:
    """Return tokens by instance for instances whose index in use is among `believed`."""
    found: dict[str, int] = {}
    endpoints, kind = call.pool.endpoints, call.prediction.kind
    for chunks, names in call.pool.index.holders(call.request.chunks):
        tokens = _tokens(call, chunks)
        for name in names:
            endpoint = endpoints.get(name)
            if endpoint is not None and endpoint.index_for(kind) in believed:
                found[name] = tokens - tokens % endpoint.block_size
    return found


def _tokens(call: Call, chunks: int) -> int:
    """Estimate the tokens in the first chunks of the prompt."""
    return chunks * CHUNK_BYTES * call.prediction.prompt_tokens // len(call.request.prompt.rendered) if chunks else 0


def sent(call: Call, endpoint: Endpoint, chunks: int, *, pulls: bool = False) -> None:
    """Note that the request is sent to this instance, which holds `chunks` of it by the approximate index. Pulled KV
    counts as held only once it has arrived."""
    tokens, prediction = _tokens(call, chunks), call.prediction
    belief = endpoint.belief_for(prediction.kind) if endpoint.beliefs else endpoint.belief
    if not prediction.block_hashes and belief.index == "exact":
        belief = _without_tokens(call)
    index = prediction.index = belief.index
    if belief.reason or prediction.reason:  # may have been set by an earlier attempt
        prediction.reason, prediction.why = belief.reason, belief.why[:LONGEST_WHY]
    call.pool.kv_event_state.in_force[index, belief.reason] += 1
    prediction.approximate_tokens = tokens - tokens % endpoint.block_size
    if not prediction.block_hashes:
        return
    tiers = prediction.exactly.get(endpoint.id, NOTHING)
    prediction.exact_tokens = sum(tiers)
    prediction.shortened = endpoint.by_kind.short_of(prediction.kind) if endpoint.id in prediction.exactly else 0
    prediction.tiers = tiers if index == "exact" and (tiers[1] or tiers[2]) else None
    prediction.store_tokens = tiers[1] + tiers[2] if prediction.tiers is not None and endpoint.shares_store else 0
    if not pulls:
        prediction.under_way = computing(call, endpoint)


def _without_tokens(call: Call) -> Belief:
    """Return why the instance's exact index cannot be used; it also requires the request's tokens."""
    if call.prediction.untokenized:
        return Belief("approximate", call.prediction.untokenized, "request")
    state = call.pool.kv_event_state
    if state.no_tokens:
        return Belief("approximate", state.no_tokens, "tokenizer")
    return LATE if state.shared is not None else SHORT


def computing(call: Call, endpoint: Endpoint) -> UnderWay | None:
    """Note that the instance computes the prompt, for itself or for a decoder. Pass the result to `over`."""
    feed, index, prediction = endpoint.feed, call.pool.kv_event_state.index, call.prediction
    if feed is None:
        return None
    size = feed.block_size or endpoint.block_size
    hashes = next((hashes for known, hashes in prediction.block_hashes if known == size), None)
    if not hashes:
        return None
    foreseen = prediction.exactly.get(endpoint.id, NOTHING)[0] // size
    by_kind = endpoint.by_kind
    if asks := by_kind.asks > 0:
        by_kind.asks -= 1
    if prediction.looked_up is not None:
        return prediction.looked_up.sent(endpoint.id, size, foreseen, speculating=asks)
    if index is None:
        return None
    sent = index.sent(endpoint.id, hashes, foreseen)
    if asks:
        sent.by_rule = index.by_rule(endpoint.id, hashes, size, prediction.parts.get(size, NO_PARTS), foreseen)
    return sent


def over(sent: UnderWay | None) -> None:
    if sent is not None:
        sent.over(time.monotonic())


def _within(found: Mapping[str, Tiers], reach: Mapping[str, tuple[int, int]]) -> dict[str, Tiers]:
    """Deduct tokens that engines recompute although they hold them, and parts of chunks below the device, which are
    only loaded as a whole."""
    shorter = dict(found)
    for name, (missing, chunk) in reach.items():
        if name in found:
            device, host, disk = found[name]
            below = max(host + disk - (device + host + disk) % chunk, 0) if chunk else host + disk
            shorter[name] = (max(device - missing, 0), min(host, below), max(below - host, 0))
    return shorter


def learn(call: Call, endpoint: Endpoint, cached_tokens: int, prompt_tokens: int) -> None:
    """Compare the prediction with the engine's report, except after an offload, where the prefill instance had the
    cache."""
    if call.outcome.offload is not None:
        return
    outcomes, prediction = call.pool.kv_event_state.outcomes, call.prediction
    by_kind = endpoint.by_kind
    kind = by_kind.kinds.get(prediction.kind) or by_kind.of(prediction.kind)
    by_kind.uses = kind.used = by_kind.uses + 1  # inlined `of`
    if prediction.index not in outcomes:
        outcomes[prediction.index] = Outcomes()
    outcomes[prediction.index].add(call.decision.cached_tokens if call.decision is not None else 0, cached_tokens)
    predicted = min(prediction.approximate_tokens, prompt_tokens)
    for accuracy in (endpoint.approximate, kind.approximate):
        accuracy.add(predicted, cached_tokens, prompt_tokens)
    if prediction.exact_tokens is not None:
        allowed, size = prediction.exact_tokens + prediction.shortened, endpoint.block_size
        by_rule = prediction.under_way.by_rule if prediction.under_way is not None else ()
        explained = _learn_rule(call, endpoint, by_rule, allowed, cached_tokens) if by_rule else False
        kind.shortfall.add(allowed, cached_tokens, size)
        if cached_tokens != prediction.exact_tokens:
            _missed(call, endpoint, cached_tokens, explained=explained)
        predicted = min(prediction.exact_tokens, prompt_tokens)
        for accuracy in (endpoint.exact, kind.exact):
            accuracy.add(predicted, cached_tokens, prompt_tokens)


def _learn_rule(call: Call, endpoint: Endpoint, by_rule: Sequence[int], allowed: int, cached_tokens: int) -> bool:
    """Learn the rule by which the instance speculates. Return whether the rule known now explains the answer. `allowed`
    is the limit of reusable tokens; it is lower than the held tokens if some will be evicted."""
    kind, state = call.prediction.kind, call.pool.kv_event_state
    known = endpoint.by_kind.of(kind).speculation
    before = known.rule
    most = allowed if before == NONE else by_rule[NONE]
    of_others = state.rules.get(kind, NO_RULES).values()
    expected = [min(tokens, most) for tokens in by_rule]
    known.add(expected, cached_tokens, of_others)
    if known.rule != before:
        endpoint.by_kind.has_learnt()
        state.learnt(kind, endpoint.id, known.rule)
    return expected[known.rule] == cached_tokens


def _missed(call: Call, endpoint: Endpoint, cached_tokens: int, *, explained: bool) -> None:
    """Handle a number of cached tokens that differs from the prediction. A larger number does not suggest a rule of
    speculation unless the instance already has one. `explained`: the rule has just been learned."""
    short = cached_tokens < (call.prediction.exact_tokens or 0)
    state, kind = call.pool.kv_event_state, call.prediction.kind
    if not explained and (short or endpoint.id in state.rules.get(kind, NO_RULES)):
        state.suspect(kind, endpoint.by_kind)
    if short:
        _refute(call, endpoint, cached_tokens)


def _refute(call: Call, endpoint: Endpoint, cached_tokens: int) -> None:
    """Handle fewer cached tokens than predicted: a store may have evicted the missing ones without an event."""
    feed, index, prediction = endpoint.feed, call.pool.kv_event_state.index, call.prediction
    if feed is None or prediction.index != "exact":
        return
    size = feed.block_size or endpoint.block_size
    if prediction.looked_up is not None:
        prediction.looked_up.refuted(endpoint.id, size, cached_tokens // size)
    elif index is not None:
        for known, hashes in prediction.block_hashes:
            if known == size:
                index.refute(endpoint.id, hashes, cached_tokens // size, prediction.asked_at)
