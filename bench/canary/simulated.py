"""Candidates in the twin: their effect on a whole pool, and the part of it that each kind of step shows."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from bench.canary.cells import limits_of
from controlplane.evidence.previews.analysis.tallies import answered, arm_and_cell
from controlplane.evidence.traces.types import LoadedTrace
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Arms, Simulated, TwinFleet
from controlplane.traffic.deliveries.judge.statistics.slow import Limits
from router.policy.schema import document
from router.policy.types import ParsedPolicy

WASHOUT = 0.1  # share of a block


@cache
def policy_of(name: str) -> ParsedPolicy:
    """Parse `STRATEGY` or `STRATEGY,path=value,…`."""
    strategy, *values = name.split(",")
    given = {path: json.loads(value) for path, value in (each.split("=") for each in values)}
    return document.parse(document.apply_overrides(document.default(strategy), given))


@dataclass(frozen=True, eq=False)
class Scene:
    """A fleet with its load under the live policy."""

    fleet: TwinFleet
    trace: Callable[[int], LoadedTrace]  # trace by seed
    live: str

    def play(self, seed: int, name: str = "", arms: Arms | None = None, part: int | None = None) -> list[Simulated]:
        """Play a run. `part`: 0 or 1, one half of the sessions on one half of the fleet."""
        trace, fleet = self.trace(seed), self.fleet
        requests: Sequence = trace.requests
        if part is not None:
            names = list(fleet.instances)[part::2]
            fleet = TwinFleet({each: fleet.instances[each] for each in names})
            mine = [each for each in requests if arm_and_cell(f"half{seed}", _session(each), 0.5)[0] == bool(part)]
            requests = [replace(each, index=index) for index, each in enumerate(mine)]
        policy = policy_of(name or self.live)
        outcome = simulate(fleet, policy, requests, pacing=trace.pacing, seed=seed, arms=arms)
        return list(outcome.requests)

    def canary(self, seed: int, candidate: str, shares: Sequence[tuple[float, float]]) -> list[Simulated]:
        """Play a canary. `shares`: (start, share); growing ones move no session back."""

        def takes(key: str, at_s: float) -> bool:
            share = next(share for since, share in reversed(shares) if at_s >= since)
            return arm_and_cell(str(seed), key, share)[0]

        return self.play(seed, arms=Arms(policy_of(candidate), takes))

    def switchback(self, seed: int, candidate: str, block_s: float) -> list[Simulated]:
        """Return the requests that count: those after the washout."""
        blocks = schedule(seed)
        arms = Arms(policy_of(candidate), lambda _, at_s: blocks[int(at_s // block_s)])
        return [one for one in self.play(seed, arms=arms) if one.sent_s % block_s >= WASHOUT * block_s]

    @cache  # noqa: B019  (as long as the scene)
    def limits(self, seed: int) -> Limits:
        """Return the limits from arms without a difference, so that classes are assigned as in a delivery."""
        return limits_of(list(answered(self.canary(seed, self.live, [(0.0, 0.0)]), "")))


def _session(request: object) -> str:
    """Return the session of a request; in a trace without sessions, the first block distinguishes conversations."""
    blocks = list(request.block_ids())  # type: ignore[attr-defined]
    return request.session or str(blocks[min(1, len(blocks) - 1)] if blocks else request.index)  # type: ignore[attr-defined]


def schedule(seed: int, pairs: int = 500) -> list[bool]:
    draw = random.Random(seed)
    drawn = [draw.random() < 0.5 for _ in range(pairs)]
    return [one for first in drawn for one in (first, not first)]


def mean(requests: Sequence[Simulated], metric: str) -> float:
    return fmean(value for one in requests if (value := getattr(one, f"{metric}_s")) is not None)


def effect(candidate: Sequence[Simulated], control: Sequence[Simulated], metric: str = "ttft") -> float:
    """Return the relative effect on the mean."""
    return mean(candidate, metric) / mean(control, metric) - 1


def arms_of(requests: Sequence[Simulated]) -> tuple[list[Simulated], list[Simulated]]:
    return [one for one in requests if one.candidate], [one for one in requests if not one.candidate]
