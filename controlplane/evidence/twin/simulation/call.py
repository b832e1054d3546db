"""A request in the twin."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.types import Simulated
from fleet.engine.engine_model import TransferModel
from fleet.engine.request import NOTHING_CACHED, EngineRequest
from fleet.engine.tiers.shared import SharedStore
from router.policy.types import Decision
from router.pool.admission import Admission


@dataclass(slots=True, eq=False)
class Handover:
    """A KV transfer from the prefill instance to the decode instance."""

    sender: SimEndpoint
    receiver: SimEndpoint
    transfers: TransferModel
    new_tokens: int  # tokens computed by the sender
    prefill: EngineRequest  # work in the sender's engine
    work: EngineRequest  # work in the receiver's engine
    asked_s: float = 0.0  # when the decoder first asked whether the prompt has been computed
    sent_s: float = 0.0  # when the decoder received the request, or could have pulled its KV
    size: int = 0  # bytes moved
    store: SharedStore | None = None  # store through which the KV is passed; nothing is then held for the decoder
    is_held: bool = False  # whether the blocks can be pulled
    pull_s: float | None = None  # predicted time, if the policy lets the receiver pull
    sharing: int = 1  # pulls in progress from the sender, including this one
    pull_tokens: int = 0  # tokens for which the receiver waits; 0 once the handover is over
    # Blocks that the sender takes from a decoder; None once it has them, or if it needs none
    lent: "LentWork | None" = None
    lent_tokens: int = 0

    def pull_begins(self, tokens: int, predicted_s: float) -> None:
        self.receiver.pull(self.sender, tokens, 1)
        self.pull_s, self.sharing, self.pull_tokens = predicted_s, self.sender.pulls, tokens

    def pull_ends(self) -> None:
        """End the pull, because the KV has arrived or the request has failed; further calls change nothing."""
        if self.pull_tokens:
            self.receiver.pull(self.sender, self.pull_tokens, -1)
            self.pull_tokens = 0


@dataclass(slots=True, eq=False)
class LentWork:
    """An answer whose blocks its decoder keeps for the prefill of the session's next turn."""

    decoder: SimEndpoint
    work: EngineRequest


@dataclass(slots=True, eq=False)
class SimCall:
    request: TraceRequest
    sent_s: float
    admission: Admission
    chain: Sequence[int]  # chain of its prompt
    session: str | None  # the client's name, or a name derived from the conversation
    turn: int  # number of earlier requests
    draw: float
    decision: Decision | None = None
    shadow: Decision | None = None
    candidate: bool = False  # True if the candidate, of the two arms, decides
    arm_class: str = ""
    handover: Handover | None = None  # set if its prompt is computed on another instance
    alone: bool = False  # True if no other request runs on its instance until its first token
    work: EngineRequest | None = None  # work in the decoding engine
    media: Sequence[str] = ()  # media of that engine's tiers below the GPU
    slot_s: float = 0.0  # time at which it was sent to an instance
    ready_s: float = 0.0  # time at which the engine's API had passed the request on
    # Times when KV from the shared store was requested, and when it arrived
    pulled_s: tuple[float, float] | None = None
    transfers: int = 0  # KV transfers from another instance or the store

    @property
    def key(self) -> str:
        return self.session or f"request {self.request.index}"

    @property
    def leased(self) -> int:
        """Return the new tokens that count for the decoding instance, as in the router."""
        return self.decision.new_tokens if self.decision is not None and self.handover is None else 0

    def over(self, seed: int, now: float, outcome: str, code: str = "") -> Simulated:
        request, work, decision, shadow = self.request, self.work, self.decision, self.shadow
        ttft = tpot = second = None
        if work is not None and outcome == "ok":
            first_s = self._first_token_s(work)
            ttft = first_s - self.sent_s
            if work.output_tokens > 1:
                second = work.second_token_s - self.sent_s
                tpot = (work.finished_s - first_s) / (work.output_tokens - 1)
        return Simulated(
            request.index,
            seed,
            request.session,
            self.sent_s,
            request.input_tokens,
            request.output_tokens,
            work.cached_tokens if work is not None else 0,
            ttft,
            tpot,
            now - self.sent_s,
            decision.instance if decision is not None and outcome != "refused" else "",
            decision.request_class if decision is not None else "",
            outcome,
            code,
            self.admission.queued_s,
            shadow is not None and decision is not None and _way(shadow) != _way(decision),
            self.candidate,
            self.key,
            self.arm_class,
            second,
            work.interruptions if work is not None else 0,
            *(self._waits(work) if work is not None and outcome == "ok" else (0.0, 0.0)),
            work.cached_from(self.media) if work is not None else NOTHING_CACHED,
            self.transfers,
        )

    def _waits(self, work: EngineRequest) -> tuple[float, float]:
        """Return (queueing time, time waiting for KV) until the first token; computing and the engine's API make up
        the rest of the TTFT."""
        handover, queued_s = self.handover, self.admission.queued_s
        if handover is not None:
            prefill = handover.prefill
            waited_s = queued_s + prefill.scheduled_s - prefill.ready_s
            return waited_s, 0.0 if handover.transfers.together else work.scheduled_s - handover.sent_s
        waited_s = queued_s + work.scheduled_s - work.ready_s
        if self.pulled_s is None:
            return waited_s, min(work.load_s, work.first_token_s - work.scheduled_s)
        begun_s, came_s = self.pulled_s
        return waited_s + begun_s - self.ready_s, came_s - begun_s

    def _first_token_s(self, work: EngineRequest) -> float:
        handover = self.handover
        return (
            handover.prefill.first_token_s
            if handover is not None and handover.transfers.together
            else work.first_token_s
        )


def _way(decision: Decision) -> tuple[str, str, str]:
    return decision.instance, decision.flow, decision.prefill
