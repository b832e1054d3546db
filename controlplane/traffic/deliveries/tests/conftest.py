"""The people: otto proposes, ada approves and administers, vera only reads."""

from typing import Any

import pytest

from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.tests.conftest import edit, policy, pool, routers  # noqa: F401  (fixtures)

OTTO = Actor("user", "otto")
OLGA = Actor("user", "olga")
ADA = Actor("user", "ada", is_admin=True)
CI = Actor("token", "ci (otto)", "otto")
WHY = "less prefill on warm instances"
CANARY: dict[str, Any] = {"mode": "canary", "share": 0.05, "for_s": 60}
SHADOW: dict[str, Any] = {"mode": "shadow", "sample": 1.0, "for_s": 60}
FULL: dict[str, Any] = {"mode": "full", "bake_s": 600}
STEPS = [SHADOW, CANARY, {**CANARY, "share": 0.25, "then": "ask"}, FULL]


def plan(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"steps": list(steps or STEPS), **more}


def proposed(policy: Policy, *steps: dict[str, Any], tokens: int = 9000, **more: Any) -> Delivery:  # noqa: F811
    edit(policy, OTTO, heavy_new_tokens=tokens)
    return services.propose(policy, plan(*steps, **more), OTTO, WHY)


@pytest.fixture
def delivery(redis_away: None, pool: Any, policy: Policy) -> Delivery:  # noqa: F811
    """A delivery in the state ready, of v2 over v1."""
    return proposed(policy)
