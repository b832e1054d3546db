"""Predicts what a plan can show, from the newest receipts and earlier switchbacks of the policy. The prediction is for
information only; nothing is refused because of it.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.traffic.deliveries import results, selectors
from controlplane.traffic.deliveries.foresight.recent import RecentTraffic, traffic_of
from controlplane.traffic.deliveries.foresight.steps import Foreseen, about, foreseen
from controlplane.traffic.deliveries.judge.evidence import newest_receipts
from controlplane.traffic.deliveries.judge.statistics import student
from controlplane.traffic.deliveries.judge.verdicts import levels_of
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import NEEDED, Canary, Plan, Switchback
from controlplane.traffic.policies.models import Policy
from fleet.counted import counted

LOOKED_AT = 20  # number of the policy's latest deliveries to search


@dataclass(frozen=True, slots=True)
class Foresight:
    traffic: str = ""  # basis of the prediction; empty if no step of the plan compares
    lines: tuple[Foreseen, ...] = ()
    complete: bool = False  # True if the traffic of every pool is known

    @property
    def said(self) -> list[str]:
        """Return the prediction as lines of text, after a line that names its basis."""
        head = [f"what it can show, {self.traffic}"] if self.traffic else []
        return [*head, *(each.text for each in self.lines)]


def foresee(policy: Policy, plan: Plan, now: float | None = None) -> Foresight:
    if not any(isinstance(step, Canary | Switchback) for step in plan.steps):
        return Foresight()
    receipts = newest_receipts()
    pools = {pool: traffic_of(pool, receipts) for pool in plan.pools}
    said = _traffic(pools, time.time() if now is None else now)
    return Foresight(said, tuple(foreseen(plan, pools, spreads(policy))), None not in pools.values())


def of_delivery(delivery: Delivery) -> Foresight:
    return foresee(delivery.policy, stored_plan.read(delivery.plan))


def _traffic(pools: Mapping[str, RecentTraffic | None], now: float) -> str:
    known = [each for each in pools.values() if each is not None]
    unknown = [pool for pool, each in pools.items() if each is None]
    said = []
    if known:
        age, seconds = now - max(each.until for each in known), max(each.seconds for each in known)
        requests = counted(sum(each.requests for each in known), "request")
        said.append(f"from {requests} within {about(seconds)}, the newest {about(max(0.0, age))} ago")
    if unknown:
        said.append(f"no recent traffic of {', '.join(unknown)}: how long its classes take is not known")
    return "; ".join(said)


# The spread of the pairs in earlier switchbacks


def spreads(policy: Policy) -> dict[tuple[str, str], float]:
    """Return the spreads from the newest delivery whose switchback was judged; with several pools, the largest of
    each."""
    for delivery in selectors.deliveries(policy)[:LOOKED_AT]:
        plan = stored_plan.read(delivery.plan)
        number = next((n for n, step in enumerate(plan.steps, 1) if isinstance(step, Switchback)), 0)
        found = _spreads(plan, [each.shown for each in results.read(delivery.results, plan) if each.step == number])
        if found:
            return found
    return {}


def _spreads(plan: Plan, judged: Sequence[Sequence[results.Shown]]) -> dict[tuple[str, str], float]:
    """Return the spreads, computed from the intervals of the last judgement; each judgement has half the level of the
    previous one."""
    complete = [shown for shown in judged if any(each.upper is not None for each in shown)]
    if not complete:
        return {}
    level = levels_of(plan).fine / 2 ** (len(complete) - 1)
    found: dict[tuple[str, str], float] = {}
    for metric, name, spread in _each_spread(plan, complete[-1], level):
        found[metric, name] = max(spread, found.get((metric, name), 0.0))
    return found


def _each_spread(plan: Plan, shown: Sequence[results.Shown], level: float) -> Iterator[tuple[str, str, float]]:
    """Yield each spread s by solving upper = estimate + t·s/√n, of ln ratios."""
    t = student.quantile(1 - level, plan.pairs - 1)
    for each in shown:
        if each.metric in NEEDED and each.upper is not None and each.estimate is not None:
            width = math.log1p(each.upper) - math.log1p(each.estimate)
            yield each.metric, each.request_class, width / t * math.sqrt(plan.pairs)
