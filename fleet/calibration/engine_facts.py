"""Facts reported by an engine: its KV capacity, longest request, scheduling, running requests and time scale."""

import asyncio
import re
from dataclasses import dataclass

import httpx
import orjson

from fleet.calibration.streamed_request import PLAIN, NotAnswered, not_answered
from fleet.engine.profiles import Version
from router.contract.metrics.engine_metrics import Scrape, parse_metrics
from router.contract.metrics.metrics_page import LARGEST

ANSWER_S = 10.0
VERSION_PATH = "/version"
# vLLM serves the first path only with VLLM_SERVER_DEV_MODE=1.
SETTINGS_PATHS = ("/server_info?config_format=json", "/get_server_info")
LARGEST_WINDOW = 2**31 - 1  # tokens
_SCALE = re.compile(rb"^weir_sim_time_scale(?:\{[^}\n]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts that an engine reports; None: not reported."""

    window: int | None  # largest number of tokens of prompt and answer together
    kv_blocks: int | None
    block_size: int | None  # tokens per block

    active: int | None  # running and waiting requests
    prompt_tokens: float | None  # counter of prompt tokens
    time_scale: float  # 10 means ten times faster than real time
    version: Version | None = None  # vLLM's version
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None  # chunk budget of a step
    async_scheduling: bool | None = None  # True if a step is planned while the previous one runs


async def engine_facts(
    client: httpx.AsyncClient, model: str, models_path: str, metrics_path: str, names: Scrape
) -> EngineFacts:
    """Ask the engine for its facts. Raise NotAnswered."""
    listed = await _get(client, models_path)
    page = await _get(client, metrics_path)
    version = _version(await _get(client, VERSION_PATH))
    sequences, batched, is_async = None, None, None
    for path in SETTINGS_PATHS:
        if (sequences, batched, is_async) == (None, None, None):
            sequences, batched, is_async = _settings(await _get(client, path))
    read = parse_metrics(page, names)
    active = None if read.running is None else round(read.running + (read.waiting or 0))
    return EngineFacts(
        window=_window(listed, model),
        kv_blocks=read.kv_blocks,
        block_size=read.block_size,
        active=active,
        prompt_tokens=read.prompt_tokens_total,
        time_scale=_time_scale(page),
        version=version,
        max_num_seqs=sequences,
        max_num_batched_tokens=batched,
        async_scheduling=is_async,
    )


async def _get(client: httpx.AsyncClient, path: str) -> bytes:
    """Return the whole answer. The engine may send too much, or one byte at a time."""
    body = bytearray()
    try:
        async with asyncio.timeout(ANSWER_S), client.stream("GET", path, headers=PLAIN) as answer:
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > LARGEST:
                    raise NotAnswered(f"{client.base_url}: GET {path} answers with more than {LARGEST} bytes")
    except TimeoutError:
        raise NotAnswered(f"{client.base_url}: GET {path} took longer than {ANSWER_S:g} s") from None
    except httpx.HTTPError as error:
        raise not_answered(client, error) from None
    return bytes(body)


def _time_scale(page: bytes) -> float:
    found = _SCALE.search(page)
    try:
        scale = float(found[1]) if found is not None else 1.0
    except ValueError:
        return 1.0
    return scale if 0.001 <= scale <= 1e6 else 1.0


def _version(answer: bytes) -> Version | None:
    """Return the first two numbers of the version; None for another answer, or an unnumbered build."""
    try:
        major, minor = re.findall(r"^(\d{1,4})\.(\d{1,4})\.\d", orjson.loads(answer)["version"])[0]
    except (ValueError, LookupError, TypeError):
        return None
    return int(major), int(minor)


def _settings(answer: bytes) -> tuple[int | None, int | None, bool | None]:
    """Return (sequences, batched tokens, whether it plans ahead) of vLLM or SGLang; None: not reported."""
    try:
        settings = orjson.loads(answer)
    except ValueError:
        return None, None, None
    settings = settings if isinstance(settings, dict) else {}
    config = settings.get("vllm_config")
    vllm = config.get("scheduler_config") if isinstance(config, dict) else None
    if isinstance(vllm, dict):
        is_async = vllm.get("async_scheduling")
        found = vllm.get("max_num_seqs"), vllm.get("max_num_batched_tokens")
    else:
        serial = settings.get("disable_overlap_schedule")
        is_async = not serial if isinstance(serial, bool) else None
        found = settings.get("max_running_requests"), settings.get("chunked_prefill_size")
    sequences, batched = (one if type(one) is int and 0 < one <= LARGEST_WINDOW else None for one in found)
    return sequences, batched, is_async if isinstance(is_async, bool) else None


def _window(listed: bytes, model: str) -> int | None:
    try:
        found = [entry.get("max_model_len") for entry in orjson.loads(listed)["data"] if entry["id"] == model]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    window = found[0] if found else None
    return window if type(window) is int and 0 < window <= LARGEST_WINDOW else None
