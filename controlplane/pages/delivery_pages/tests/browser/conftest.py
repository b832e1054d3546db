"""A separate policy for each test, on a pool of simulated engines; its delivery is advanced by hand."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401

NAMES = (f"way-{number}" for number in itertools.count(1))

MAKE = """
from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import services
from fleet.models import Pool
otto = Actor("user", "otto")
services.create_policy("{name}", services.default_document("adaptive_v1"), otto, "for one browser test")
Pool.objects.create(name="{name}", model="m", kind="sim", policy="{name}", replicas=2)
policy = services.selectors.policy("{name}")
services.open_draft(policy, otto)
services.patch_draft(policy, {{"classes.heavy_new_tokens": 12000}}, otto)
"""
MOVE = """
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, Trigger
from controlplane.pages.delivery_pages.tests.values import finding
delivery = Delivery.objects.get(policy__name="{name}")
for what, by in {moves}:
    delivery = move(delivery, TransitionRequest(Trigger(what), Origin(by)))
Look.objects.create(delivery=delivery, state=delivery.state, step=delivery.step, generation=delivery.generation,
                    findings=[finding(verdict="fine", candidate=520.0, control=500.0).as_dict(),
                              finding("slow").as_dict(), finding("tpot", "warm").as_dict()])
"""


@dataclass(frozen=True)
class OnItsWay:
    web: Web
    name: str

    def run(self, script: str, **more: object) -> None:
        self.web.run(script.format(name=self.name, **more))

    def to_canary(self) -> None:
        """Move an arming delivery to its first canary."""
        self.run(MOVE, moves=[("armed", "system"), ("pass", "judge")])

    def to_its_end(self) -> None:
        """Let a guard stop the delivery."""
        self.run(MOVE, moves=[("fail", "judge")])

    def to_next(self) -> None:
        """Advance the delivery past its current step."""
        self.run(MOVE, moves=[("pass", "judge")])


@pytest.fixture
def way(web: Web) -> Iterator[OnItsWay]:  # noqa: F811
    made = OnItsWay(web, next(NAMES))
    made.run(MAKE)
    yield made
    made.run("from fleet.models import Pool; Pool.objects.filter(name='{name}').delete()")
