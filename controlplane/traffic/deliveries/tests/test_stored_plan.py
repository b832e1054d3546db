"""Stored plans are converted to the current schema and never checked against current limits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OTTO, WHY, proposed
from controlplane.traffic.policies import publication
from controlplane.traffic.policies import services as policies
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.tests.conftest import edit
from fleet.models import Pool
from fleet.redis import ordered_write
from fleet.redis.ordered_write import Published
from fleet.tries import RowsFailed
from router.contract.redis import redis_keys

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden/plans_schema_1.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_a_plan_of_schema_1_keeps_its_meaning(name: str) -> None:
    assert stored_plan.read(GOLDEN[name]).canonical == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_plan_of_schema_1_reads_as_it_was_parsed(name: str) -> None:
    assert stored_plan.read(GOLDEN[name]) == parse_plan(GOLDEN[name], pools=GOLDEN[name]["pools"])


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid every step, share and hold of the plans in these tests."""
    for path in ("canary.share", "canary.for_s", "canary.max_s", "full.bake_s", "hold.error_s"):
        monkeypatch.setitem(NUMBERS, path, replace(NUMBERS[path], range=(0.0, 0.0)))


@pytest.fixture
def running(redis_away: None, pool: Pool, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> Delivery:
    """A running delivery whose plan exceeds the current limits."""
    started = services.start(proposed(policy, CANARY, FULL), OTTO)
    narrow(monkeypatch)
    return started


def test_a_delivery_whose_plan_exceeds_current_limits_can_be_ended(running: Delivery) -> None:
    assert services.abort(running, OTTO).state == "aborted"


def test_a_policy_with_an_oversized_delivery_in_its_history_can_be_published(running: Delivery, policy: Policy) -> None:
    services.abort(running, OTTO)
    edit(policy, OTTO, heavy_new_tokens=11_000)
    assert policies.publish(policy, OTTO, WHY).version.number == 3


def test_values_lost_by_redis_are_written_again_whatever_the_limits_are(
    live_redis: Any, pool: Pool, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.start(proposed(policy, CANARY, FULL), OTTO)
    narrow(monkeypatch)
    live_redis.flushall()
    assert publication.republish_missing() == ["demo"]


def test_a_plan_that_cannot_be_read_does_not_keep_other_policies_from_routers(
    live_redis: Any, pool: Pool, policy: Policy
) -> None:
    broken = services.start(proposed(policy, CANARY, FULL), OTTO)
    policies.create_policy("night", policy.versions.get(number=1).document, OTTO, WHY)
    Pool.objects.create(name="dark", model="m", kind="sim", policy="night")
    Delivery.objects.filter(pk=broken.pk).update(plan={"schema": 0})
    live_redis.flushall()
    with pytest.raises(RowsFailed, match=r"^policy default: KeyError: 'pools'$"):
        publication.republish_missing()
    assert live_redis.smembers(redis_keys.POOLS) == {b"dark"}


def test_a_policy_that_cannot_be_written_does_not_keep_others_from_routers(
    live_redis: Any, pool: Pool, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies.create_policy("night", policy.versions.get(number=1).document, OTTO, WHY)
    Pool.objects.create(name="dark", model="m", kind="sim", policy="night")
    live_redis.flushall()
    write = ordered_write.write

    def refuses(order: int, found: Published) -> int:
        if redis_keys.policy_key("demo") in found:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return write(order, found)

    monkeypatch.setattr(ordered_write, "write", refuses)
    with pytest.raises(RowsFailed, match=r"^policy default: UnicodeEncodeError"):
        publication.republish_missing()
    assert live_redis.smembers(redis_keys.POOLS) == {b"dark"}
