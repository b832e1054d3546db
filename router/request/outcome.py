"""What became of one request: attempts, times, status and usage."""

from dataclasses import dataclass, field
from typing import Literal

from router.pool.gpu_clock import GpuSpent
from router.request.offload import Offload
from router.upstream.usage import Usage

# picked: a gateway was told where to send the request, and did not tell what became of it
Label = Literal["", "ok", "refused", "error", "cancelled", "picked"]


@dataclass(slots=True)
class Attempt:
    instance: str
    status: int | None = None  # None when it gave none
    error: str = ""
    pool: str = ""
    # Times as in `Outcome`
    deciding: float = 0.0  # admission and decision began
    began: float = 0.0  # it was decided, and sent
    ended: float = 0.0  # of one that another followed
    code: str = ""  # of a failure without an answer


@dataclass(slots=True)
class Outcome(GpuSpent):
    """Times are seconds of the clock of `Call.started`."""

    # serving/proxy.py
    label: Label = ""  # empty until it has ended
    code: str = ""
    error: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    queued_s: float = 0.0
    held_s: float = 0.0  # of these, until the pool had woken
    deciding: float = 0.0  # as of the latest attempt, like the next
    decided: float = 0.0
    alone: bool = False  # until the first byte the instance had nothing else of this router's to do
    first_byte: float | None = None
    # flows/
    offload: Offload | None = None  # of the prefill, when the policy wanted one
    # serving/relay.py
    status: int = 0  # of a refusal: serving/proxy.py
    streamed: bool = False
    begun: bool = False  # the client has been sent something
    streamed_tokens: int = 0  # about, of a stream; counted where a limit in tokens is charged
    last_byte: float | None = None
    usage: Usage | None = None
    # `end`
    e2e_ms: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1 if self.attempts else 0

    @property
    def flow(self) -> str:
        """The flow that served the request in the end."""
        return self.offload.flow if self.offload is not None else "colocated"

    def end(self, started: float, now: float) -> None:
        self.label = self.label or "error"
        self.e2e_ms = (now - started) * 1000
        # The one byte time of a whole answer, or of one that another instance replaced, is not that of a first token
        if self.streamed and self.begun and self.first_byte is not None:
            self.ttft_ms = (self.first_byte - started) * 1000
            self.tpot_ms = self._tpot_ms(self.first_byte)

    def _tpot_ms(self, first_byte: float) -> float | None:
        """Per output token after the first; None without `usage` or with fewer than two tokens."""
        tokens = self.usage.output_tokens if self.usage is not None else None
        if not tokens or tokens < 2 or self.last_byte is None:
            return None
        return (self.last_byte - first_byte) * 1000 / (tokens - 1)
