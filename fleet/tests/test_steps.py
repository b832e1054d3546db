"""The reconciler's step without processes: claims, orders, and what happens when something is lost."""

import datetime as dt
from typing import Any

import pytest
import redis
from django.db import transaction
from django.utils import timezone

from fleet import events, selectors, services
from fleet.control import node_agent
from fleet.control.node_agent import in_seconds
from fleet.control.publish import publish_fleet, publish_step
from fleet.control.reconciler import expire_step, reconcile_step
from fleet.events import move
from fleet.models import Instance, InstanceEvent, Node, Pool, Port, State
from fleet.node import host_launcher
from fleet.node.ports import NoPort, is_free, ports_for
from fleet.redis import connect
from fleet.services import FleetChanged, NotPossible
from fleet.spec.fleet_spec import InvalidFleet, config_hash
from fleet.tests.world import document, roll_back
from router.contract.redis import redis_keys
from router.tests.values import loaded, stored

Orders = list[tuple[str, str, str, int]]
pytestmark = pytest.mark.usefixtures("db", "live_redis", "fake_kind")


def step(now: dt.datetime | None = None) -> Orders:
    orders: Orders = []
    reconcile_step(now or timezone.now(), lambda *order: orders.append(order), roll_back)
    return orders


def heartbeat(name: str = "local") -> None:
    Node.objects.update_or_create(name=name, defaults={"last_seen": timezone.now()})


def declare(replicas: int = 1, state: State = State.READY, **fields: Any) -> Instance:
    services.apply_fleet(document(replicas), "ada")
    heartbeat()
    step()
    pool = Pool.objects.get()
    current = services.pool_spec(pool)
    fields = {"epoch": 1, "config_hash": config_hash(current), "node": "local", "url": "http://127.0.0.1:1", **fields}
    Instance.objects.update(state=state, since=timezone.now(), **fields)
    return selectors.instance("p-0")


def test_a_pool_is_created_and_then_started_with_one_order_each() -> None:
    services.apply_fleet(document(2), "ada")
    heartbeat()
    assert step() == []
    assert step() == [("start", "local", "p-0", 1), ("start", "local", "p-1", 1)]
    assert step() == []
    assert {row.state for row in Instance.objects.all()} == {State.STARTING}


def test_a_node_that_does_not_report_gets_no_orders() -> None:
    services.apply_fleet(document(1), "ada")
    step()
    assert step() == []
    Node.objects.create(name="local", last_seen=in_seconds(timezone.now(), -31))
    assert step() == []
    heartbeat()
    assert step() == [("start", "local", "p-0", 1)]


def test_a_lost_start_order_is_repeated_in_a_new_epoch_and_the_old_one_is_void() -> None:
    services.apply_fleet(document(1), "ada")
    heartbeat()
    step()
    step()
    Instance.objects.update(since=in_seconds(timezone.now(), -30))
    assert step() == [("start", "local", "p-0", 2)]
    assert node_agent.start_instance("p-0", 1) is False
    assert selectors.instance("p-0").pid is None


def test_of_two_workers_that_change_an_instance_only_one_succeeds() -> None:
    first, second = declare(), selectors.instance("p-0")
    assert move(first, State.DRAINING, "one")
    assert not move(second, State.UNREACHABLE, "two")
    assert selectors.instance("p-0").reason == "one"


def test_an_order_for_a_missing_instance_does_nothing() -> None:
    assert node_agent.start_instance("nobody", 1) is False
    assert node_agent.signal_instance("nobody", 1, kill=True) is False


def test_a_failed_launch_gives_the_reason_and_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_port(instance: Instance, uses: object, spans: object) -> dict[str, int]:
        raise NoPort("no free port between 1 and 2")

    services.apply_fleet(document(1), "ada")
    heartbeat()
    step()
    step()
    monkeypatch.setattr(host_launcher, "ports_for", no_port)
    assert node_agent.start_instance("p-0", 1) is False
    row = selectors.instance("p-0")
    assert (row.state, row.failures) == (State.FAILED, 1)
    assert "no free port between 1 and 2" in row.reason
    assert row.next_start_at is not None


def put_sample(row: Instance, **figures: Any) -> None:
    value = {
        "id": row.name,
        "epoch": row.epoch,
        "at": timezone.now().timestamp() + 2,
        "running": 0,
        "waiting": 0,
        **figures,
    }
    connect().set(redis_keys.instance_key(row.name), stored(value))


@pytest.mark.parametrize(
    ("figures", "idle"),
    [
        ({}, True),
        ({"running": 1}, False),
        ({"waiting": 1}, False),
        ({"running": None}, False),
        ({"epoch": 0}, False),
        ({"at": 0}, False),
    ],
)
def test_a_drain_ends_when_a_later_sample_shows_no_request(figures: dict[str, Any], idle: bool) -> None:
    row = declare(state=State.DRAINING, desired="stopped")
    put_sample(row, **figures)
    assert step() == ([("stop", "local", "p-0", 1)] if idle else [])


@pytest.mark.parametrize(
    ("role", "connector", "kv_usage", "over"),
    [
        ("prefill", "nixl", 0.3, False),
        ("prefill", "nixl", 0.01, True),  # a block that the engine itself uses
        ("prefill", "trtllm", 0.3, True),  # TensorRT-LLM's usage includes reusable blocks
        ("decode", "nixl", 0.3, True),
    ],
)
def test_a_draining_prefill_instance_waits_for_decoders_to_pull_its_kv(
    role: str, connector: str, kv_usage: float, over: bool
) -> None:
    row = declare(state=State.DRAINING, desired="stopped", kv_blocks=100, wire={"role": role, "connector": connector})
    put_sample(row, kv_usage=kv_usage)
    assert bool(step()) is over


def test_a_drain_without_any_sample_waits() -> None:
    declare(state=State.DRAINING, desired="stopped")
    assert step() == []


def test_a_process_that_does_not_end_is_killed_and_killed_again() -> None:
    declare(state=State.STOPPING, stop_deadline=timezone.now())
    assert step(timezone.now()) == [("kill", "local", "p-0", 1)]
    assert step() == []
    assert step(in_seconds(timezone.now(), 6)) == [("kill", "local", "p-0", 1)]


def test_a_failed_instance_that_is_no_longer_wanted_is_stopped() -> None:
    declare(state=State.FAILED, desired="stopped", failures=3, next_start_at=in_seconds(timezone.now(), 99))
    step()
    row = selectors.instance("p-0")
    assert (row.state, row.failures, row.next_start_at) == (State.STOPPED, 0, None)


def test_a_pool_of_a_removed_kind_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    declare()
    Pool.objects.create(name="old", model="m", kind="gone", replicas=3)
    assert step() == []


def test_routers_get_only_changed_values() -> None:
    declare()
    assert publish_step() == ["p"]
    assert publish_step() == []
    Instance.objects.update(state=State.UNREACHABLE)
    assert publish_step() == ["p"]
    value = loaded(connect().get(redis_keys.fleet_key("p")))
    assert value is not None
    assert (value["pool"], value["model"], value["instances"][0]["routable"]) == ("p", "m", False)


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({}, True),
        ({"state": State.UNREACHABLE}, True),  # its health is a separate question
        ({"state": State.STOPPED, "desired": "stopped"}, True),
        ({"state": State.STOPPED}, False),
        ({"desired": "stopped"}, False),
        ({"retired": "scaled down to 0"}, False),
        ({"config_hash": "another"}, False),
    ],
)
def test_each_published_instance_states_whether_it_matches_its_declaration(
    fields: dict[str, Any], matches: bool
) -> None:
    declare()
    Instance.objects.update(**fields)
    publish_fleet("p")
    value = loaded(connect().get(redis_keys.fleet_key("p")))
    assert value is not None
    assert value["instances"][0]["matches"] is matches


def test_values_lost_by_redis_are_written_again(live_redis: redis.Redis) -> None:
    declare()
    publish_step()
    live_redis.flushall()
    assert publish_step() == ["p"]
    assert publish_step() == []
    assert live_redis.smembers(redis_keys.POOLS) == {b"p"}


def test_a_removed_pool_is_forgotten_by_routers(live_redis: redis.Redis) -> None:
    services.apply_fleet(document(0), "ada")
    publish_step()
    Pool.objects.update(removed=True)
    step()
    assert not Pool.objects.exists()
    assert live_redis.keys("weir:fleet:*") == []
    assert live_redis.smembers(redis_keys.POOLS) == set()


def test_without_redis_the_fleet_is_kept_and_only_its_publication_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = redis.Redis.from_url("unix:///nowhere/redis.sock")
    for module in ("redis.ordered_write", "events", "redis"):
        monkeypatch.setattr(f"fleet.{module}.connect", lambda: dead)
    declare(state=State.DRAINING, desired="stopped")
    Instance.objects.update(since=in_seconds(timezone.now(), -100))
    assert step() == [("stop", "local", "p-0", 1)]
    assert publish_fleet("p") is False


def test_the_ticker_shows_each_event(live_redis: redis.Redis, django_capture_on_commit_callbacks: Any) -> None:
    row = declare()
    with django_capture_on_commit_callbacks(execute=True):
        events.record(row, "restart", "restart requested by ada", "ada", "leak")
    _, fields = live_redis.xrevrange(redis_keys.EVENTS, count=1)[0]
    value = loaded(fields[b"e"])
    assert value is not None
    assert (value["kind"], value["subject"], value["actor"]) == ("restart", "p-0", "ada")
    assert value["text"] == "p-0: restart requested by ada: leak"


def test_the_steps_of_a_start_are_not_on_the_ticker_unless_one_fails(
    live_redis: redis.Redis, django_capture_on_commit_callbacks: Any
) -> None:
    row = declare(state=State.STOPPED, failures=0)
    steps = (State.STARTING, State.LOADING, State.READY, State.DRAINING, State.STOPPING, State.STOPPED, State.STARTING)
    with django_capture_on_commit_callbacks(execute=True):
        for state in steps:
            assert events.move(row, state, "as desired")
        assert events.move(row, State.FAILED, "ended with exit status 1", failures=1)
        assert events.move(row, State.READY, "answers again")
    told = [loaded(fields[b"e"]) for _, fields in live_redis.xrange(redis_keys.EVENTS)]
    assert [value and value["text"] for value in told] == [
        "p-0 failed: ended with exit status 1",
        "p-0 ready: answers again",
    ]
    assert InstanceEvent.objects.filter(instance="p-0", kind__in=steps).count() >= len(steps)


def test_an_event_of_a_rolled_back_transaction_never_reaches_the_ticker(
    live_redis: redis.Redis, django_capture_on_commit_callbacks: Any
) -> None:
    row = declare()
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        events.record(row, "restart", "restart requested by ada", "ada", "leak")
        transaction.set_rollback(True)
    assert live_redis.xlen(redis_keys.EVENTS) == 0


def test_the_pools_of_experiments_are_not_on_the_ticker(
    live_redis: redis.Redis, django_capture_on_commit_callbacks: Any
) -> None:
    row = declare()
    Pool.objects.update(ephemeral_owner="run 7")
    row = Instance.objects.select_related("pool").get(pk=row.pk)
    with django_capture_on_commit_callbacks(execute=True) as told:
        events.record(row, "failed", "the pool is removed")
    assert (told, live_redis.xlen(redis_keys.EVENTS)) == ([], 0)


# Ports


def test_ports_are_kept_across_restarts(settings: Any) -> None:
    row = declare()
    first = ports_for(row, ("http", "events"))
    assert len(set(first.values())) == 2
    assert ports_for(row, ("http", "events")) == first


def test_a_port_that_another_program_took_is_replaced(settings: Any) -> None:
    import socket

    row = declare()
    port = ports_for(row, ("http",))["http"]
    with socket.socket() as other:
        # Another test's connection may still linger on the port, which does not make it taken.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert not is_free(port)
        assert ports_for(row, ("http",))["http"] != port


def test_ports_of_another_node_are_released() -> None:
    row = declare()
    port = ports_for(row, ("http",))["http"]
    row.node = "gpu-2"
    ports_for(row, ("http",))
    assert not Port.objects.filter(node="local", number=port).exists()


def test_ranks_get_consecutive_ports_that_no_neighbour_takes(settings: Any) -> None:
    row, other = declare(2), selectors.instance("p-1")
    first = ports_for(row, ("http", "events", "replay"), {"events": 4, "replay": 4})
    held = dict(Port.objects.filter(instance=row).values_list("use", "number"))
    assert [held[use] for use in ("events", "events+1", "events+2", "events+3")] == [
        *range(first["events"], first["events"] + 4)
    ]
    assert len(set(held.values())) == 9
    neighbour = ports_for(other, ("http", "events"), {"events": 4})
    assert not set(held.values()) & set(range(neighbour["events"], neighbour["events"] + 4))
    assert ports_for(row, ("http", "events", "replay"), {"events": 4, "replay": 4}) == first


def test_consecutive_ports_are_chosen_again_when_one_is_lost_or_their_number_changes(settings: Any) -> None:
    row = declare()
    first = ports_for(row, ("events",), {"events": 3})["events"]
    Port.objects.filter(instance=row, use="events+1").delete()
    again = ports_for(row, ("events",), {"events": 3})["events"]
    assert [port.number for port in row.ports.order_by("number")] == [again, again + 1, again + 2]
    assert ports_for(row, ("events",)) == {"events": again}
    assert [port.use for port in row.ports.all()] == ["events"]
    assert first


def test_the_error_names_a_range_without_enough_consecutive_free_ports(settings: Any) -> None:
    settings.ENGINE_PORTS = (45_901, 45_903)
    with pytest.raises(NoPort, match="no 4 free ports in a row between 45901 and 45903 on node local"):
        ports_for(declare(), ("events",), {"events": 4})


def test_the_error_names_a_range_that_is_used_up(settings: Any) -> None:
    row = declare(2)
    settings.ENGINE_PORTS = (45_901, 45_901)
    Port.objects.create(instance=selectors.instance("p-1"), node="local", use="http", number=45_901)
    with pytest.raises(NoPort, match="between 45901 and 45901 on node local"):
        ports_for(row, ("http",))


# Requests of operators and experiments


def test_applying_the_export_changes_nothing() -> None:
    services.apply_fleet(document(3, flavour=2), "ada")
    exported = services.export()
    assert not services.apply_fleet(services.export_yaml(), "bob").drift
    assert services.export() == exported
    assert exported["metadata"] == {"name": "test"}


def test_a_document_for_an_older_fleet_is_refused() -> None:
    before = services.digest()
    services.apply_fleet(document(1), "ada", expected=before)
    with pytest.raises(FleetChanged):
        services.apply_fleet(document(2), "bob", expected=before)
    assert Pool.objects.get().replicas == 1


@pytest.mark.parametrize("verb", [services.drain, services.undrain, services.restart])
def test_an_instance_stopped_on_request_must_be_started_first(verb: Any) -> None:
    declare(state=State.STOPPED, desired="stopped")
    with pytest.raises(NotPossible, match="start it"):
        verb("p-0", "ada")


def test_requested_states_are_recorded_with_actor_and_reason() -> None:
    declare()
    services.stop("p-0", "ada", "cable")
    event = InstanceEvent.objects.filter(kind="stop").get()
    assert (event.actor, event.reason, event.epoch) == ("ada", "cable", 1)


def test_a_requested_restart_skips_the_back_off() -> None:
    declare(state=State.FAILED, failures=4, next_start_at=in_seconds(timezone.now(), 99))
    services.restart("p-0", "ada", "fixed")
    assert step() == [("start", "local", "p-0", 2)]
    assert selectors.instance("p-0").reason == "restart requested by ada: fixed"


def test_the_wanted_number_counts_only_instances_that_should_run() -> None:
    declare(3)
    assert selectors.pool_ready("p") == (3, 3)
    Instance.objects.filter(name="p-1").update(desired="stopped", state=State.STOPPED)
    assert selectors.pool_ready("p") == (2, 2)
    Instance.objects.filter(name="p-2").update(state=State.FAILED)
    assert selectors.pool_ready("p") == (1, 2)
    assert selectors.pool_ready("nobody") == (0, 0)


def experiment_pool() -> Pool:
    services.apply_fleet(document(3, flavour=1), "ada")
    like = Pool.objects.get(name="p")
    return services.create_ephemeral_pool("exp-7", like, replicas=1, engine_overrides={"flavour": 5}, owner="run 7")


def test_a_pool_of_an_experiment_runs_like_any_other_but_is_not_in_the_document() -> None:
    made = experiment_pool()
    assert (made.replicas, made.engine, made.model) == (1, {"flavour": 5}, "m")
    assert [pool.name for pool in selectors.pools()] == ["p"]
    assert [pool.name for pool in selectors.pools(include_ephemeral=True)] == ["exp-7", "p"]
    assert [pool["name"] for pool in services.export()["spec"]["pools"]] == ["p"]
    heartbeat()
    step()
    assert ("start", "local", "exp-7-0", 1) in step()
    assert "exp-7-0" not in [row.name for row in selectors.instances()]


def test_pruning_keeps_the_pools_of_experiments() -> None:
    experiment_pool()
    services.apply_fleet(document(3, flavour=1), "ada", prune=True)
    assert not Pool.objects.get(name="exp-7").removed


def test_a_pool_of_an_experiment_is_removed_on_request_or_after_a_day() -> None:
    experiment_pool()
    assert services.delete_ephemeral_pool("p") is False
    assert expire_step(timezone.now()) == 0
    assert expire_step(in_seconds(timezone.now(), 25 * 3600)) == 1
    assert services.delete_ephemeral_pool("exp-7") is True
    step()
    assert [pool.name for pool in Pool.objects.all()] == ["p"]


def test_the_options_of_an_experiment_are_validated() -> None:
    services.apply_fleet(document(1), "ada")
    like = Pool.objects.get()
    with pytest.raises(InvalidFleet, match=r"engine\.flavour: 10 is above 9; allowed: a whole number from 0 to 9"):
        services.create_ephemeral_pool("exp-1", like, engine_overrides={"flavour": 10}, owner="run 1")
    with pytest.raises(NotPossible, match="must begin with exp-"):
        services.create_ephemeral_pool("other", like, owner="run 1")
    services.create_ephemeral_pool("exp-1", like, owner="run 1")
    with pytest.raises(NotPossible, match="already"):
        services.create_ephemeral_pool("exp-1", like, owner="run 1")


def test_events_older_than_a_month_are_dropped() -> None:
    row = declare()
    events.record(row, "ready", "now")
    InstanceEvent.objects.exclude(kind="ready").update(at=in_seconds(timezone.now(), -31 * 86_400))
    expire_step(timezone.now())
    assert [event.kind for event in InstanceEvent.objects.all()] == ["ready"]
