"""The router in the twin: its sessions, prefix index and load, with the router's own `decide`."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from controlplane.evidence.twin.simulation.call import Handover, SimCall
from controlplane.evidence.twin.simulation.index import Index
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.types import Arms
from fleet.engine.request import EngineRequest as Work
from router.policy.held import most
from router.policy.rules.classify import classify
from router.policy.serves import ANY, able
from router.policy.types import UNKNOWN, Decision, ParsedPolicy, RoutingRequest
from router.pool.affinity import Affinity
from router.pool.fleet_view import FleetView
from router.pool.load.lent import priced, share
from router.pool.load.pace import PACES_S, Pace
from router.pool.queue.admission_queue import AdmissionQueue

PREFIX_TOKENS = 256  # 1,024 bytes
SPREAD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio (Knuth, volume 3, 6.4)


class SimRouter:
    def __init__(
        self,
        endpoints: Sequence[SimEndpoint],
        index: Index,
        policy: ParsedPolicy,
        shadow: ParsedPolicy | None,
        lent: Callable[[SimCall], tuple[SimEndpoint, int] | None],
        arms: Arms | None = None,
    ) -> None:
        self._index = index
        self._policy = policy
        self._arms = arms
        self._shadow = shadow
        self._ttl_s: int = policy["affinity.ttl_s"]
        self._affinity = Affinity()
        self._pace = Pace()
        self._paced_at = -PACES_S
        _group(endpoints)
        self._speeds = {endpoint.id: endpoint.speed for endpoint in endpoints}
        self._uneven: dict[str, float] = {}  # paces other than 1
        laws = [endpoint.model.law for endpoint in endpoints]
        names = ("context_cost", "equal_cost_tokens")
        self._law = {name: fmean(getattr(law, name) for law in laws) for name in names} if laws else {}
        # The values that a router reads from the pool's entry before any transfer
        moving = (endpoint.model.transfers for endpoint in endpoints)
        self._kv_bytes = next((one.bytes_per_token for one in moving if one is not None), 0.0)
        self._rates = replace(UNKNOWN, kv_bytes_per_token=self._kv_bytes, **self._law)
        self._by_id = {endpoint.id: endpoint for endpoint in endpoints}
        self._fleet_view = FleetView(self._by_id)
        self.queue = AdmissionQueue()
        self.queue.follow(policy)
        self._lent = lent

    def able(self, call: SimCall) -> bool:
        """Return whether an instance with enough capacity could take the request; instances never
        fail in a simulation.
        """
        return able(ANY, self._fleet_view.fleet({}, 0.0, 0.0), self.policy_of(call))

    def session_of(self, named: str, chain: Sequence[int]) -> str | None:
        """Return the session by its name, or else by the conversation that the prompt continues."""
        return named or self._affinity.session_of_chain(chain)

    def policy_of(self, call: SimCall) -> ParsedPolicy:
        return self._arms.candidate if self._arms is not None and call.candidate else self._policy

    def assign(self, call: SimCall) -> None:
        """Assign the request to an arm permanently."""
        if self._arms is not None:
            call.candidate = self._arms.takes(call.key, call.sent_s)
            cached = most(self._index.held(call)[0])
            call.arm_class = classify(call.request.input_tokens, cached, self._policy)

    def decide(self, call: SimCall, now: float) -> Decision:
        """Decide now; the shadow policy repeats the decision without effect."""
        request = self._request(call, now)
        if self._shadow is not None:
            call.shadow = self._fleet_view.decide(request, self._shadow, call.draw, {}, now, 0.0)
        call.decision = self._fleet_view.decide(request, self.policy_of(call), call.draw, {}, now, 0.0)
        return call.decision

    def _request(self, call: SimCall, now: float) -> RoutingRequest:
        tokens = call.request.input_tokens
        bound = self._affinity.get(call.session, now, self._ttl_s) if call.session is not None else None
        bound_to, history_tokens = (bound.instance, bound.history_tokens) if bound is not None else (None, 0)
        held, tiers = self._index.held(call)
        if (lent := self._lent(call)) is not None:
            decoder, much = lent
            takers = (name for name, one in self._by_id.items() if one.model.role == "prefill" and one is not decoder)
            held = priced(held, much, takers, self._rates)
        key = _prefix_key(call)
        further = ("", True, call.request.band) if call.request.band else ()
        return RoutingRequest(
            tokens, call.session, bound_to, history_tokens, held, tiers, self._rates, key, call.turn, *further
        )

    def offered(self, call: SimCall, prefill: SimEndpoint, tokens: int) -> int | None:
        """Return how many lent tokens to transfer: 0 if computing them is as fast, which releases the blocks; None if
        nothing is offered, because the prefill instance holds no block of the prompt.
        """
        held = self._index.held(call)[0].get(prefill.id, 0)
        moved, taken = share(tokens, held, call.request.block_tokens, self._rates)
        return moved if taken else None

    def sent(self, call: SimCall, endpoint: SimEndpoint, now: float, *, pulls: bool) -> None:
        """Note the instance of the request: bind the session, and expect the prompt in the instance's cache if the
        instance computes it.
        """
        if not pulls:
            self._index.sent(call, endpoint.id)
        if call.session is not None:
            self._affinity.bind(call.session, endpoint.id, now, self._ttl_s, shared=False)

    def computes(self, call: SimCall, endpoint: SimEndpoint) -> None:
        """Note that the instance computes the prompt for a decoder."""
        self._index.sent(call, endpoint.id)

    def pulled(self, call: SimCall, endpoint: SimEndpoint) -> None:
        """Note that the KV of the prompt has arrived from a peer; earlier requests did not find it on the instance."""
        self._index.sent(call, endpoint.id)

    def began(self, call: SimCall, endpoint: SimEndpoint) -> None:
        """Note that the instance has computed the prompt."""
        self._index.began(call, endpoint.id)

    def moved(self, handover: Handover, slot_s: float, now: float) -> None:
        """Note the first token of an answer whose request was sent at `slot_s`, perhaps after a KV transfer."""
        if handover.size:
            self._pace.transfer(handover.size * handover.sharing, now - handover.sent_s)
            if handover.pull_s is not None:
                self._pace.pulled(now - slot_s, handover.pull_s)
            self._measured()

    def _measured(self) -> None:
        self._rates = self._pace.rates(self._kv_bytes, self._rates.equal_cost_tokens, self._law)

    def answered(self, call: SimCall, endpoint: SimEndpoint, work: Work) -> None:
        """Learn from the answer's `usage` and times."""
        request = call.request
        tokens, seconds = request.input_tokens - work.cached_tokens, work.first_token_s - call.sent_s
        if call.alone and self._pace.prefill(tokens, work.cached_tokens, seconds, endpoint.id, endpoint.speed):
            self._measured()
            if work.finished_s - self._paced_at >= PACES_S:
                self._paced_at = work.finished_s
                self._take_paces()
        if call.session is not None:
            self._affinity.answered(call.session, request.input_tokens + request.output_tokens)
        self._index.answered(call, endpoint.id, work)
        self.queue.outputs.answered(request.output_tokens)
        call.admission.settle(tokens, request.output_tokens)

    def _take_paces(self) -> None:
        uneven = self._pace.uneven(self._speeds)
        for name in uneven.keys() | self._uneven.keys():
            self._by_id[name].take_pace(uneven.get(name, 1.0))
        self._uneven = uneven


def _group(endpoints: Sequence[SimEndpoint]) -> None:
    """Group endpoints by speed (equal laws and roles) and by the ranks that step together."""
    speeds: dict[tuple[object, str], str] = {}
    together: defaultdict[str, list[SimEndpoint]] = defaultdict(list)
    for endpoint in endpoints:
        model = endpoint.model
        endpoint.speed = speeds.setdefault((model.law, model.role), str(len(speeds)))
        if model.together:
            together[model.together].append(endpoint)
    for group in together.values():
        for endpoint in group:
            endpoint.group = group


def _prefix_key(call: SimCall) -> int:
    """Return the router's key: the number of the block in which the prompt's first 1,024 bytes end. Block numbers are
    spread, because those of different sessions may differ only in their upper bits."""
    beginning = call.chain[: max(1, PREFIX_TOKENS // call.request.block_tokens)]
    return (beginning[-1] * SPREAD >> 48) & 0xFFFF if beginning else 0
