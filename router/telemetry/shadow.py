"""Lets a delivery's candidate repeat the live version's decision when the receipt is written, after the client has
received its answer. The situation is taken from the receipt, so nothing is looked up again. The sampling share is
halved while this uses more than COST of the router's CPU, and doubled again once it uses much less.
"""

import time
from collections.abc import Callable
from random import random

from router.contract.redis.published import SplitRollout
from router.contract.redis.receipt import ShadowDecision
from router.policy.candidates import Candidates
from router.policy.replay import DecisionInputs
from router.policy.types import Decision, ParsedPolicy
from router.request.call import Call
from router.telemetry.delivery_tallies import ShadowCounts

COST = 0.05  # share of the router's CPU
CHEAP = 0.02  # below this share sampling doubles
WINDOW_S = 1.0
LEAST_SAMPLE = 2.0**-12

Clock = Callable[[], float]


class ShadowDecider:
    def __init__(self, own_s: Clock = time.thread_time, process_s: Clock = time.process_time) -> None:
        """Set the clocks, which count the CPU time of this thread and of the whole process."""
        self._own_s, self._process_s = own_s, process_s
        self._scale = 1.0  # factor on the delivery's sampling share
        self._spent_s = 0.0  # CPU s in this window
        self._window_at = float("-inf")  # s, monotonic
        self._process_at = 0.0  # CPU s

    def sample(self, rollout: SplitRollout) -> float:
        return rollout.shadow * self._scale

    def decide(self, call: Call, counts: ShadowCounts, now: float) -> float:
        """Set the call's shadow decision if it is sampled and belongs to the current generation; return the CPU
        seconds used."""
        split, assigned, decision = call.pool.split, call.assigned, call.decision
        if split is None or assigned is None or decision is None or assigned.considered or call.candidate is not None:
            return 0.0
        assigned.considered = True  # a receipt that could not be written is considered again
        self._adjust(now)
        policy = split.shadow_of(assigned, now)
        candidates = decision.candidates
        if policy is None or not isinstance(candidates, Candidates) or random() >= self.sample(split.rollout):  # noqa: S311 - a sample
            return 0.0
        began = self._own_s()
        shadow = _decided(decision, DecisionInputs(*candidates.situation()), policy, split.rollout.candidate.version)
        spent = self._own_s() - began
        self._spent_s += spent
        counts.add(decision.instance, shadow, spent)
        call.shadow = shadow
        return spent

    def _adjust(self, now: float) -> None:
        if now - self._window_at < WINDOW_S:
            return
        process = self._process_s()
        if self._spent_s > COST * (process - self._process_at):
            self._scale = max(self._scale / 2, LEAST_SAMPLE)
        elif self._spent_s < CHEAP * (process - self._process_at):
            self._scale = min(self._scale * 2, 1.0)
        self._window_at, self._process_at, self._spent_s = now, process, 0.0


def _decided(live: Decision, inputs: DecisionInputs, policy: ParsedPolicy, version: int) -> ShadowDecision:
    try:
        made = inputs.decide(policy)
    except Exception as error:
        return ShadowDecision(version=version, error=f"{type(error).__name__}: {error}"[:300])
    return ShadowDecision(
        version=version,
        instance=made.instance,
        flow=made.flow,
        request_class=made.request_class,
        changed=(made.instance, made.prefill) != (live.instance, live.prefill),
        refused=not made.instance,
    )
