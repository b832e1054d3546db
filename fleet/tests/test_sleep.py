"""Put engines to sleep and wake them: orders refused, late, repeated or simultaneous; with real processes."""

import asyncio
import json
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from fleet import services
from fleet.control import sleep
from fleet.control.node_agent import in_seconds
from fleet.kinds import KINDS
from fleet.kinds.sglang.sleeping import SGLANG_SLEEP
from fleet.kinds.vllm.sleeping import AWAKE, VLLM_SLEEP, Sleeping
from fleet.models import Instance, InstanceEvent, State
from fleet.plan.reconcile import ORDER_AGAIN_S
from fleet.tests.world import World


def test_an_instance_sleeps_and_wakes_without_losing_its_process(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    pid = world.one().pid
    services.sleep("p-0", "ada", "night", level=2)
    world.until(lambda: world.one().asleep == 2)
    assert (world.one().state, world.one().reason) == (State.DRAINING, "asleep (level 2)")
    assert world.published()["p-0"]["routable"] is False
    assert world.published()["p-0"]["asleep"] is True
    assert json.load(urllib.request.urlopen(world.one().url + "/is_sleeping", timeout=5)) == {"is_sleeping": True}
    world.age(300)
    world.tick()
    assert world.one().asleep == 2
    services.wake("p-0", "ada")
    world.until_ready(1)
    assert (world.one().pid, world.one().asleep) == (pid, None)
    told = list(InstanceEvent.objects.values_list("kind", flat=True))
    assert {"sleep", "asleep", "wake", "awake"} <= set(told)


TOKEN = '/v1/completions {"model":"m","prompt":"a","max_tokens":1}'
RELOAD = '/collective_rpc {"method":"reload_weights"}'
WOKEN = {
    1: ["/wake_up", "/reset_prefix_cache", TOKEN],
    2: ["/wake_up?tags=weights", RELOAD, "/wake_up?tags=kv_cache", "/reset_prefix_cache", TOKEN],
}


def orders(world: World) -> list[str]:
    return list(json.load(urllib.request.urlopen(world.one().url + "/orders", timeout=5)))


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_is_woken_from_its_sleep_level_and_computes_a_token_before_any_request(
    world: World, level: int
) -> None:
    world.apply(1)
    world.until_ready(1)
    services.sleep("p-0", "ada", level=level)
    world.until(lambda: world.one().asleep == level)
    services.wake("p-0", "ada")
    world.until_ready(1)
    assert orders(world) == [f"/sleep?level={level}", *WOKEN[level]]
    assert "asleep" not in world.published()["p-0"]


@pytest.mark.parametrize("fails", ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", "/v1"])
def test_an_engine_that_wakes_only_partly_gets_no_requests_and_is_woken_again_from_the_start(
    world: World, fails: str
) -> None:
    world.apply(1)
    world.until_ready(1)
    services.sleep("p-0", "ada", level=2)
    world.until(lambda: world.one().asleep == 2)
    world.tell(fails=fails, sleep_status=500)
    services.wake("p-0", "ada")
    world.until(lambda: InstanceEvent.objects.filter(kind="refused").exists())
    assert InstanceEvent.objects.get(kind="refused").text.endswith("the engine answers 500")
    assert (world.one().asleep, world.published()["p-0"]["routable"]) == (2, False)
    world.tell(sleep_status=200)
    assert sleep.wake_instance("p-0", world.one().epoch)
    assert world.one().asleep is None
    assert orders(world)[-5:] == WOKEN[2]


def test_sglang_is_woken_through_its_own_paths_and_no_memory_is_mapped_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's scheduler crashes if asked to map memory that is already mapped."""
    monkeypatch.setitem(KINDS, "fake", replace(KINDS["fake"], sleeping=SGLANG_SLEEP))
    world.apply(1)
    world.until_ready(1)
    services.sleep("p-0", "ada", level=2)
    world.until(lambda: world.one().asleep == 2)
    Instance.objects.update(wire={"tokenizer": "/models/m"})
    world.tell(fails="/update", sleep_status=500)
    services.wake("p-0", "ada")
    update = '/update_weights_from_disk {"model_path":"/models/m","flush_cache":false}'
    world.until(lambda: orders(world)[-1] == update)
    world.tell(sleep_status=200)
    assert sleep.wake_instance("p-0", world.one().epoch)
    mapped = ['/resume_memory_occupation {"tags":["weights","cuda_graph"]}', *[update] * 2]
    last = '/resume_memory_occupation {"tags":["kv_cache"]}'
    assert orders(world) == ["/release_memory_occupation {}", *mapped, last]
    world.until_ready(1)
    services.sleep("p-0", "ada")
    world.until(lambda: world.one().asleep == 1)
    services.wake("p-0", "ada")
    world.until_ready(1)
    assert orders(world)[-2:] == ["/release_memory_occupation {}", "/resume_memory_occupation {}"]


def test_sglang_gets_no_second_order_if_the_first_may_have_been_carried_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "fake", replace(KINDS["fake"], sleeping=SGLANG_SLEEP))
    monkeypatch.setattr(sleep, "TIMEOUT_S", 0.2)
    world.apply(1)
    world.until_ready(1)
    world.tell(sleep_delay_s=5.0)
    services.sleep("p-0", "ada")
    world.until(lambda: world.one().asleep == 1)  # it may be asleep, so it must be woken before it gets requests
    (refused,) = InstanceEvent.objects.filter(kind="refused")
    assert refused.text == "POST /release_memory_occupation: no answer within 0.2 s"
    assert orders(world) == ["/release_memory_occupation {}"]
    services.wake("p-0", "ada")
    world.until(lambda: orders(world)[-1] == "/resume_memory_occupation {}")
    world.until(lambda: InstanceEvent.objects.filter(kind="refused").count() == 2)
    world.tell(sleep_delay_s=0.0)
    assert sleep.wake_instance("p-0", world.one().epoch)
    told = ["/release_memory_occupation {}", "/resume_memory_occupation {}"]
    assert orders(world) == told
    world.until_ready(1)
    services.sleep("p-0", "ada")
    world.until(lambda: world.one().asleep == 1)
    assert orders(world) == [*told, told[0]], "what was remembered ended with its attempt"


def test_an_instance_woken_while_it_falls_asleep_gets_no_requests_before_it_is_awake(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, told_meanwhile = sleep._note, list[str]()

    def late(instance: Instance, *words: Any) -> bool:
        """Record an order's outcome after an operator has pressed Wake."""
        if not told_meanwhile:
            told_meanwhile.append("wake")
            sleep._under_way.add(instance.pk)
            services.wake("p-0", "ada")
            for _ in range(3):
                world.tick()
                assert (world.one().state, world.published()["p-0"]["routable"]) == (State.DRAINING, False)
            assert not sleep.sleep_instance("p-0", instance.epoch)
            assert not sleep.wake_instance("p-0", instance.epoch)
            sleep._under_way.discard(instance.pk)
        return note(instance, *words)

    world.apply(1)
    world.until_ready(1)
    monkeypatch.setattr(sleep, "_note", late)
    services.sleep("p-0", "ada")
    world.until(lambda: bool(told_meanwhile))
    world.until_ready(1)
    assert orders(world) == ["/sleep?level=1", *WOKEN[1]]


def test_an_order_to_sleep_without_an_outcome_is_followed_by_waking(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    world.tell(sleep_status=500)
    services.sleep("p-0", "ada")
    world.until(lambda: InstanceEvent.objects.filter(kind="refused").exists())
    services.wake("p-0", "ada")
    world.tick()
    assert world.one().state == State.DRAINING
    world.tell(sleep_status=200)
    Instance.objects.update(ordered_at=in_seconds(timezone.now(), -ORDER_AGAIN_S))
    world.until_ready(1)
    assert orders(world) == ["/sleep?level=1", *WOKEN[1]]


@pytest.mark.parametrize(("sleeping", "status"), [(VLLM_SLEEP, 404), (SGLANG_SLEEP, 500)])
def test_an_engine_that_refused_to_sleep_gets_requests_without_being_woken(
    world: World, monkeypatch: pytest.MonkeyPatch, sleeping: Sleeping, status: int
) -> None:
    """SGLang would crash if asked to map mapped memory, and this stand-in for vLLM would refuse to wake as well."""
    monkeypatch.setitem(KINDS, "fake", replace(KINDS["fake"], sleeping=sleeping))
    world.apply(1)
    world.until_ready(1)
    world.tell(sleep_status=status)
    services.sleep("p-0", "ada")
    world.until(lambda: InstanceEvent.objects.filter(kind="refused").exists())
    told = orders(world)
    world.tick()
    assert orders(world) == told, "the next order is not due"
    sleep._acted.clear()  # the node's worker restarts
    services.wake("p-0", "ada")
    world.until_ready(1)
    assert orders(world) == told


@pytest.mark.parametrize("state", [State.DRAINING, State.UNREACHABLE])
def test_a_late_order_to_sleep_is_void_and_delays_nothing(world: World, state: State) -> None:
    world.apply(1)
    world.until_ready(1)
    Instance.objects.update(state=state, ordered_at=timezone.now())
    assert not sleep.sleep_instance("p-0", world.one().epoch)
    world.until_ready(1)
    assert orders(world) == []
    services.sleep("p-0", "ada")
    world.until(lambda: world.one().asleep == 1)
    assert not sleep.sleep_instance("p-0", world.one().epoch), "the same order, delivered twice"
    assert orders(world) == ["/sleep?level=1"]


def test_an_sglang_whose_worker_ends_while_it_falls_asleep_is_woken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "fake", replace(KINDS["fake"], sleeping=SGLANG_SLEEP))
    note = sleep._note
    monkeypatch.setattr(sleep, "_note", lambda *words: False)
    world.apply(1)
    world.until_ready(1)
    services.sleep("p-0", "ada")
    world.until(lambda: bool(orders(world)))
    monkeypatch.setattr(sleep, "_note", note)
    services.wake("p-0", "ada")
    world.tick()
    assert world.one().state == State.DRAINING
    Instance.objects.update(ordered_at=in_seconds(timezone.now(), -ORDER_AGAIN_S))
    world.until_ready(1)
    assert orders(world) == ["/release_memory_occupation {}", "/resume_memory_occupation {}"]


def test_an_instance_that_was_unreachable_while_it_slept_is_woken_before_it_serves(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    services.sleep("p-0", "ada")
    world.until(lambda: world.one().asleep == 1)
    Instance.objects.update(state=State.UNREACHABLE)
    services.wake("p-0", "ada")
    world.until_ready(1)
    assert orders(world) == ["/sleep?level=1", *WOKEN[1]]


def test_an_engine_that_still_sleeps_after_a_wake_does_not_count_as_awake(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    instance = world.one()
    world.tell(asleep=True)
    with pytest.raises(sleep.SleepRefused, match=r"GET /is_sleeping: the engine says .*true"):
        asyncio.run(sleep._take(instance, (AWAKE,)))


@pytest.mark.parametrize(
    ("behaviour", "why", "may_sleep"),
    [
        ({"sleep_status": 404}, "POST /sleep?level=1: the engine answers 404", None),
        ({"sleep_status": 500}, "POST /sleep?level=1: the engine answers 500", 1),
        ({"sleep_delay_s": 5.0}, "POST /sleep?level=1: no answer within 0.2 s", 1),
    ],
)
def test_an_engine_that_refuses_to_sleep_is_reported_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, Any], why: str, may_sleep: int | None
) -> None:
    monkeypatch.setattr(sleep, "TIMEOUT_S", 0.2 if "within" in why else 30.0)
    world.apply(1)
    world.until_ready(1)
    world.tell(**behaviour)
    services.sleep("p-0", "ada")
    world.until(lambda: InstanceEvent.objects.filter(kind="refused", text=why).exists())
    assert world.one().asleep == may_sleep


def test_an_engine_that_ends_before_it_sleeps_is_reported_too(world: World) -> None:
    world.apply(1)
    world.until_ready(1)
    out = {"url": "http://127.0.0.1:1", "state": State.DRAINING}
    Instance.objects.update(**out, desired="asleep", sleep_level=1, ordered_at=timezone.now())
    assert not sleep.sleep_instance("p-0", world.one().epoch)
    assert world.one().asleep is None
    assert InstanceEvent.objects.get(kind="refused").text.startswith("POST /sleep?level=1: All connection attempts")
