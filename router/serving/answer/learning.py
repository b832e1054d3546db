"""Learns from an answer: tokens per byte, accuracy of the prefix index, length of the session's history."""

from router.contract.engine_fields import FEWER_EVENTS
from router.policy.value import replace
from router.pool.endpoint import Endpoint
from router.prefix.chain import CHUNK_BYTES
from router.request import predict
from router.request.call import Call
from router.request.offload import Offload
from router.upstream.answer.used import Usage


def learn(call: Call, endpoint: Endpoint) -> None:
    usage = call.outcome.usage
    if usage is None:
        return
    cached = usage.cached_tokens
    if cached is None or endpoint.unconfirmed or not endpoint.reports_cached:
        cached = endpoint.cached_tokens(cached)
    if cached != usage.cached_tokens:
        usage = replace(usage, cached_tokens=cached)
    offload = call.outcome.offload
    call.outcome.usage = usage if offload is None else _of_the_prefill(offload, usage)
    if usage.prompt_tokens is not None:
        _learn_tokens(call, endpoint, usage.prompt_tokens, usage)


def _of_the_prefill(offload: Offload, usage: Usage) -> Usage:
    """Replace the cached tokens by those of the prefill instance, because the decoder also counts the tokens that it
    fetched from there.
    """
    if offload.outcome != "ok":
        return usage
    used = offload.prefill_usage or Usage()
    return replace(usage, cached_tokens=used.cached_tokens, cached_tiers=used.cached_tiers)


def _learn_tokens(call: Call, endpoint: Endpoint, prompt_tokens: int, usage: Usage) -> None:
    pool, read = call.pool, call.request.prompt
    pool.queue.outputs.answered(usage.output_tokens)
    if call.outcome.streamed_tokens and FEWER_EVENTS.isdisjoint(read.document):
        client = call.key.id if call.key is not None else ""
        pool.tokens.learn_events(client, call.outcome.streamed_tokens, usage.output_tokens or 0)
    if read.token_ids is None:
        pool.tokens.learn(len(read.rendered), prompt_tokens)
    if call.session is not None:
        pool.affinity.answered(call.session, prompt_tokens + (usage.output_tokens or 0))
    offload = call.outcome.offload
    if offload is not None and offload.outcome == "ok" and (used := offload.prefill_usage) is not None:
        _correct(call, pool.endpoints.get(offload.prefill), used.cached_tokens, prompt_tokens)
    if offload is not None and not offload.reports_cached:
        return
    if usage.cached_tokens is not None and _correct(call, endpoint, usage.cached_tokens, prompt_tokens):
        predict.learn(call, endpoint, usage.cached_tokens, prompt_tokens)
    elif usage.cached_tokens is None and offload is None and call.prediction.exact_tokens:
        endpoint.unconfirmed += 1


def _correct(call: Call, endpoint: Endpoint | None, cached_tokens: int | None, prompt_tokens: int) -> bool:
    """Correct the expected contents of the instance's cache; return False if the answer allows no conclusion."""
    pool, request = call.pool, call.request
    if endpoint is None or cached_tokens is None or not prompt_tokens or not call.prediction.reads_cache:
        return False
    if pool.endpoints.get(endpoint.id) is not endpoint:
        return False
    chunks = int(cached_tokens * len(request.prompt.rendered) / prompt_tokens / CHUNK_BYTES)
    pool.index.correct(endpoint.id, request.chunks, min(chunks, len(request.chunks)))
    return True
