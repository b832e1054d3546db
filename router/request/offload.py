"""What became of computing one request's prompt on another instance than the one that decodes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class PrefillFailed(Exception):
    """The prompt was not computed elsewhere; the message says why."""

    timed_out = False


class PrefillLate(PrefillFailed):
    timed_out = True


@dataclass(slots=True)
class Offload:
    connector: str
    prefill: str  # the instance that computes the prompt
    outcome: str = ""  # ok, fallback, ineligible or failed (wire.py); empty while it is under way
    reason: str = ""  # why the instance that decodes computes the prompt as well, in words
    began: float | None = None  # s, of the call's clock: the prefill was sent
    prefill_ms: float | None = None
    sent: float | None = None  # s, of the call's clock: the decode request was sent, the transfer can begin
    arrived: float | None = None  # s, of the call's clock: its first byte
    transfer_bytes: int | None = None  # what had to move, as far as sizes are known
    alone: bool = False  # the instance had nothing else of this router's to compute
    prefill_tokens: int | None = None  # it computed
    kept: Mapping[str, Any] | None = None  # blocks that are still held for a decoder, as the prefill's answer says

    @property
    def flow(self) -> str:
        return f"offload_{self.connector}" if self.outcome in ("", "ok") else "colocated"

    @property
    def transfer_ms(self) -> float | None:
        """From sending the decode request to its first byte: the transfer, and one step of the decoder."""
        if self.sent is None or self.arrived is None:
            return None
        return (self.arrived - self.sent) * 1000

    def local(self, outcome: str, reason: str) -> None:
        """The instance that decodes does all of it."""
        self.outcome, self.reason, self.kept = outcome, reason, None
        self.sent = self.transfer_bytes = None
