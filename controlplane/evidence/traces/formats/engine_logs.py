"""Request logs of engines among other log lines. SGLang's (`--log-requests`, as text or JSON) have lengths and times;
vLLM's (`--enable-log-requests --enable-log-outputs` at the level DEBUG) also have the tokens, so prefixes are known.
vLLM's times are whole seconds without a year.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from controlplane.evidence.traces.formats import arrivals, fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

BLOCK_TOKENS = 16
META = "'meta_info': {"
TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?)")
DECIMAL = r"(\d{1,18}(?:\.\d{1,18})?)(?=[,}])"
MEASURES = ("prompt_tokens", "completion_tokens", "e2e_latency")
NUMBER = {name: re.compile(rf"'{name}': {DECIMAL}", re.ASCII) for name in MEASURES}
VLLM = re.compile(r"(?:INFO|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d)")
ASKED = re.compile(r"(?:Received request|Request) (\S+?)(?: details)?: ")
ANSWERED = re.compile(r"Generated response ([^\s:]+)")
ONLY_INFO = re.compile(r"Received request \S+: params: ")


def detects_sglang(head: str) -> bool:
    return '"request.finished"' in head or '"request.received"' in head or "Finish: obj=" in head


def read_sglang(lines: Iterable[str], seed: int) -> LoadedTrace:
    finished = [_finished(row) for row in _sglang_rows(lines)]
    served = [request for request in finished if request is not None]
    return arrivals.loaded("sglang", arrivals.spread(served, seed), Columns(), left_out=len(finished) - len(served))


def _sglang_rows(lines: Iterable[str]) -> Iterator[fields.TraceLine]:
    """Yield the log's facts of each finished request and ignore other lines."""
    for number, line in enumerate(lines, start=1):
        if '"request.finished"' in line and "{" in line:
            values = fields.json_row(number, line[line.index("{") :], Columns()).values
            out = values.get("out")
            meta = out.get("meta_info") if isinstance(out, dict) else None
            yield fields.TraceLine(
                number, {**(meta if isinstance(meta, dict) else {}), "timestamp": values.get("timestamp")}
            )
        elif "Finish: obj=" in line and META in line:
            yield fields.TraceLine(number, _of_text(line))


def _of_text(line: str) -> dict[str, Any]:
    """Parse the last `meta_info` of the line, which is the log's own, because a prompt may contain any text before
    it."""
    meta = line[line.rindex(META) :]
    found = {name: pattern.search(meta) for name, pattern in NUMBER.items()}
    numbers = {name: match[1] for name, match in found.items() if match}
    values: dict[str, Any] = {name: float(text) if "." in text else int(text) for name, text in numbers.items()}
    time = TIME.match(line)
    return {**values, "timestamp": time[1] if time else None}


def _finished(row: fields.TraceLine) -> TraceRequest | None:
    """Return the request; None without an answer."""
    took = row.seconds("e2e_latency")
    at = arrivals.moment(row, "timestamp") - took
    tokens, output = row.integer("prompt_tokens", 0), row.integer("completion_tokens", 0)
    return TraceRequest(0, at, "", tokens, output, (), BLOCK_TOKENS, 0.0) if tokens and output else None


def read_vllm(lines: Iterable[str], seed: int) -> LoadedTrace:
    asked: dict[str, TraceRequest] = {}
    outputs: dict[str, int] = {}
    numbers: dict[tuple[int, ...], int] = {}
    first_without = 0
    for number, line in enumerate(lines, start=1):
        # The last in the line, because a prompt may contain any text
        before, _, tokens = line.rpartition("_token_ids: [")
        if before.endswith("prompt") and (time := VLLM.search(before)) and (found := ASKED.search(before)):
            asked[found[1]] = _asked(number, time[1], _tokens(number, tokens), numbers)
        elif before.endswith("output") and (found := ANSWERED.search(before)):
            outputs[found[1]] = max(outputs.get(found[1], 0), len(_tokens(number, tokens)))
        elif not first_without and ONLY_INFO.search(line):
            first_without = number
        if len(asked) > fields.MAX_REQUESTS:
            raise BadTrace(number, "", len(asked), f"at most {fields.MAX_REQUESTS:,} requests")
    if not asked or not outputs:
        needed = "lines with prompt_token_ids and output_token_ids: --enable-log-requests --enable-log-outputs at DEBUG"
        raise BadTrace(first_without, "prompt_token_ids", None, needed)
    lengths = ((one, outputs.get(name)) for name, one in asked.items() if one.input_tokens)
    served = [replace(one, output_tokens=output) for one, output in lengths if output]
    return arrivals.loaded("vllm", arrivals.spread(served, seed), Columns(), left_out=len(asked) - len(served))


def _asked(line: int, time: str, tokens: list[int], numbers: dict[tuple[int, ...], int]) -> TraceRequest:
    """Return the request of a line. A leap year is assumed, because the log has none; a log that spans New Year is
    refused by its length."""
    try:
        at = datetime.strptime(f"2000-{time}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadTrace(line, "time", time, "a date and time as 11-28 19:17:51") from None
    ids, before = list[int](), -1
    for start in range(0, len(tokens), BLOCK_TOKENS):
        before = numbers.setdefault((before, *tokens[start : start + BLOCK_TOKENS]), len(numbers))
        ids.append(before)
    return TraceRequest(0, at, "", len(tokens), 1, fields.runs_of(ids), BLOCK_TOKENS, 0.0)


def _tokens(line: int, text: str) -> list[int]:
    """Return the list up to its bracket. Raise BadTrace."""
    listed = text.partition("]")[0].strip()
    try:
        return [int(token) for token in listed.split(",")] if listed else []
    except ValueError:
        raise BadTrace(line, "token_ids", listed, "a list of whole numbers") from None
