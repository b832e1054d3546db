"""A fake engine that also answers a router's own requests: health, metrics and models."""

import json

from router.tests.engine import Behaviour, Engine, Received, Writer, reply, write_head

PAGE = """vllm:num_requests_waiting{{model_name="llama"}} 3.0
vllm:kv_cache_usage_perc{{model_name="llama"}} 0.25
vllm:prompt_tokens_total{{model_name="llama"}} {prompt_tokens}
vllm:cache_config_info{{block_size="32",num_gpu_blocks="500"}} 1.0
"""


def plain(
    behaviour: Behaviour | None = None,
    *,
    models: tuple[str, ...] = ("llama",),
    health: int = 200,
    prompt_tokens: float = 7.0,
    length: int | None = None,
) -> Behaviour:
    """Run an engine in which `behaviour` answers everything but GET requests."""
    cards = [{"id": model, "max_model_len": length} for model in models]
    pages = {
        "/health": (health, ""),
        "/metrics": (200, PAGE.format(prompt_tokens=prompt_tokens)),
        "/v1/models": (200, json.dumps({"object": "list", "data": cards})),
    }

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        if request.method != "GET":
            await (behaviour or reply())(engine, request, writer)
            return
        status, body = pages[request.target]
        write_head(writer, status, f"content-length: {len(body)}")
        writer.write(body.encode())
        await writer.drain()

    return behave
