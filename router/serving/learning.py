"""What an answer teaches: tokens per byte, how well the prefix index predicts, how long the session's history is."""

from dataclasses import replace

from router.pool.endpoint import Endpoint
from router.prefix.chain import CHUNK_BYTES
from router.request import predict
from router.request.call import Call


def learn(call: Call, endpoint: Endpoint) -> None:
    """From the `usage` of an answer that was served."""
    pool, request, usage = call.pool, call.request, call.outcome.usage
    read = request.prompt
    if usage is None:
        return
    if usage.cached_tokens is not None:
        endpoint.tells_cached = True
    elif endpoint.tells_cached:  # vLLM leaves the field out when it is zero
        usage = call.outcome.usage = replace(usage, cached_tokens=0)
    if usage.prompt_tokens is None:
        return
    if read.token_ids is None:
        pool.tokens.learn(len(read.rendered), usage.prompt_tokens)
    if call.session is not None:
        pool.affinity.answered(call.session, usage.prompt_tokens + (usage.output_tokens or 0))
    if usage.cached_tokens is not None and usage.prompt_tokens and pool.endpoints.get(endpoint.id) is endpoint:
        chunks = int(usage.cached_tokens * len(read.rendered) / usage.prompt_tokens / CHUNK_BYTES)
        predict.learn(call, endpoint, usage.cached_tokens, usage.prompt_tokens)
        pool.index.correct(endpoint.id, request.chunks, min(chunks, len(request.chunks)))
