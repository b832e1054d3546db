"""Operations on pools and instances outside their document: order of starts, scaling; with real processes."""

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.control import autoscaler
from fleet.control.publish import publish_fleet
from fleet.models import Instance, InstanceEvent, Pool, State
from fleet.redis import connect
from fleet.services import NotPossible
from fleet.spec.fleet_spec import InvalidFleet
from fleet.tests.world import World, document
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.fleet_status import SideLoad
from router.contract.redis.published import FleetValue, WakeRule
from router.tests.values import stored


def two_pools(needed: int = 1) -> dict[str, Any]:
    made = document(needed, name="store")
    made["spec"]["pools"] += document(1, after="store")["spec"]["pools"]
    return made


def test_a_pool_starts_after_the_pool_that_it_needs_and_continues_without_it(world: World) -> None:
    services.apply_fleet(two_pools(needed=0), "ada")
    world.until(lambda: "waits for the pool store" in world.states().get("p-0", ""))
    services.scale_pool("store", 1, "ada")
    world.until_ready(1)
    pid = world.one().pid
    services.stop("store-0", "ada")
    world.until(world.is_in(State.STOPPED, "store-0"))
    world.tick()
    assert (world.one().state, world.one().pid) == (State.READY, pid)


@pytest.mark.usefixtures("db", "fake_kind", "live_redis")
def test_a_needed_pool_must_exist_and_no_pool_can_need_itself() -> None:
    with pytest.raises(InvalidFleet, match=r"pools\[0\]\.engine: needs the unknown pool stor"):
        services.apply_fleet(document(1, after="stor"), "ada")
    with pytest.raises(InvalidFleet, match="depends on itself"):
        services.apply_fleet(document(1, after="p"), "ada")
    services.apply_fleet(two_pools(), "ada")
    services.apply_fleet(document(2, after="store"), "ada")  # the pool exists, although not in this document
    with pytest.raises(InvalidFleet, match="needs the unknown pool"):
        services.apply_fleet(document(2, after="store"), "ada", prune=True)


def test_pools_that_cannot_sleep_are_reported(world: World) -> None:
    world.apply(1, flavour=9)
    world.until_ready(1)
    with pytest.raises(NotPossible, match="do not support it"):
        services.sleep("p-0", "ada")
    with pytest.raises(NotPossible, match="not asleep"):
        services.wake("p-0", "ada")


# Scaling, without processes


@pytest.fixture
def pool(db: None, fake_kind: None, live_redis: object) -> Pool:
    services.apply_fleet(document(2), "ada")
    return Pool.objects.get()


@pytest.mark.usefixtures("db", "fake_kind", "live_redis")
def test_each_changed_pool_records_actor_change_and_reason() -> None:
    both = document(1)
    both["spec"]["pools"] += document(1, name="q")["spec"]["pools"]
    services.apply_fleet(both, "ada", reason="launch")
    services.apply_fleet(document(3, flavour=2), "ben", reason="more of it")
    services.apply_fleet(document(3, flavour=2), "ada", prune=True, dry_run=True)
    services.apply_fleet(document(3, flavour=2), "ada", prune=True)
    told = [(one.pool, one.kind, one.text, one.actor, one.reason) for one in InstanceEvent.objects.order_by("pk")]
    effect = "drains and restarts 1 instance, at most 1 at a time; starts 2 instances"
    assert told == [
        ("p", "create", "version 1: starts 1 instance", "ada", "launch"),
        ("q", "create", "version 1: starts 1 instance", "ada", "launch"),
        ("p", "update", f"version 2: replicas 1 → 3, engine.flavour not given → 2; {effect}", "ben", "more of it"),
        ("q", "remove", "drains and stops 1 instance", "ada", ""),
    ]


def test_a_change_of_replicas_makes_an_event_but_no_version(pool: Pool) -> None:
    services.apply_fleet(document(5), "ada")
    latest = selectors.pool_events("p")[0]
    assert (latest.kind, latest.text) == ("update", "replicas 2 → 5; starts 3 instances")


def test_scaling_by_hand_shows_in_the_document_and_in_the_history(pool: Pool) -> None:
    services.scale_pool("p", 5, "ada", "launch day")
    assert services.export()["spec"]["pools"][0]["replicas"] == 5
    event = InstanceEvent.objects.get(kind="scale")
    assert (event.text, event.actor, event.reason) == ("scaled from 2 to 5 by ada", "ada", "launch day")


@pytest.mark.parametrize("replicas", [-1, 1_025])
def test_scaling_beyond_the_limits_is_refused(pool: Pool, replicas: int) -> None:
    with pytest.raises(NotPossible, match=f"{replicas} is out of range; allowed: 0 to 1,024"):
        services.scale_pool("p", replicas, "ada")


def loaded(pool: Pool, waiting: float) -> None:
    """Make two ready instances with this number of waiting requests each, plus three deferred ones, which no instance
    would start."""
    for ordinal in range(2):
        name, fields = f"p-{ordinal}", {"ordinal": ordinal, "state": State.READY}
        row, _ = Instance.objects.update_or_create(pool=pool, name=name, defaults=fields)
        sample = {
            "id": name,
            "epoch": row.epoch,
            "at": timezone.now().timestamp(),
            "running": 4,
            "waiting": waiting + 3,
            "deferred": 3,
            "kv_usage": 0.5,
        }
        connect().set(redis_keys.instance_key(name), stored(sample))


def autoscaled(pool: Pool, mode: str) -> None:
    spec = {"mode": mode, "max": 8, "target_queue": 2, "up_after_s": 10, "cooldown_s": 0}
    Pool.objects.filter(pk=pool.pk).update(autoscale=spec)


def run(pool: Pool, seconds: int, waiting: float = 5.0) -> None:
    begin = timezone.now()
    for second in range(0, seconds, 5):
        loaded(pool, waiting)
        autoscaler.scale_step(begin + dt.timedelta(seconds=second))


def test_advisory_mode_only_gives_advice(pool: Pool) -> None:
    autoscaled(pool, "advisory")
    run(pool, 15)
    said = autoscaler.latest(["p"])["p"]
    assert (said.replicas, said.advised, said.mode) == (2, 4, "advisory")
    assert said.why == "5.0 requests wait per instance, the target is 2"
    assert selectors.pool_ready("p") == (2, 2)
    assert Pool.objects.get().scaled is None


def test_automatic_mode_scales_and_gives_the_reason(pool: Pool) -> None:
    autoscaled(pool, "automatic")
    run(pool, 15)
    assert Pool.objects.get().scaled == 4
    assert selectors.pool_ready("p") == (2, 4)
    event = InstanceEvent.objects.get(kind="scale")
    assert (event.text, event.actor) == ("scaled from 2 to 4", "autoscaler")
    assert "5.0 requests wait" in event.reason


def test_the_time_to_the_first_token_is_measured_over_all_routers(pool: Pool) -> None:
    now = timezone.now().timestamp()
    for name, buckets in (("r1", {"100": 9}), ("r2", {"150": 3})):
        window = {"id": name, "at": now, "classes": {"p": {"warm": {"ttft": buckets}, "heavy": {}}}}
        connect().set(redis_keys.router_key(name), stored(window))
        connect().zadd(redis_keys.ROUTERS, {name: now})
    point = autoscaler.look(connect(), pool, now)
    assert set(point.ttft_p90_ms) == {"warm"}
    assert point.ttft_p90_ms["warm"] == pytest.approx(393, rel=0.05)


def test_the_balance_of_prefill_and_decode_is_measured_from_samples_and_answers(pool: Pool) -> None:
    config = {"kind": "sim", "model": "m", "engine": {"kv": "neuron", "prefill_instances": 1, "max_num_seqs": 8}}
    loaded(pool, 0.0)
    for ordinal, role in enumerate(("prefill", "decode")):
        Instance.objects.filter(name=f"p-{ordinal}").update(wire={"role": role}, config=config)
    now = timezone.now().timestamp()
    status = {"id": "r", "at": now, "classes": {"p": {"warm": {"ok": 90}, "heavy": {"ok": 30}}}}
    connect().set(redis_keys.router_key("r"), stored(status))
    connect().zadd(redis_keys.ROUTERS, {"r": now})
    point = autoscaler.look(connect(), pool, now)
    prefill, decode = (SideLoad(instances=1, work=work, waiting=0, kv=0.5) for work in (1.0, 0.5))
    assert (point.prefill, point.decode) == (prefill, decode)
    assert point.answers_per_s == 2
    autoscaled(pool, "advisory")
    autoscaler.scale_step(timezone.now())
    assert autoscaler.latest(["p"])["p"].balance.startswith("a prefill instance can do 2 prompts a second, a decoder 4")


def waiting_in_routers(count: int, ago_s: float = 0.0) -> None:
    now = timezone.now().timestamp() - ago_s
    connect().set(redis_keys.router_key("r"), stored({"id": "r", "at": now, "queued": {"p": {"warm": count}}}))
    connect().zadd(redis_keys.ROUTERS, {"r": now})


def test_routers_know_that_a_pool_is_at_zero_and_one_waiting_request_wakes_it(pool: Pool) -> None:
    spec = {"mode": "automatic", "min": 0, "max": 4, "wake_max_held": 7, "wake_max_wait_s": 90}
    Pool.objects.filter(pk=pool.pk).update(autoscale=spec, scaled=0)
    assert not autoscaler.wake_step(timezone.now())
    assert autoscaler.latest(["p"])["p"].why == "at zero: the next request wakes it"
    waiting_in_routers(3)
    assert autoscaler.wake_step(timezone.now())
    assert Pool.objects.get().scaled == 1
    assert InstanceEvent.objects.get(kind="scale").reason == "3 waiting for an instance"
    assert not autoscaler.wake_step(timezone.now()), "it is woken once"
    publish_fleet("p")
    value = decode(FleetValue, connect().get(redis_keys.fleet_key("p")))
    assert value is not None
    assert value.wake == WakeRule(max_held=7, max_wait_s=90.0)
    Pool.objects.filter(pk=pool.pk).update(autoscale={**spec, "min": 1, "target_kv": 0.5})
    publish_fleet("p")
    value = decode(FleetValue, connect().get(redis_keys.fleet_key("p")))
    assert value is not None
    assert value.wake is None


def test_a_pool_at_zero_by_sleep_is_woken_by_a_request_without_a_start(world: World) -> None:
    """A request that arrives before the engine sleeps also wakes it."""
    services.apply_fleet(document(2), "ada")
    world.until_ready(2)
    pids = {row.pid for row in selectors.instances()}
    spec = {"mode": "automatic", "min": 0, "to_zero": "sleep", "idle_s": 10, "cooldown_s": 0}
    Pool.objects.update(autoscale=spec)
    begin = timezone.now()
    for second in range(0, 15, 5):
        autoscaler.scale_step(begin + dt.timedelta(seconds=second))
    assert {row.desired for row in selectors.instances()} == {"asleep"}
    assert not autoscaler.wake_step(timezone.now())
    world.until(lambda: all(row.asleep == 1 for row in selectors.instances()))
    assert selectors.pool_ready("p") == (0, 0)
    waiting_in_routers(1)
    assert autoscaler.wake_step(timezone.now())
    assert not autoscaler.wake_step(timezone.now()), "it is woken once"
    world.until_ready(2)
    assert {row.pid for row in selectors.instances()} == pids
    told = InstanceEvent.objects.filter(kind="scale").values_list("text", "reason")
    assert set(told) == {("put to sleep, 2 of 2", "no request for 10 s"), ("woken", "1 waiting for an instance")}


def test_a_report_from_before_an_operator_put_a_pool_to_sleep_does_not_wake_it(world: World) -> None:
    """The instance had answered that report's waiting requests before the operator put it to sleep."""
    services.apply_fleet(document(1), "ada")
    world.until_ready(1)
    Pool.objects.update(autoscale={"mode": "automatic", "min": 0, "to_zero": "sleep", "idle_s": 600})
    waiting_in_routers(3, ago_s=0.5)
    services.sleep("p-0", "otto")
    assert not autoscaler.wake_step(timezone.now())
    assert selectors.instance("p-0").desired == "asleep"
    waiting_in_routers(1)
    assert autoscaler.wake_step(timezone.now())


def test_engines_that_cannot_sleep_get_no_order_to_sleep(world: World) -> None:
    made = document(1, flavour=9)
    made["spec"]["pools"][0]["autoscale"] = {"mode": "automatic", "min": 0, "to_zero": "sleep"}
    with pytest.raises(InvalidFleet, match=r"autoscale.to_zero: engines of its kind.*cannot sleep; allowed: stop"):
        services.apply_fleet(made, "ada")


def test_in_advisory_mode_the_autoscaler_does_not_wake_a_pool(pool: Pool) -> None:
    Pool.objects.filter(pk=pool.pk).update(autoscale={"mode": "advisory", "min": 0}, replicas=0)
    waiting_in_routers(1)
    assert not autoscaler.wake_step(timezone.now())
    autoscaler.scale_step(timezone.now())
    said = autoscaler.latest(["p"])["p"]
    assert (said.replicas, said.advised, said.points[-1].held) == (0, 1, 1)
    assert Pool.objects.get().scaled is None


def test_without_redis_there_is_no_advice_to_show(pool: Pool, redis_away: None) -> None:
    assert autoscaler.latest(["p"]) == {}
    assert autoscaler.latest([]) == {}
