"""Learns from an answer: tokens per byte, accuracy of the prefix index, length of the session's history."""

from router.policy.value import replace
from router.pool.endpoint import Endpoint
from router.prefix.chain import CHUNK_BYTES
from router.request import predict
from router.request.call import Call


def learn(call: Call, endpoint: Endpoint) -> None:
    pool, read, usage = call.pool, call.request.prompt, call.outcome.usage
    if usage is None:
        return
    if usage.cached_tokens is not None:
        endpoint.reports_cached = True
    elif endpoint.reports_cached:  # vLLM omits the field when it is zero
        usage = call.outcome.usage = replace(usage, cached_tokens=0)
    if usage.prompt_tokens is None:
        return
    pool.queue.outputs.answered(usage.output_tokens)
    if read.token_ids is None:
        pool.tokens.learn(len(read.rendered), usage.prompt_tokens)
    if call.session is not None:
        pool.affinity.answered(call.session, usage.prompt_tokens + (usage.output_tokens or 0))
    if usage.cached_tokens is not None and pool.endpoints.get(endpoint.id) is endpoint:
        _learn_cached(call, endpoint, usage.cached_tokens, usage.prompt_tokens)


def _learn_cached(call: Call, endpoint: Endpoint, cached_tokens: int, prompt_tokens: int) -> None:
    offload, request = call.outcome.offload, call.request
    if not prompt_tokens or (offload is not None and not offload.reports_cached):
        return
    chunks = int(cached_tokens * len(request.prompt.rendered) / prompt_tokens / CHUNK_BYTES)
    predict.learn(call, endpoint, cached_tokens, prompt_tokens)
    call.pool.index.correct(endpoint.id, request.chunks, min(chunks, len(request.chunks)))
