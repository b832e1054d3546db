"""The options, by name, that an engine started by another system lacks for an exact prefix index. Pure."""

from collections.abc import Mapping

from fleet.kinds.servers import SERVERS
from router.contract.connectors import SGLANG
from router.contract.metrics.engine_metrics import parse_metrics

EVENTS = "--kv-events-config"
CACHE_REPORT = "--enable-cache-report"
PROMPT_DETAILS = "--enable-prompt-tokens-details"  # vLLM does not report whether it is set
OF_TRTLLM = "kv_events_config (1.4), with its address as kv_endpoint"
UNCACHED = {
    "vllm": "a start without --no-enable-prefix-caching",
    "sglang": "a start without --disable-radix-cache",
    "trtllm": "kv_cache_config.enable_block_reuse",
}
# Meaning of the values of a field in SGLang's /server_info.
_OF_SGLANG = (
    ("enable_cache_report", False, CACHE_REPORT),
    ("enable_metrics", False, "--enable-metrics"),
    *(  # their events name pairs of tokens
        ("speculative_algorithm", name, f"a start without --speculative-algorithm {name}")
        for name in ("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP")
    ),
)
# Fields of the same page that are set where prompts differ from what the tokenizer's folder implies
_OTHER_PROMPTS = ("chat_template", "completion_template", "hf_chat_template_name", "default_chat_template_kwargs")


def half_of(server: str, about: object) -> str:
    """Return which part of requests an SGLang server computes, prefill or decode; empty if both, or if the server does
    not report it.
    """
    mode = about.get("disaggregation_mode") if server == "sglang" and isinstance(about, Mapping) else None
    return mode if mode in ("prefill", "decode") else ""


def misplaced(half: str, role: str, connector: str) -> str:
    """Return why an engine that computes only this part cannot serve in its pool; empty if it can."""
    if not half or (role == half and connector == SGLANG):
        return ""
    return f"it is a {half} server, which fails alone: its pool needs the role {half} and the connector {SGLANG}"


def is_uncached(server: str, about: object, page: bytes | None) -> bool:
    """Return whether the engine reuses no prefix. `page` is its metrics, which may show that. Decode servers of SGLang
    never reuse a prefix.
    """
    if server == "sglang" and isinstance(about, Mapping):
        return about.get("disable_radix_cache") is True and half_of(server, about) != "decode"
    return page is not None and parse_metrics(page, SERVERS[server].scrape).uncached


def lacking(server: str, about: object, *, events: bool, ranks: int = 0, uncached: bool = False) -> tuple[str, ...]:
    """Return the missing options. `about` is the version page, where SGLang lists its options. `events` is True if the
    engine publishes KV events. `ranks` is its number of ranks if the pool declares another number. `uncached` is True
    if it reuses no prefix.
    """
    if server not in UNCACHED:
        return ()
    known = about if server == "sglang" and isinstance(about, Mapping) else {}
    found = [UNCACHED[server]] if uncached else []
    found += [flag for field, value, flag in _OF_SGLANG if known.get(field) == value]
    found += [f"a start without --{field.replace('_', '-')}" for field in _OTHER_PROMPTS if known.get(field)]
    if ranks:
        return (f"data_parallel_size: {ranks}", *found)
    return tuple(found if events else [OF_TRTLLM if server == "trtllm" else EVENTS, *found])
