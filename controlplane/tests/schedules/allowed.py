"""Checks from rows alone, without the code under test, whether the rules in force allowed what has just gone live."""

from dataclasses import dataclass

from django.utils import timezone

from controlplane.traffic.deliveries.models import Delivery, Freeze
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.policies.models import Direct, Policy, PolicyVersion

ADMINISTRATORS = frozenset({"ada"})
WAITS = frozenset({State.PROPOSED, State.READY})
STILL = frozenset({State.ARMING, State.HOLDING, State.WAITING, State.PAUSED})  # live decides every request
GOING = frozenset({State.ARMING, State.STEP, State.HOLDING, State.WAITING, State.PAUSED, State.BAKING, State.DELIVERED})


class Forbidden(AssertionError):
    """Something is live that the rules did not allow."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The policy's state in the database."""

    live: int
    direct: str
    approvals_needed: int
    frozen: bool
    states: dict[int, str]  # states of its deliveries
    shares: dict[int, float]  # share of the requests that each candidate gets, shadow included

    @classmethod
    def read(cls, policy: Policy) -> "Facts":
        rows = list(policy.deliveries.values_list("pk", "state", "share", "shadow"))
        states = {pk: state for pk, state, _, _ in rows}
        shares = {pk: max(share, shadow) for pk, _, share, shadow in rows}
        frozen = Freeze.objects.filter(removed_at=None, start__lt=f"{timezone.now():%Y-%m-%dT%H:%M}").exists()
        return cls(policy.live, policy.direct, policy.approvals_needed, frozen, states, shares)

    def check(self, policy: Policy, before: "Facts") -> None:
        """Check what became live between two observations by the rules; nobody changes those and publishes in the
        same step."""
        if self.live != before.live:
            self._live(policy.versions.get(number=self.live))
        for pk, state in self.states.items():
            self._demand(state not in STILL or not self.shares[pk], f"delivery {pk} stands still and splits requests")
            if state in GOING and before.states.get(pk, State.PROPOSED) in WAITS:
                self._started(policy.deliveries.get(pk=pk))

    def _live(self, version: PolicyVersion) -> None:
        if version.rollback_of is not None:
            return
        if Delivery.objects.filter(candidate=version).exists():
            self._demand(not self.frozen, f"v{version.number} has gone live in a freeze")
            return
        by_right = self.direct == Direct.ALLOWED or version.actor_name in ADMINISTRATORS
        self._demand(self.direct != Direct.NEVER and by_right, f"v{version.number} went live directly")
        self._demand(not self.approvals_needed, f"v{version.number} went live without an approval")
        self._demand(not self.frozen, f"v{version.number} was published in a freeze")

    def _started(self, delivery: Delivery) -> None:
        others = set(delivery.approvals.values_list("person", flat=True)) - {delivery.proposer, *delivery.drafters}
        needed = max(delivery.plan["approvals"]["needed"], self.approvals_needed)
        self._demand(len(others) >= needed, f"{delivery} has started with {len(others)} of {needed} approvals")
        self._demand(not self.frozen, f"{delivery} has started in a freeze")

    def _demand(self, held: bool, what: str) -> None:
        if not held:
            raise Forbidden(f"{what}, under {self}")
