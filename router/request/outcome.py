"""What became of one request: attempts, times, status and usage."""

from dataclasses import dataclass, field
from typing import NamedTuple

from router.contract.verdict import VERDICTS, Fault, Label, Result
from router.pool.endpoint import Endpoint
from router.pool.gpu_clock import GpuSpent
from router.request.offload import Offload
from router.upstream.usage import Usage


class Failure(NamedTuple):
    """A failure of the request on an engine, as prefill or whole."""

    endpoint: Endpoint
    kind: str  # failures of the same kind are alike; empty: not the request's fault
    counted: bool  # by the breaker


@dataclass(slots=True)
class Attempt:
    instance: str
    status: int | None = None  # None when it gave none
    error: str = ""
    pool: str = ""
    # Times as in `Outcome`
    deciding: float = 0.0  # admission and decision began
    began: float = 0.0  # it was decided, and sent
    ended: float = 0.0  # end of an attempt that another followed
    code: str = ""  # code of a failure without an answer
    result: Result | None = None  # None while it runs


@dataclass(slots=True)
class Outcome(GpuSpent):
    """Times are seconds of the clock of `Call.started`."""

    # serving/proxy.py
    result: Result | None = None  # None until it has ended, like the next two
    label: Label = ""
    fault: Fault = ""
    code: str = ""
    error: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    queued_s: float = 0.0
    held_s: float = 0.0  # part of the wait until the pool had woken
    deciding: float = 0.0  # as of the latest attempt, like the next
    decided: float = 0.0
    alone: bool = False  # until the first content the instance had nothing else of this router's to do
    first_byte: float | None = None
    first_content: float | None = None  # anything generated; of a whole answer its end
    # flows/
    offload: Offload | None = None  # offload of the prefill, when the policy wanted one
    # serving/relay.py
    status: int = 0  # status of a refusal: serving/proxy.py
    streamed: bool = False
    begun: bool = False  # the client has been sent something
    streamed_tokens: int = 0  # about, of a stream; counted where a limit in tokens is charged
    last_byte: float | None = None
    usage: Usage | None = None
    # `end`
    e2e_ms: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def close(self, result: Result, code: str = "", error: str = "") -> None:
        """Set what the request came to."""
        self.result, self.code, self.error = result, code, error
        self.label, self.fault, _ = VERDICTS[result]

    @property
    def computed(self) -> bool:
        """Whether tokens may have been computed for it, so that they are charged. Content shows that they were."""
        return self.first_content is not None or VERDICTS[self.result or "router_failed"].computes

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1 if self.attempts else 0

    @property
    def flow(self) -> str:
        """The flow that served the request in the end."""
        return self.offload.flow if self.offload is not None else "colocated"

    def end(self, started: float, now: float) -> None:
        if self.result is None:
            self.close("router_failed")
        self.e2e_ms = (now - started) * 1000
        # The one time of a whole answer, or of one that another instance replaced, is not that of a first token
        if self.streamed and self.begun and self.first_content is not None:
            self.ttft_ms = (self.first_content - started) * 1000
            self.tpot_ms = self._tpot_ms(self.first_content)

    def _tpot_ms(self, first_content: float) -> float | None:
        """Per output token after the first; None without `usage` or with fewer than two tokens."""
        tokens = self.usage.output_tokens if self.usage is not None else None
        if not tokens or tokens < 2 or self.last_byte is None:
            return None
        return (self.last_byte - first_content) * 1000 / (tokens - 1)
