"""The formats of traces, detected by their first bytes."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from controlplane.evidence.traces.formats import (
    coding_agent,
    engine_logs,
    fields,
    gateways,
    json_text,
    mooncake,
    recorded,
    tables,
)
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

MAX_BYTES = 64 * 1024 * 1024
FIRST_BYTES = 65_536  # beginning of a file that shows its format; the first line may be longer
HEAD_BYTES = fields.MAX_LINE_BYTES + FIRST_BYTES
GZIP = b"\x1f\x8b"
COLOUR = re.compile("\x1b\\[[0-9;]*m")  # as vLLM colours its levels in a terminal
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
    "litellm": TraceFormat("LiteLLM's spend logs, JSON or CSV", gateways.detects_spend, gateways.read_spend),
    "spans": TraceFormat("OpenTelemetry spans, OTLP JSON", has('"scopeSpans"'), gateways.read_spans),
    "sglang": TraceFormat("SGLang's request log", engine_logs.detects_sglang, engine_logs.read_sglang),
    "vllm": TraceFormat("vLLM's request log, at DEBUG", has("Received request ", "INFO "), engine_logs.read_vllm),
}


NAME = re.compile(r'"(\w+)"\s*:')
NAMES = {  # names without which a file is not recognised
    "coding_agent": ("session", "t", "input_length", "runs"),
    "mooncake": ("timestamp", "input_length", "output_length"),
    "azure": tables.AZURE,
    "burstgpt": tables.BURST,
    "litellm": gateways.SPEND,
}


def has_think_times(name: str) -> bool:
    """True if the format has think times; generated traces do."""
    return name not in FORMATS or FORMATS[name].think_times


def detect(head: bytes) -> str:
    """Return the name of the format. Raise BadTrace if it is unknown."""
    if head.startswith(GZIP):
        head = _begins(head)
    first = head.find(b"\n", 0, HEAD_BYTES)
    end = HEAD_BYTES if first < 0 else max(FIRST_BYTES, first)
    text = COLOUR.sub("", head[:end].decode(_encoding(head), "replace"))
    for name, kind in FORMATS.items():
        if kind.detects(text):
            return name
    _check_names(text)
    known = "; ".join(kind.title for kind in FORMATS.values())
    raise BadTrace(1, "", text.partition("\n")[0], f"a line of one of: {known}")


def _check_names(text: str) -> None:
    """Raise BadTrace if a single name of a format is missing."""
    given = {*tables.names_of(text), *NAME.findall(text)}
    for name, needed in NAMES.items():
        missing = [one for one in needed if one not in given]
        if len(missing) == 1:
            raise BadTrace(1, missing[0], None, f"the field is missing; {FORMATS[name].title} has {', '.join(needed)}")


def read(data: bytes, seed: int) -> LoadedTrace:
    """Return the trace in these bytes, at least one request."""
    if len(data) > MAX_BYTES:
        raise BadTrace(0, "", len(data), f"at most {MAX_BYTES:,} bytes")
    if data.startswith(GZIP):
        data = _unzipped(data)
    kind = FORMATS[detect(data)]
    try:
        text = data.decode(_encoding(data))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        name = "UTF-16" if data.startswith(UTF_16) else "UTF-8"
        raise BadTrace(line, "", data[error.start : error.start + 8], f"{name} text") from None
    trace = kind.read(json_text.lines_of(COLOUR.sub("", text)), seed)
    if not trace.requests:
        raise BadTrace(0, "", 0, "at least one request")
    return trace


def _encoding(data: bytes) -> str:
    """Return UTF-8, or UTF-16 as PowerShell redirects."""
    return "utf-16" if data.startswith(UTF_16) else "utf-8-sig"


def _begins(data: bytes) -> bytes:
    """Return the first bytes of a compressed file, which may be cut off or damaged."""
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS + 16).decompress(data, HEAD_BYTES)
    except zlib.error:
        return b""


def _unzipped(data: bytes) -> bytes:
    """Return the whole of a compressed file. Raise BadTrace."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            whole = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadTrace(0, "", str(error), "a whole gzip file") from None
    if len(whole) > MAX_BYTES:
        raise BadTrace(0, "", "more uncompressed", f"at most {MAX_BYTES:,} bytes")
    return whole


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
