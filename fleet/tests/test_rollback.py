"""A failing change, with real processes: halted, resumed or rolled back, and recorded in versions and events."""

from typing import Any, NoReturn

import pytest
from django.utils import timezone

from fleet import services
from fleet.control.rollback import halt_pool, resume_pool, rollback_failed, rollback_pool
from fleet.models import Instance, InstanceEvent, Pool, State
from fleet.services import NotPossible
from fleet.spec import versions
from fleet.tests.world import World, document, roll_back

LAST_WORDS = "ModuleNotFoundError: No module named 'cuda'"


def pool() -> Pool:
    return Pool.objects.get(name="p")


def apply(world: World, replicas: int = 2, update: dict[str, Any] | None = None, **engine: Any) -> None:
    made = document(replicas, **engine)
    made["spec"]["pools"][0] |= {"update": update} if update else {}
    services.apply_fleet(made, "ada", reason="faster")


def proven(world: World, **words: Any) -> None:
    apply(world, **words)
    world.until_ready(2)
    world.until(lambda: pool().versions.first().proven_at is not None)


def halted(world: World) -> None:
    proven(world)
    apply(world, dies=LAST_WORDS)
    world.until(lambda: bool(pool().halted))


@pytest.mark.slow
def test_a_failing_change_is_halted_with_the_reason_and_the_old_configuration_serves(world: World) -> None:
    halted(world)
    assert "a program is missing: run manage.py doctor: ModuleNotFoundError" in pool().halted
    world.until_ready(2)
    assert {row.config["engine"].get("dies") for row in Instance.objects.all()} == {None}
    event = InstanceEvent.objects.get(kind="halt")
    assert (event.instance, event.pool) == ("", "p")
    assert event.seconds > 0
    assert [version.failed != "" for version in pool().versions.all()] == [True, False]


@pytest.mark.slow
def test_while_halted_a_dead_process_returns_with_the_old_configuration(world: World) -> None:
    halted(world)
    world.until_ready(2)
    Instance.objects.filter(name="p-1").update(state=State.STOPPED, pid=None)
    world.until_ready(2)
    assert world.one("p-1").config_hash == world.one("p-0").config_hash


def test_a_rollback_is_a_new_version_with_the_old_configuration(world: World) -> None:
    halted(world)
    made = rollback_pool("p", "ada", "no cuda here")
    assert (made.number, made.config["engine"], made.proven_at is not None) == (3, {}, True)
    assert (pool().halted, pool().engine) == ("", {})
    world.until_ready(2)
    assert services.export()["spec"]["pools"][0].get("engine") is None
    event = InstanceEvent.objects.get(kind="rollback")
    assert (event.actor, event.reason) == ("ada", "no cuda here")
    with pytest.raises(NotPossible, match="version 1 already"):
        rollback_pool("p", "ada", number=1)


def test_a_pool_can_roll_back_by_itself(world: World) -> None:
    automatic = {"on_failure": "rollback"}
    proven(world, update=automatic)
    apply(world, update=automatic, dies=LAST_WORDS)
    world.until(lambda: pool().engine == {})
    world.until_ready(2)
    assert pool().halted == ""
    assert "failed with the new configuration" in InstanceEvent.objects.get(kind="rollback").reason


@pytest.mark.slow
def test_a_halted_change_resumes_on_request_and_another_document_is_another_change(world: World) -> None:
    halted(world)
    resume_pool("p", "ada", "fixed")
    with pytest.raises(NotPossible, match="no change is halted"):
        resume_pool("p", "ada")
    world.until(lambda: bool(pool().halted))
    apply(world, flavour=2)
    assert pool().halted == ""
    world.until(lambda: pool().versions.first().proven_at is not None)
    assert {row.config["engine"].get("flavour") for row in Instance.objects.all()} == {2}
    complete = InstanceEvent.objects.filter(kind="complete").first()
    assert complete is not None
    assert complete.seconds > 0


@pytest.mark.slow
def test_with_surge_old_processes_leave_once_new_ones_are_ready(world: World) -> None:
    surge = {"strategy": "surge", "max_surge": 1}
    proven(world, update=surge)
    apply(world, update=surge, flavour=3)
    fewest = 2

    def done() -> bool:
        nonlocal fewest
        fewest = min(fewest, Instance.objects.filter(state=State.READY).count())
        return pool().versions.first().proven_at is not None

    world.until(done)
    assert fewest == 2
    world.until(lambda: Instance.objects.count() == 2)


# Versions alone


@pytest.fixture
def _rows(db: None, live_redis: object, fake_kind: None) -> None:
    pass


@pytest.mark.usefixtures("_rows")
def test_each_new_configuration_is_a_version_but_a_change_of_replicas_is_not() -> None:
    for words in ({"flavour": 1}, {"flavour": 1}, {"flavour": 2}):
        services.apply_fleet(document(2, **words), "ada", reason="why")
    services.apply_fleet(document(5, flavour=2), "ada")
    shown = versions.history(pool())
    assert [(one.version.number, one.current) for one in shown] == [(2, True), (1, False)]
    assert [(change.path, change.old, change.new) for change in shown[0].changes] == [("engine.flavour", 1, 2)]
    assert shown[0].version.reason == "why"


@pytest.mark.usefixtures("_rows")
def test_a_pool_without_versions_keeps_its_configuration() -> None:
    services.apply_fleet(document(1, flavour=1), "ada")
    pool().versions.all().delete()
    services.apply_fleet(document(1, flavour=2), "ada")
    assert [version.config["engine"] for version in pool().versions.all()] == [{"flavour": 2}, {"flavour": 1}]


@pytest.mark.usefixtures("_rows")
def test_only_the_latest_versions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "KEPT", 3)
    for flavour in range(8):
        services.apply_fleet(document(1, flavour=flavour), "ada")
    assert [version.number for version in pool().versions.all()] == [8, 7, 6]


@pytest.mark.usefixtures("_rows")
def test_an_obstacle_to_an_automatic_rollback_halts_the_change_instead() -> None:
    services.apply_fleet(document(1), "ada")

    def refuses(pool: str, reason: str) -> NoReturn:
        raise NotPossible("policy careful goes live by delivery only")

    assert rollback_failed(pool(), "p-0 failed", timezone.now(), refuses)
    assert pool().halted == "p-0 failed; not rolled back: policy careful goes live by delivery only"
    assert pool().versions.get().failed


@pytest.mark.usefixtures("_rows")
def test_a_change_made_after_the_plan_does_not_count_as_failed() -> None:
    services.apply_fleet(document(1), "ada")
    planned = pool()
    services.apply_fleet(document(1, flavour=1), "ada")
    assert not rollback_failed(planned, "p-0 failed", timezone.now(), roll_back)
    assert not halt_pool(planned, "p-0 failed", timezone.now())
    assert (pool().halted, pool().versions.first().failed) == ("", "")


@pytest.mark.usefixtures("_rows")
def test_versions_that_cannot_be_restored_are_reported() -> None:
    services.apply_fleet(document(1), "ada")
    services.apply_fleet(document(1, flavour=1), "ada")
    with pytest.raises(NotPossible, match="no other configuration that worked is kept"):
        rollback_pool("p", "ada")
    with pytest.raises(NotPossible, match="no version 7 is kept"):
        rollback_pool("p", "ada", number=7)
    with pytest.raises(Pool.DoesNotExist):
        rollback_pool("nobody", "ada")
