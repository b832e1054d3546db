"""The outcome of one request: attempts, times, status and usage."""

from dataclasses import dataclass, field
from typing import NamedTuple

from router.contract.verdict import VERDICTS, Fault, Label, Result
from router.pool.endpoint import Endpoint
from router.pool.load.gpu_clock import GpuSpent
from router.request.offload import Offload
from router.upstream.used import Usage


class Failure(NamedTuple):
    """A failure of the request on an engine, as prefill or whole."""

    endpoint: Endpoint
    kind: str  # alike failures have the same kind; empty: not the request's fault
    counted: bool  # counted by the breaker
    of_prefill: bool = False  # on the prefill instance of an offload
    among: frozenset[str] = frozenset()  # instances of which any may be the cause


@dataclass(slots=True)
class Attempt:
    instance: str
    status: int | None = None  # None without an answer
    error: str = ""
    pool: str = ""
    # Times as in `Outcome`
    deciding: float = 0.0  # start of admission and decision
    began: float = 0.0  # time of decision and sending
    ended: float = 0.0  # end of an attempt followed by another
    code: str = ""  # code of a failure without an answer
    result: Result | None = None  # None while running


@dataclass(slots=True)
class Outcome(GpuSpent):
    """The outcome of a request. Times are seconds of the clock of `Call.started`."""

    # serving/proxy.py
    result: Result | None = None  # None until the end, like the next two
    label: Label = ""
    fault: Fault = ""
    code: str = ""
    error: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    queued_s: float = 0.0
    held_s: float = 0.0  # part of the wait for the pool's wake
    deciding: float = 0.0  # latest attempt's, like the next
    decided: float = 0.0
    alone: bool = False  # no other request of this router there until the first content
    first_byte: float | None = None
    first_content: float | None = None  # time of the first generated content; end of an unstreamed answer
    # flows/
    offload: Offload | None = None  # offload that the policy wanted
    # serving/relay.py
    status: int = 0  # a refusal's is set by serving/proxy.py
    streamed: bool = False
    begun: bool = False  # something was sent to the client
    streamed_tokens: int = 0  # approximate, streams only; counted if a token limit is charged
    last_byte: float | None = None
    usage: Usage | None = None
    # `end`
    e2e_ms: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def close(self, result: Result, code: str = "", error: str = "") -> None:
        """Set the request's result."""
        self.result, self.code, self.error = result, code, error
        self.label, self.fault, _ = VERDICTS[result]

    @property
    def computed(self) -> bool:
        """Tell whether tokens may have been computed, and are charged; content proves it."""
        return self.first_content is not None or VERDICTS[self.result or "router_failed"].computes

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1 if self.attempts else 0

    @property
    def flow(self) -> str:
        """Return the flow that finally served the request."""
        return self.offload.flow if self.offload is not None else "colocated"

    def end(self, started: float, now: float) -> None:
        if self.result is None:
            self.close("router_failed")
        self.e2e_ms = (now - started) * 1000
        # An unstreamed or replaced answer has no time of a first token
        if self.streamed and self.begun and self.first_content is not None:
            self.ttft_ms = (self.first_content - started) * 1000
            self.tpot_ms = self._tpot_ms(self.first_content)

    def _tpot_ms(self, first_content: float) -> float | None:
        """Return ms per output token after the first; None without `usage` or with fewer than two tokens."""
        tokens = self.usage.output_tokens if self.usage is not None else None
        if not tokens or tokens < 2 or self.last_byte is None:
            return None
        return (self.last_byte - first_content) * 1000 / (tokens - 1)
