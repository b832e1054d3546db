"""An instance: its engine, and its load as seen by the router."""

from collections.abc import Iterable, Sequence
from typing import Any

from controlplane.evidence.twin.simulation.types import SimulatedUse
from fleet.engine.engine import Engine
from fleet.engine.engine_model import EngineModel
from fleet.engine.lockstep import Lockstep
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.shared import SharedStore
from router.policy.types import InstanceState
from router.pool.load.load_order import Load
from router.pool.shortlist import Traits


class SimEndpoint:
    __slots__ = (
        "_samples",
        "_view",
        "changes",
        "decodes",
        "due_s",
        "engine",
        "group",
        "id",
        "kv_usage",
        "media",
        "model",
        "moving",
        "pace",
        "position",
        "prefill_tokens",
        "pull_tokens",
        "pulls",
        "receives",
        "requests",
        "speed",
        "waiting",
    )

    def __init__(
        self, name: str, position: int, model: EngineModel, scaled: EngineModel, store: SharedStore | None = None
    ) -> None:
        """Create an endpoint. `model` is the router's view; `scaled` has blocks of the trace's size."""
        self.id = name
        self.position = position
        self.model = model
        self.engine = Engine(
            scaled.law,
            scaled.kv_blocks,
            scaled.limits,
            api_s=scaled.api_s,
            api_s_per_token=scaled.api_s_per_token,
            tiers=scaled.tiers,
            store=store,
        )
        self.receives = model.transfers is not None or store is not None
        self.media = tuple(tier.device.medium for tier in model.tiers.tiers) if model.tiers is not None else ()
        self.due_s: float | None = None  # next event of the engine
        self.speed = ""  # name of its speed group
        self.pace = 1.0  # pace relative to the fleet's median instance
        self.group: Sequence[SimEndpoint] = (self,)  # ranks that step together
        # In flight, counted like in the router
        self.requests = 0
        self.prefill_tokens = 0  # new tokens of requests without a first token
        self.decodes = 0
        self.pulls = 0  # pulls in progress from it
        self.pull_tokens = 0  # part of `prefill_tokens`
        self.moving = 0  # KV transfers from here
        # As of the last sample
        self.kv_usage = 0.0
        self.waiting = 0
        self._samples: tuple[list[float], list[int], list[int], list[int]] = [], [], [], []  # as in SimulatedUse
        self._view: InstanceState | None = None
        self.changes: set[str] = set()  # ids in its fleet that have changed since the router last checked

    def fits(self, request: EngineRequest) -> bool:
        """Return whether prompt and answer fit into the empty KV cache and the model's window."""
        tokens = request.prompt_tokens + request.output_tokens
        capacity = self.engine.pool.total * self.engine.limits.block_size
        return tokens <= capacity and (self.model.window is None or tokens <= self.model.window)

    @property
    def is_suspect(self) -> bool:
        return False  # instances never fail in a simulation

    def refusal(self, now: float, open_s: float) -> str:
        return ""

    @property
    def traits(self) -> Traits:
        return Traits(self.id, self.model.role, self.model.connector, self.model.pair)

    def load(self, refused: str) -> Load:
        return Load(self.prefill_tokens, self.requests, self.kv_usage, self.model.kv_tokens, refused, self.pace)

    def view(self, refused: str) -> InstanceState:
        """Return this endpoint as the policy sees it; rebuilt after a change."""
        if self._view is None:
            model = self.model
            self._view = InstanceState(  # positional, twice as fast as by name
                self.id,
                0,
                self.requests,
                self.waiting,
                sum(one.decodes for one in self.group) if len(self.group) > 1 else self.decodes,
                self.prefill_tokens,
                self.kv_usage,
                model.kv_tokens,
                model.limits.block_size,
                refused,
                model.role,
                model.connector,
                model.pair,
                self.pace,
                self.pulls,
                self.pull_tokens,
            )
        return self._view

    def sent(self, new_tokens: int) -> None:
        self.requests += 1
        self.prefill_tokens += new_tokens
        self._touch()

    def began(self, new_tokens: int) -> None:
        """Note the first token of a request with this many new tokens."""
        self.prefill_tokens -= new_tokens
        self.decodes += 1
        self._decodes_changed()

    def ended(self) -> None:
        """Note the end of a request after its first token."""
        self.requests -= 1
        self.decodes -= 1
        self._decodes_changed()

    def _decodes_changed(self) -> None:
        for one in self.group:
            one._touch()

    def pull(self, peer: "SimEndpoint", tokens: int, by: int) -> None:
        """Begin (1) or end (-1) a pull from the peer, which counts as load of both (router/pool/load/pull.py)."""
        peer.pulls += by
        self.pull_tokens += by * tokens
        self.prefill_tokens += by * tokens
        peer._touch()
        self._touch()

    def take_pace(self, pace: float) -> None:
        if pace != self.pace:
            self.pace = pace
            self._touch()

    def _touch(self) -> None:
        """Mark a change that the policy can see."""
        self._view = None
        self.changes.add(self.id)

    @property
    def is_settled(self) -> bool:
        """True if the endpoint's metrics stay the same until an event concerns it."""
        return self.due_s is None and self.model.tiers is None

    def sample(self, now: float, number: int) -> None:
        """Read the engine's metrics for the sample with this number, from 0; skipped samples repeat the last one."""
        engine = self.engine
        usage, waiting = round(engine.usage_at(now), 6), engine.waiting
        if usage != self.kv_usage or waiting != self.waiting:
            self.kv_usage, self.waiting = usage, waiting
            self._touch()
        samples = self._samples
        if len(samples[0]) < number:
            self._repeat(number)
        samples[0].append(usage)
        samples[1].append(engine.running)
        samples[2].append(waiting)
        samples[3].append(engine.transferring)

    def _repeat(self, count: int) -> None:
        """Repeat the last sample until there are this many samples."""
        every: Iterable[list[Any]] = self._samples
        missing = count - len(self._samples[0])
        for samples in every if missing else ():
            samples.extend([samples[-1] if samples else 0] * missing)

    def use(self, count: int) -> SimulatedUse:
        """Return the use over `count` samples."""
        self._repeat(count)
        usage, running, waiting, transferring = self._samples
        stats = self.engine.stats()
        moving = tuple(transferring)
        return SimulatedUse(
            tuple(usage), tuple(running), tuple(waiting), stats.preemptions, moving, stats.blocked_s, stats.tiers
        )


# Data-parallel ranks that step together and form one entry of the event queue


class SimStepGroup:
    def __init__(self, endpoints: Sequence[SimEndpoint]) -> None:
        self.endpoints = endpoints
        self.lockstep = Lockstep([endpoint.engine for endpoint in endpoints])

    @property
    def due_s(self) -> float | None:
        """Return the time of the group's next event."""
        return self.endpoints[0].due_s

    @due_s.setter
    def due_s(self, due_s: float | None) -> None:
        for endpoint in self.endpoints:
            endpoint.due_s = due_s


def step_groups(endpoints: Iterable[SimEndpoint]) -> dict[SimEndpoint, SimStepGroup]:
    """Return the group of each endpoint that has one."""
    found: dict[SimEndpoint, SimStepGroup] = {}
    for endpoint in endpoints:
        if len(endpoint.group) > 1 and endpoint not in found:
            found |= dict.fromkeys(endpoint.group, SimStepGroup(endpoint.group))
    return found
