"""Celery tasks: orders to the right queues, and the related commands."""

from typing import Any

import pytest
import redis
from celery import current_app
from django.core.management import CommandError, call_command

from fleet import selectors, tasks
from fleet.control.shutdown import stop_all
from fleet.models import Instance, Node, Pool, State
from fleet.tests.world import World, document


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the messages for the broker: (task, arguments, queue, expires)."""
    found: list[tuple[Any, ...]] = []

    def keep(name: str, args: tuple[Any, ...], queue: str, expires: float) -> None:
        found.append((name, args, queue, expires))

    monkeypatch.setattr(current_app, "send_task", keep)
    return found


def test_of_two_workers_on_the_same_step_only_one_acts(live_redis: redis.Redis) -> None:
    with tasks.exclusively("x") as first, tasks.exclusively("x") as second, tasks.exclusively("y") as other:
        assert (first, second, other) == (True, False, True)
    with tasks.exclusively("x") as again:
        assert again is True


def test_an_expired_lock_is_left_to_the_worker_that_took_it(live_redis: redis.Redis) -> None:
    with tasks.exclusively("x"):
        live_redis.set("weir:lock:x", "theirs")
    assert live_redis.get("weir:lock:x") == b"theirs"


@pytest.mark.parametrize(
    ("order", "task"),
    [(order, f"fleet.{order}_instance") for order in ("start", "stop", "kill", "sleep", "wake")],
)
def test_an_order_goes_to_the_queue_of_its_node_and_expires(sent: list[Any], order: str, task: str) -> None:
    tasks.send(order, "gpu-2", "p-0", 7)
    assert sent == [(task, ("p-0", 7), "node.gpu-2", 20.0)]


def test_a_scrape_reports_that_the_node_is_alive(db: None, live_redis: redis.Redis) -> None:
    tasks.scraper.cache_clear()
    try:
        tasks.scrape("gpu-2")
        assert Node.objects.get().name == "gpu-2"
    finally:
        tasks.scraper().close()
        tasks.scraper.cache_clear()


def test_everything_stops_at_once_and_the_desired_state_stays(world: World) -> None:
    world.apply(2)
    world.until_ready(2)
    assert sorted(stop_all("local", grace_s=5).names) == ["p-0", "p-1"]
    assert not world.processes("p-0")
    assert {row.state for row in selectors.instances()} == {State.STOPPED}
    assert world.published()["p-0"]["routable"] is False
    world.until_ready(2)


def test_the_status_command_shows_each_instance_and_fails_while_one_is_missing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.apply(1)
    world.until_ready(1)
    call_command("fleet_status")
    assert "p: 1/1 ready, m, fake on local, policy default" in capsys.readouterr().out
    world.apply(2)
    with pytest.raises(SystemExit) as caught:
        call_command("fleet_status")
    assert caught.value.code == 1


def test_the_stop_command_names_the_stopped_instances(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.apply(1)
    world.until_ready(1)
    call_command("fleet_stop_all", "--grace", "5")
    assert capsys.readouterr().out == "1 stopped: p-0\n"


def test_the_stop_command_fails_if_pods_run_and_it_has_no_cluster(db: None) -> None:
    pool = Pool.objects.create(name="p", model="m", kind="sim", node="k8s")
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="k8s", pod="p-0-e1")
    with pytest.raises(CommandError, match="p-0 was not ended: it is the Pod p-0-e1: set WEIR_KUBERNETES_NAMESPACE"):
        call_command("fleet_stop_all", "--node", "k8s")


def test_the_export_command_prints_the_applied_document(
    db: None, fake_kind: None, live_redis: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    from fleet import services
    from fleet.spec import document as documents

    services.apply_fleet(document(2, flavour=3), "ada")
    call_command("fleet_export")
    full = document(2, flavour=3)
    full["spec"]["pools"][0] |= {"policy": "default", "node": "local"}
    assert documents.load(capsys.readouterr().out) == full
