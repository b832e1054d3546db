"""Facts that an engine reports: its KV capacity, longest request, running requests and time scale."""

import re
from dataclasses import dataclass

import httpx

from fleet.calibration.streamed_request import not_answered
from router.contract.engine_metrics import Scrape, parse_metrics

_SCALE = re.compile(rb"^weir_sim_time_scale(?:\{[^}\n]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """None: not reported."""

    window: int | None  # tokens of prompt and answer at most
    kv_blocks: int | None
    block_size: int | None  # tokens

    active: int | None  # requests, running and waiting
    prompt_tokens: float | None  # counter
    time_scale: float  # 10: ten times faster than real time


async def engine_facts(
    client: httpx.AsyncClient, model: str, models_path: str, metrics_path: str, names: Scrape
) -> EngineFacts:
    """NotAnswered."""
    try:
        listed = await client.get(models_path)
        page = (await client.get(metrics_path)).content
    except httpx.HTTPError as error:
        raise not_answered(client, error) from None
    read = parse_metrics(page, names)
    active = None if read.running is None else round(read.running + (read.waiting or 0))
    scale = _SCALE.search(page)
    return EngineFacts(
        window=_window(listed, model),
        kv_blocks=read.kv_blocks,
        block_size=read.block_size,
        active=active,
        prompt_tokens=read.prompt_tokens_total,
        time_scale=float(scale[1]) if scale is not None else 1.0,
    )


def _window(listed: httpx.Response, model: str) -> int | None:
    try:
        found = [entry.get("max_model_len") for entry in listed.json()["data"] if entry["id"] == model]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return int(found[0]) if found and found[0] else None
