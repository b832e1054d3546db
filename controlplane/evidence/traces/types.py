"""The values of a trace, and the error of an invalid one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from controlplane.common.description import ALWAYS_SENT, Description
from router.contract.values.problem import InvalidInput, Problem


class BadTrace(InvalidInput):
    """An invalid trace. Has the line (from 1; 0 for the whole file), the field, its value, and the allowed values."""

    def __init__(self, line: int, field: str, value: object, allowed: str) -> None:
        self.line, self.field, self.allowed = line, field, allowed
        self.value = _short(value)
        super().__init__(
            f"{self.path}: {self.value} ({allowed})", [Problem(self.path, self.value, "not valid", allowed)]
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.line, self.field, self.value, self.allowed)

    @property
    def path(self) -> str:
        place = f"line {self.line}" if self.line else "file"
        return f"{place}, {self.field}" if self.field else place


def _again(line: int, field: str, value: str, allowed: str) -> BadTrace:
    """Rebuild an error from another process, which has already converted the value to text."""
    error = BadTrace(line, field, None, allowed)
    error.value = value
    error.args = (f"{error.path}: {value} ({allowed})",)
    return error


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """Latencies of a request, as recorded by the router."""

    at: float  # arrival, Unix s
    pool: str
    model: str
    policy: str  # deciding policy; empty if unknown
    version: int  # version of the policy; 0 if unknown
    ttft_ms: float | None  # streamed answers only
    tpot_ms: float | None


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request. Two requests share a prompt prefix exactly as far as their block ids agree from the start."""

    index: int  # position in the trace, the same in every replay of it
    at_s: float  # arrival, counted from the start of the trace
    session: str  # empty if unknown; the turns of a session follow one another
    input_tokens: int
    output_tokens: int  # at least 1
    # Prefix blocks as runs of ids, unique in the trace; the last block may be cut by input_tokens
    blocks: tuple[range, ...]
    block_tokens: int  # tokens per block
    think_s: float  # time from the end of the session's previous answer to this request
    measured: MeasuredLatency | None = None  # set for recorded traffic
    band: int = 0  # priority band
    tenant: str = ""  # tenant with which the router's queue shares capacity fairly; empty if unknown

    def block_ids(self) -> Iterator[int]:
        return chain.from_iterable(self.blocks)


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    format: str
    requests: tuple[TraceRequest, ...]  # sorted by arrival
    pacing: str  # meaning of `auto` for this trace: "closed_loop" or "timestamps"
    ignored: tuple[str, ...] = ()  # fields of the file that no request keeps
    left_out: int = 0  # requests of the file that are not played


@dataclass(frozen=True, slots=True)
class TraceSummary:
    __pydantic_config__ = ALWAYS_SENT

    requests: int
    sessions: Annotated[int, Description("0 when the trace has no such data")]
    duration_s: float  # time from the first arrival to the last
    mean_input_tokens: float
    mean_output_tokens: float
    ideal_hit_share: Annotated[float, Description("Share of prompt tokens that an unbounded prefix cache holds, 0–1")]
    heavy_share: Annotated[float, Description("Share of requests with at least 20,000 uncached tokens, 0–1")]
    ignored: Annotated[tuple[str, ...], Description("Fields of the file that no request keeps")] = ()
    left_out: Annotated[
        int, Description("Requests of the file that are not played: unanswered, or of unknown length")
    ] = 0
