"""An offload: prefill and decode run on different instances."""

from dataclasses import dataclass, field

from router.contract.connectors import CONNECTORS
from router.pool.load.pull import Pull
from router.pool.load.unheld import Unheld
from router.upstream.answer.used import Usage


class PrefillFailed(Exception):
    """The prefill on another instance failed; the message has the reason."""

    elsewhere = False  # another instance may compute the prompt
    code = "prefill_failed"  # code and status of the answer if no other instance computes the prompt
    status = 502

    def __init__(self, why: str, *, decoder: str = "") -> None:
        """`decoder` failed after the prefill, because the KV was missing or for a reason unrelated to it."""
        super().__init__(why)
        self.decoder = decoder


class PrefillBroken(PrefillFailed):
    elsewhere = True


class PrefillErred(PrefillBroken):
    """The engine answered with its own error."""


class PrefillBusy(PrefillBroken):
    """The engine accepts no prompt now."""

    status = 503


class PrefillLate(PrefillFailed):
    code = "prefill_timeout"
    status = 504


class PrefillUnsent(PrefillFailed):
    """The router was unable to open a connection to the engine."""

    code = "router_exhausted"
    status = 503


class PrefillSilent(PrefillFailed):
    """No byte of the answer arrived in time."""


class PromptRefused(PrefillFailed):
    """The engine refused the prompt as an error of the client."""

    def __init__(self, why: str, status: int, *, is_doubted: bool = False) -> None:
        """`is_doubted`: the fault may be the engine's."""
        super().__init__(why)
        self.status = status
        self.elsewhere = is_doubted


@dataclass(slots=True)
class Offload:
    connector: str
    prefill: str  # instance that computes the prompt
    outcome: str = ""  # ok, fallback, ineligible or failed; empty while it is in progress
    reason: str = ""  # why another instance, or the decoder, computes the prompt
    moves: int = 0  # how often another instance took over the prompt
    began: float | None = None  # s, clock of `Call.started`: prefill sent
    prefill_ms: float | None = None
    sent: float | None = None  # s, same clock: decode request sent
    arrived: float | None = None  # s, same clock: first byte of the decoder's stream; None for an unstreamed answer
    transfer_bytes: int | None = None  # None if unknown
    pull_ms: float | None = None  # predicted time of a pull, until the KV has arrived
    pull: Pull | None = None  # pull in progress
    unheld: Unheld | None = None  # entry at the decoder until the prompt has been computed
    alone: bool = False  # the prefill instance had no other request of this router
    prefill_usage: Usage | None = None  # usage reported by the prefill instance
    # Instances that failed although another instance was to prefill, with the reason
    failed: dict[str, str] = field(default_factory=dict)
    lent_by: str = ""  # decoder whose blocks of the session's last answer were offered to the prefill
    lent_tokens: int = 0  # tokens in those blocks
    tells_ids: bool = False  # the decoder was asked for the token ids of prompt and answer
    kept: bytes | None = None  # the decode request, as long as any decoder can fetch the prefill's blocks

    def computed(self) -> None:
        """Begin the decoder's part, whatever the prefill's result."""
        if self.unheld is not None:
            self.unheld.over()

    @property
    def flow(self) -> str:
        return f"offload_{self.connector}" if self.outcome in ("", "ok") else "colocated"

    @property
    def transfer_ms(self) -> float | None:
        """Return the time until the first byte of the decoder's stream, for the transfer and one decode step. It starts
        when the prompt has been computed and the request is at the decoder. None for an unstreamed answer, whose time
        would include the whole answer."""
        if self.sent is None or self.arrived is None:
            return None
        computed = self.sent if self.began is None else self.began + (self.prefill_ms or 0.0) / 1000
        return max(0.0, self.arrived - max(self.sent, computed)) * 1000

    @property
    def taken_ms(self) -> float | None:
        """Return the time from sending the prefill to the first byte of the decoder's stream."""
        return None if self.began is None or self.arrived is None else (self.arrived - self.began) * 1000

    @property
    def reports_cached(self) -> bool:
        """True if the answer's cached tokens are the decoder's own."""
        return self.outcome != "ok" or CONNECTORS[self.connector].counts_fetched

    @property
    def prefill_tokens(self) -> int | None:
        """Return the tokens computed by the prefill instance; None if unreported."""
        used = self.prefill_usage
        return used.prompt_tokens - (used.cached_tokens or 0) if used is not None and used.prompt_tokens else None

    def moved(self, prefill: str, why: str) -> None:
        """Note that another instance takes over the prompt."""
        self.prefill, self.reason, self.moves = prefill, self._with(why), self.moves + 1

    def local(self, outcome: str, reason: str) -> None:
        """Note that the decoder computes the prompt itself."""
        self.outcome, self.reason, self.kept = outcome, self._with(reason), None
        self.sent = self.transfer_bytes = None
        self.lent_by, self.lent_tokens = "", 0

    def _with(self, reason: str) -> str:
        return f"{self.reason}; {reason}" if self.reason else reason
