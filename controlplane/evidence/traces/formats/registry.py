"""The formats of traces, detected by their first bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from controlplane.evidence.traces.formats import (
    coding_agent,
    engine_logs,
    gateways,
    json_text,
    mooncake,
    recorded,
    tables,
)
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

MAX_BYTES = 64 * 1024 * 1024
HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class TraceFormat:
    title: str
    detects: Callable[[str], bool]  # detects the format from the head of the file
    read: Callable[[Iterable[str], int], LoadedTrace]  # reads its lines with a seed
    think_times: bool = False  # think times, needed for a closed loop


def has(*words: str) -> Callable[[str], bool]:
    """Detect a format by words that all occur in the head of its files."""
    return lambda head: all(word in head for word in words)


BLOCKS = ('"input_length"', '"timestamp"')
FORMATS: dict[str, TraceFormat] = {  # the first format that matches a file reads it
    "aiperf": TraceFormat("AIPerf JSONL with delays", has(*BLOCKS, '"delay"'), mooncake.read_delays, think_times=True),
    "bailian": TraceFormat("Bailian JSONL", has(*BLOCKS, '"chat_id"'), mooncake.read_chats),
    "mooncake": TraceFormat("Mooncake JSONL", has(*BLOCKS), mooncake.read),
    "coding_agent": TraceFormat(
        "Coding-agent sessions, JSONL", has('"runs"', '"session"'), coding_agent.read, think_times=True
    ),
    "azure": TraceFormat("Azure CSV", tables.detects_azure, tables.read_azure),
    "burstgpt": TraceFormat("BurstGPT CSV", tables.detects_burst, tables.read_burst),
    "recorded": TraceFormat("Recorded traffic, JSONL", has('"block_tokens"', '"blocks"'), recorded.read),
    "litellm": TraceFormat("LiteLLM's spend logs, JSON", has('"startTime"', '"prompt_tokens"'), gateways.read_spend),
    "spans": TraceFormat("OpenTelemetry spans, OTLP JSON", has('"resourceSpans"'), gateways.read_spans),
    "sglang": TraceFormat("SGLang's request log", engine_logs.detects_sglang, engine_logs.read_sglang),
    "vllm": TraceFormat("vLLM's request log, at DEBUG", has("Received request ", "INFO "), engine_logs.read_vllm),
}


def has_think_times(name: str) -> bool:
    """True if the format has think times; generated traces do."""
    return name not in FORMATS or FORMATS[name].think_times


def detect(head: bytes) -> str:
    """Return the name of the format. Raise BadTrace if it is unknown."""
    text = head[:HEAD_BYTES].decode("utf-8", "replace").lstrip("\ufeff")
    for name, kind in FORMATS.items():
        if kind.detects(text):
            return name
    known = "; ".join(kind.title for kind in FORMATS.values())
    raise BadTrace(1, "", text.partition("\n")[0], f"a line of one of: {known}")


def read(data: bytes, seed: int) -> LoadedTrace:
    """Return the trace in these bytes, at least one request."""
    if len(data) > MAX_BYTES:
        raise BadTrace(0, "", len(data), f"at most {MAX_BYTES:,} bytes")
    kind = FORMATS[detect(data)]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadTrace(line, "", data[error.start : error.start + 8], "UTF-8 text") from None
    trace = kind.read(json_text.lines_of(text), seed)
    if not trace.requests:
        raise BadTrace(0, "", 0, "at least one request")
    return trace


def window(requests: Iterable[TraceRequest], duration_s: float, context_tokens: int) -> list[TraceRequest]:
    """Return the requests of the first `duration_s` that fit the model: a session ends where prompt and output exceed
    `context_tokens`; a request without a session is left out if it exceeds them.
    """
    ended: set[str] = set()
    kept = []
    for request in requests:
        if request.at_s >= duration_s or (request.session and request.session in ended):
            continue
        if request.input_tokens + request.output_tokens > context_tokens:
            ended.add(request.session)
            continue
        kept.append(request)
    return kept


def faster(requests: Iterable[TraceRequest], factor: float) -> list[TraceRequest]:
    """Return the same requests at `factor` times the arrival rate. Think times stay, because people do not think
    faster."""
    return [replace(request, at_s=request.at_s / factor) for request in requests]
