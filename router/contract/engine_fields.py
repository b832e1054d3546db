"""Request fields and headers that control an engine's internals or reach other machines, rather than shape the answer.
Pure. They name a host to fetch KV from, blocks that may belong to another tenant's prompt, a rank, code to run. Such
fields are refused in clients' bodies and removed from their headers. As the engine behind an address may be unknown,
the fields of all engines are refused everywhere. The tests in router/tests/engines/ report fields of newer engines that
are missing here.
"""

from collections.abc import Iterable, Mapping

from router.contract.values import lax

# Fields by engine. The last of vLLM's exist only before version 0.33, which may still be in use.
INSIDE: Mapping[str, frozenset[str]] = {
    "vLLM": frozenset(("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "logits_processors")),
    "SGLang": frozenset(
        (
            *("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank", "data_parallel_rank"),
            *("routed_dp_rank", "routing_key", "http_worker_ipc", "session_params", "lora_path", "lora_id"),
            *("custom_logit_processor", "external_trace_header", "received_time", "log_metrics"),
        )
    ),
    "TensorRT-LLM": frozenset(
        ("disaggregated_params", "lora_request", "conversation_params", "injected_chat_template_kwargs")
    ),
    "Dynamo": frozenset(("nvext",)),
}
FIELDS = frozenset[str]().union(*INSIDE.values())
EXTRA = "vllm_xargs"  # a map that vLLM merges into the arguments of its core
SESSION = "session_id"  # vLLM and SGLang repeat it in each KV event of the request
LONGEST_SESSION = 4096  # characters
LOOKED_AT = FIELDS | {EXTRA, SESSION}
INTERVAL = "stream_interval"  # vLLM: number of tokens in each event of a stream
MOST_PER_EVENT = 32  # more tokens per event would make the stream look stalled between events
# Fields of vLLM and SGLang with which a stream has fewer events than generated tokens
FEWER_EVENTS = frozenset((INTERVAL, "include_reasoning", "stream_reasoning"))

# obeyed by llm-d's and SGLang's sidecars, gateways and engines
HEADERS = frozenset(
    f"x-{name}".encode()
    for name in (
        *("data-parallel-rank", "data-parallel-host-port", "prefiller-host-port", "prefiller-host-ports"),
        *("encoder-hosts-ports", "kv-transfer", "kv-transfer-params", "dp-rank", "routed-dp-rank"),
        *("override-rid", "override-bootstrap-host", "override-bootstrap-port", "override-bootstrap-room"),
        *("override-conversation-id", "override-routed-dp-rank", "override-disagg-prefill-dp-rank"),
        *("override-priority", "smg-routing-key", "smg-target-worker", "body-compressed"),
        *("worker-instance-id", "prefill-instance-id", "decode-instance-id"),
    )
)


def named(document: Mapping[str, object]) -> list[str]:
    """Return the paths of fields in a body that control the engine's internals."""
    extra = document.get(EXTRA)
    inner = sorted(FIELDS.intersection(extra)) if isinstance(extra, Mapping) else []
    return [*sorted(FIELDS.intersection(document)), *(f"{EXTRA}.{name}" for name in inner)]


def long_session(document: Mapping[str, object]) -> str:
    """Return the path of a session name that is long enough to flood the engine's KV events; empty if there is none."""
    extra = document.get(EXTRA)
    names = {SESSION: document, f"{EXTRA}.{SESSION}": extra if isinstance(extra, Mapping) else {}}
    return next((path for path, where in names.items() if _is_long(where.get(SESSION))), "")


def _is_long(name: object) -> bool:
    """Return whether a name is too long. An object or array always is, because serializing a large
    one takes a second.
    """
    return len(name) > LONGEST_SESSION if isinstance(name, str) else isinstance(name, list | dict)


def per_event(document: Mapping[str, object]) -> int:
    """Return the largest number of tokens that an event of the stream may hold."""
    return int(min(max(1.0, lax.number(document.get(INTERVAL))), MOST_PER_EVENT))


def whose(paths: Iterable[str]) -> str:
    """Return the engines that know these fields."""
    names = {path.rpartition(".")[2] for path in paths}
    return ", ".join(engine for engine, fields in INSIDE.items() if names & fields)
