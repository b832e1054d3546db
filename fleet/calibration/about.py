"""What an engine says of itself: its room, the longest request, what it is doing, how fast its clock runs.

figures() of router/contract/engine_metrics.py reads the same page once a second; here it is read once, for more.
"""

import re
from dataclasses import dataclass

import httpx

from fleet.calibration.ask import away
from router.contract.engine_metrics import Scrape, parse_metrics

_SCALE = re.compile(rb"^weir_sim_time_scale(?:\{[^}\n]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """None: the engine does not say."""

    window: int | None  # tokens of prompt and answer at most
    kv_blocks: int | None
    block_size: int | None  # tokens
    in_work: int | None  # requests, running and waiting
    prompt_tokens: float | None  # counter
    time_scale: float  # 10: it runs ten times faster than the engine that it stands for


async def about(
    client: httpx.AsyncClient, model: str, models_path: str, metrics_path: str, names: Scrape
) -> EngineFacts:
    """NotAnswered."""
    try:
        listed = await client.get(models_path)
        page = (await client.get(metrics_path)).content
    except httpx.HTTPError as error:
        raise away(client, error) from None
    read = parse_metrics(page, names)
    in_work = None if read.running is None else round(read.running + (read.waiting or 0))
    scale = _SCALE.search(page)
    return EngineFacts(
        window=_window(listed, model),
        kv_blocks=read.kv_blocks,
        block_size=read.block_size,
        in_work=in_work,
        prompt_tokens=read.prompt_tokens,
        time_scale=float(scale[1]) if scale is not None else 1.0,
    )


def _window(listed: httpx.Response, model: str) -> int | None:
    try:
        found = [entry.get("max_model_len") for entry in listed.json()["data"] if entry["id"] == model]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return int(found[0]) if found and found[0] else None
