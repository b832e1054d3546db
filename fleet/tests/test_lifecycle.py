"""Real processes through an instance's whole lifecycle."""

import os
import signal
from typing import Any

import pytest
from django.db import OperationalError

from fleet import services
from fleet.control import node_agent
from fleet.models import Instance, InstanceEvent, Pool, State
from fleet.node import process
from fleet.tests.test_launch import is_suspended
from fleet.tests.world import World, document
from fleet.tries import RowsFailed


def test_a_declared_instance_is_started_and_becomes_routable(world: World) -> None:
    world.apply(2)
    world.until_ready(2)
    entries = world.published()
    assert [entries[name]["routable"] for name in ("p-0", "p-1")] == [True, True]
    assert entries["p-0"]["url"] != entries["p-1"]["url"]
    assert entries["p-0"]["epoch"] == 1
    assert (entries["p-0"]["block_size"], entries["p-0"]["kv_blocks"]) == (16, 1024)


def test_an_instance_of_a_kind_unknown_to_this_release_keeps_no_other_from_its_probes(world: World) -> None:
    pool = Pool.objects.create(name="newer", model="m", kind="newer", policy="default", replicas=1)
    Instance.objects.create(
        pool=pool, name="newer-0", ordinal=0, node="local", state=State.READY, pod="newer-0", url="http://127.0.0.1:1"
    )
    world.apply(1)
    world.until_ready(1)
    assert world.one("newer-0").state == State.READY


@pytest.mark.slow
def test_routers_get_the_wire_facts_of_the_running_process(world: World) -> None:
    world.apply(2, flavour=3)
    world.until_ready(2)
    assert world.published()["p-1"]["tokenizer"] == "3 1"
    services.apply_fleet(document(2), "ada")
    assert world.published()["p-1"]["tokenizer"] == "3 1"  # until the process is replaced
    world.until(lambda: not any("tokenizer" in instance for instance in world.published().values()))


def test_a_killed_process_is_restarted_in_a_new_epoch_after_its_back_off(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    os.kill(world.one().pid, signal.SIGKILL)
    world.until(world.is_in(State.FAILED))
    failed = world.one()
    assert failed.failures == 1
    assert 9 < (failed.next_start_at - failed.since).total_seconds() <= 10.1
    assert world.published()["p-0"]["routable"] is False
    world.tick()
    assert world.one().state == State.FAILED  # the back-off applies
    world.age(11)
    world.until_ready(1)
    assert world.published()["p-0"]["epoch"] == 2
    assert world.one().restarts == 1


@pytest.mark.slow
def test_a_suspended_process_leaves_routing_at_once_and_is_replaced_later(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    old = world.one()
    os.kill(old.pid, signal.SIGSTOP)
    world.until(lambda: is_suspended(old.pid))  # on a busy machine the signal takes a moment
    world.tick()
    assert world.published()["p-0"]["routable"] is False
    assert "suspended" in world.one().reason
    world.age(11)
    world.until(world.is_in(State.FAILED))
    assert not process.is_alive(old.pid, old.pid_started)
    world.age(11)
    world.until_ready(1)
    assert world.one().epoch == 2


def test_a_suspended_process_that_continues_returns_to_routing(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    os.kill(world.one().pid, signal.SIGSTOP)
    world.until(world.is_in(State.UNREACHABLE))
    os.kill(world.one().pid, signal.SIGCONT)
    world.until_ready(1)
    assert (world.one().epoch, world.one().failures) == (1, 0)


@pytest.mark.slow
def test_an_engine_that_answers_nothing_is_unreachable(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    world.tell(health_delay_s=60, metrics_delay_s=60)
    world.until(world.is_in(State.UNREACHABLE), limit_s=6)
    assert "no answer for" in world.one().reason


@pytest.mark.slow
def test_a_busy_engine_with_a_slow_health_page_keeps_its_requests(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    world.tell(health_delay_s=60)
    world.until(lambda: "busy" in world.one().reason, limit_s=6)
    assert world.one().state == State.READY
    world.tick()
    assert world.published()["p-0"]["routable"] is True


@pytest.mark.slow
def test_an_engine_with_a_failing_health_page_is_unreachable(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    world.tell(health=503)
    world.until(world.is_in(State.UNREACHABLE), limit_s=6)
    assert "503" in world.one().reason


def test_a_drained_instance_finishes_its_requests_and_stays(
    world: World, django_capture_on_commit_callbacks: Any
) -> None:
    world.apply(1)
    world.until_ready(1)
    world.tell(running=1)
    with django_capture_on_commit_callbacks(execute=True):
        services.drain("p-0", "ada", "new cable")
    assert world.published()["p-0"]["routable"] is False
    pid = world.one().pid
    world.age(300)
    world.tick()
    assert (world.one().state, world.one().pid) == (State.DRAINING, pid)
    services.undrain("p-0", "ada", "cable is in")
    world.until_ready(1)
    assert world.one().pid == pid


def test_scaling_down_stops_the_idlest_instance_after_its_last_request(world: World) -> None:
    world.apply(2)
    world.until_ready(2)
    world.tell("p-0", running=2)
    world.tell("p-1", running=1)
    world.tick()
    world.apply(1)
    world.until(world.is_in(State.DRAINING, "p-1"))
    world.age(2, "p-1")
    world.tick()
    assert world.one("p-1").state == State.DRAINING
    world.tell("p-1", running=0)
    world.until(lambda: Instance.objects.count() == 1)
    assert not world.processes("p-1")
    assert "p-1" not in world.published()


def test_epochs_continue_when_a_pool_grows_again(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    world.apply(0)
    world.until(lambda: not Instance.objects.exists())
    world.apply(1)
    world.until_ready(1)
    assert world.one().epoch == 2


@pytest.mark.slow
def test_a_changed_option_replaces_the_process_once_it_has_drained(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    old = world.one()
    world.apply(1, flavour=2)
    world.until(lambda: world.one().epoch == 2)
    world.until_ready(1)
    kinds = list(InstanceEvent.objects.filter(instance="p-0").order_by("pk").values_list("kind", flat=True))
    assert kinds[-5:] == ["stopping", "stopped", "starting", "loading", "ready"]
    assert not process.is_alive(old.pid, old.pid_started)


def test_a_restarted_worker_adopts_running_engines(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    pid = world.one().pid
    world.scraper.close()
    world.scraper = type(world.scraper)()
    world.tick()
    assert (world.one().state, world.one().pid) == (State.READY, pid)


def test_a_pid_that_now_belongs_to_another_program_is_not_ours(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    Instance.objects.update(pid_started=world.one().pid_started - 5)
    world.tick()
    assert world.one().state == State.FAILED


def test_an_orphan_of_a_dead_launcher_is_ended_before_the_next_start(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    Instance.objects.update(state=State.STOPPED, pid=None, pid_started=None)
    world.until(lambda: world.one().epoch == 2)
    world.until_ready(1)
    assert [pid for pid, _ in world.processes()] == [world.one().pid]


def test_a_process_is_ended_if_the_database_does_not_record_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_fields: object) -> bool:
        raise OperationalError("database or disk is full")

    world.apply(1)
    with monkeypatch.context() as patched:
        patched.setattr(node_agent, "move", full)
        with pytest.raises(RowsFailed, match="database or disk is full"):
            world.until_ready(1)
    assert world.processes() == []


def test_an_engine_that_dies_at_once_is_reported_with_its_error(world: World) -> None:
    world.apply(1, dies="OSError: [Errno 98] Address already in use")
    world.until(world.is_in(State.FAILED))
    assert "its port is in use: " in world.one().reason


def test_stop_and_start_on_request(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    services.stop("p-0", "ada", "maintenance")
    world.until(world.is_in(State.STOPPED))
    world.tick()
    assert not world.processes()
    services.start("p-0", "ada")
    world.until_ready(1)


@pytest.mark.slow
def test_a_restart_on_request_gives_a_new_process(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    services.restart("p-0", "ada", "leak")
    world.until(lambda: world.one().epoch == 2)
    world.until_ready(1)
    assert world.one().restart_asked == ""


def test_a_pool_that_is_pruned_disappears_with_its_processes(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    empty = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": []}}
    services.apply_fleet(empty, "ada", prune=True)
    world.until(lambda: not services.Pool.objects.exists())
    assert not world.processes()
    assert world.published() == {}
