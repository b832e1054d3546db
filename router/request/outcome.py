"""The outcome of one request: attempts, times, status and usage."""

from math import ceil
from typing import NamedTuple

from router.contract.answer.verdict import VERDICTS, Fault, Label, Result
from router.pool.endpoint import Endpoint
from router.pool.load.gpu_clock import GpuSpent
from router.request.offload import Offload
from router.upstream.answer.used import Usage


class Failure(NamedTuple):
    """A request's failure on an engine, in the prefill or as a whole."""

    endpoint: Endpoint
    kind: str  # equal failures have the same kind; empty: not the request's fault
    counted: bool  # counted by the breaker
    of_prefill: bool = False  # on the prefill instance of an offload
    among: frozenset[str] = frozenset()  # instances, each of which may be the cause


class Attempt:
    __slots__ = ("began", "code", "deciding", "ended", "error", "instance", "pool", "result", "status")

    def __init__(self, instance: str, pool: str = "", deciding: float = 0.0, began: float = 0.0) -> None:
        self.instance = instance
        self.pool = pool
        self.status: int | None = None  # None without an answer
        self.error = ""
        # Times as in `Outcome`
        self.deciding = deciding  # start of admission and decision
        self.began = began  # time of decision and sending
        self.ended = 0.0  # end of an attempt that was followed by another
        self.code = ""  # code of a failure without an answer
        self.result: Result | None = None  # None while running


class Outcome(GpuSpent):
    """The outcome of a request. Times are seconds of the clock of `Call.started`."""

    __slots__ = (
        *("alone", "attempts", "begun", "code", "decided", "deciding", "e2e_ms", "error", "failures", "fault"),
        *("first_byte", "first_content", "held_s", "is_brief", "is_prefilled", "label", "last_byte", "most_output"),
        *("offload", "per_event", "queued_s", "result"),
        *("status", "streamed", "streamed_tokens", "tpot_ms", "ttft_ms", "usage"),
    )

    def __init__(self) -> None:
        self.gpu_s = self.dollars = 0.0  # inlined GpuSpent
        # serving/proxy.py
        self.result: Result | None = None  # None until the end, like the next two
        self.label: Label = ""
        self.fault: Fault = ""
        self.code = ""
        self.error = ""
        self.attempts: list[Attempt] = []
        self.failures: list[Failure] = []
        self.queued_s = 0.0
        self.held_s = 0.0  # part of the wait that was due to the pool's wake
        self.deciding = 0.0  # start of the latest attempt's decision; the next field belongs to that attempt, too
        self.decided = 0.0
        self.is_brief = False  # True if the answer precedes its work or uses no model: its time means nothing
        self.alone = False  # True if this router had no other request there until the first content
        self.first_byte: float | None = None
        # Time of the first generated content; for an unstreamed answer, its end
        self.first_content: float | None = None
        # flows/
        self.offload: Offload | None = None  # offload chosen by the policy
        self.is_prefilled = False  # an instance has computed the prompt for another
        # serving/answer/relay.py
        self.status = 0  # set by serving/proxy.py for a refusal
        self.streamed = False
        self.begun = False  # something was sent to the client
        self.streamed_tokens = 0  # events of a stream from its first content; counted if a token limit is charged
        self.per_event = 1.0  # tokens in each event
        self.most_output = 0  # tokens that the request allows; 0: no limit
        self.last_byte: float | None = None
        self.usage: Usage | None = None
        # `end`
        self.e2e_ms = 0.0
        self.ttft_ms: float | None = None
        self.tpot_ms: float | None = None

    def close(self, result: Result, code: str = "", error: str = "") -> None:
        """Set the request's result."""
        self.result, self.code, self.error = result, code, error
        self.label, self.fault, _ = VERDICTS[result]

    @property
    def computed(self) -> bool:
        """Return whether tokens may have been computed and must be charged; content proves it."""
        return self.first_content is not None or VERDICTS[self.result or "router_failed"].computes

    @property
    def output_tokens(self) -> int:
        """Return the tokens of the answer: as reported, but at least those of its events if the stream ended early or
        is reported to have none.
        """
        reported = self.usage.output_tokens if self.usage is not None else None
        if reported and self.result == "served":
            return reported
        counted = ceil(self.streamed_tokens * self.per_event)
        return max(reported or 0, min(counted, self.most_output or counted))

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1 if self.attempts else 0

    @property
    def flow(self) -> str:
        """Return the flow by which the request was finally served."""
        return self.offload.flow if self.offload is not None else "colocated"

    def end(self, started: float, now: float) -> None:
        if self.result is None:
            self.close("router_failed")
        self.e2e_ms = (now - started) * 1000
        # There is no time of a first token if the answer was not streamed or was replaced
        if self.streamed and self.begun and self.first_content is not None:
            self.ttft_ms = (self.first_content - started) * 1000
            self.tpot_ms = self._tpot_ms(self.first_content)

    def _tpot_ms(self, first_content: float) -> float | None:
        """Return ms per output token after the first; None without `usage` or with fewer than two tokens."""
        tokens = self.usage.output_tokens if self.usage is not None else None
        if not tokens or tokens < 2 or self.last_byte is None:
            return None
        return (self.last_byte - first_content) * 1000 / (tokens - 1)
