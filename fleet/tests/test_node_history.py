"""Events of a node are kept with actor, reason and duration; a node that is gone for good can be forgotten."""

import datetime as dt
from typing import Any

import pytest
import redis
from django.utils import timezone

from fleet.control import nodes
from fleet.control.forget import forget
from fleet.models import Instance, InstanceEvent, Node, Pool, Port
from fleet.observe.failover_probe import FailoverProbe
from fleet.services import NotPossible
from router.contract.redis import redis_keys
from router.contract.redis.staleness import NODE_GONE_S
from router.tests.values import loaded

pytestmark = pytest.mark.usefixtures("db", "live_redis")


def ago(seconds: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(seconds=seconds)


def lost(name: str = "gpu-1", seconds: float = 95.0) -> Node:
    return Node.objects.create(name=name, last_seen=ago(seconds))


def instance(state: str, node: str = "gpu-1") -> Instance:
    pool, _ = Pool.objects.get_or_create(name="p", model="m", kind="sim")
    number = Instance.objects.count()
    return Instance.objects.create(pool=pool, name=f"p-{number}", ordinal=number, node=node, state=state)


def happened(name: str = "gpu-1") -> list[tuple[str, str, str, int | None]]:
    """Return (kind, actor, reason, whole seconds) of events, oldest first."""
    found = InstanceEvent.objects.filter(node=name).order_by("at", "pk")
    return [(e.kind, e.actor, e.reason, None if e.seconds is None else int(e.seconds)) for e in found]


def test_a_silent_node_is_reported_once_and_the_length_of_its_silence_when_it_returns() -> None:
    node = lost()
    assert nodes.record_silent(timezone.now()) == ["gpu-1"]
    assert nodes.record_silent(timezone.now()) == []
    nodes.record_heartbeat("gpu-1", node.last_seen + dt.timedelta(seconds=120))
    nodes.record_heartbeat("gpu-1", node.last_seen + dt.timedelta(seconds=125))
    assert happened() == [("silent", "", "", None), ("back", "", "", 120)]
    assert Node.objects.get().missed_at is None


def test_a_node_that_reports_is_not_missed() -> None:
    nodes.record_heartbeat("gpu-1", timezone.now())
    assert nodes.record_silent(timezone.now()) == []
    assert happened() == [("reports", "", "", None)]


def test_actions_on_a_node_are_recorded_with_how_long_it_was_closed() -> None:
    lost()
    nodes.cordon("gpu-1", "ada", "new cable")
    InstanceEvent.objects.update(at=ago(60))
    nodes.uncordon("gpu-1", "bob")
    assert happened() == [("cordoned", "ada", "new cable", None), ("open again", "bob", "", 60)]


def test_pages_name_the_missing_nodes(live_redis: redis.Redis) -> None:
    lost("gpu-1")
    nodes.record_heartbeat("gpu-2", timezone.now())
    nodes.record_silent(timezone.now())
    nodes.publish(timezone.now())
    told: Any = loaded(live_redis.get(redis_keys.NODES))  # type: ignore[arg-type]
    assert [(node["name"], node["missed_at"] is None) for node in told["nodes"]] == [("gpu-1", False), ("gpu-2", True)]


def test_a_silence_of_redis_is_not_blamed_on_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    lost()
    probe = FailoverProbe()
    probe._began -= nodes.SILENT_S
    with monkeypatch.context() as away:
        away.setattr(nodes, "publish", lambda now: False)
        probe.step(timezone.now())
    probe.step(timezone.now())
    assert happened() == []
    probe._began -= nodes.SILENT_S
    probe.step(timezone.now())
    probe.close()
    assert [kind for kind, *_ in happened()] == ["silent"]


def test_no_node_is_missing_right_after_a_cold_start() -> None:
    lost()
    failover_probe = FailoverProbe()
    failover_probe.step(timezone.now())
    failover_probe.close()
    assert happened() == []


def test_a_lost_node_without_running_instances_can_be_forgotten() -> None:
    lost()
    row = instance("stopped")
    Port.objects.create(node="gpu-1", number=18100, use="http", instance=row)
    forget("gpu-1", "ada", "scrapped")
    row.refresh_from_db()
    assert (row.node, Port.objects.count(), Node.objects.count()) == ("", 0, 0)
    assert happened() == [("forgotten", "ada", "scrapped", 95)]


@pytest.mark.parametrize("state", ["starting", "loading", "ready", "draining", "unreachable", "stopping"])
def test_a_node_is_not_forgotten_while_an_instance_could_run_there(state: str) -> None:
    lost()
    instance(state)
    with pytest.raises(NotPossible, match=rf"still holds p-0 \({state}\)"):
        forget("gpu-1", "ada")
    assert Node.objects.exists()


def test_a_refusal_names_a_few_instances_and_counts_the_others() -> None:
    lost()
    for _ in range(6):
        instance("unreachable")
    with pytest.raises(NotPossible, match=r"p-3 \(unreachable\) and 2 more"):
        forget("gpu-1", "ada")


def test_a_node_that_is_alive_cannot_be_forgotten() -> None:
    lost(seconds=NODE_GONE_S - 20)
    with pytest.raises(NotPossible, match=r"is alive: it reported 1. s ago"):
        forget("gpu-1", "ada")
    with pytest.raises(Node.DoesNotExist):
        forget("gpu-7", "ada")


def test_a_node_that_reports_while_it_is_being_forgotten_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    lost()
    monkeypatch.setattr("fleet.control.forget.why_not", lambda node, now: nodes.record_heartbeat("gpu-1", now) and "")
    with pytest.raises(NotPossible, match="has just reported"):
        forget("gpu-1", "ada")
    assert Node.objects.exists()
