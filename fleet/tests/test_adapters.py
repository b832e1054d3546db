"""LoRA adapters on simulated engines: loaded at their homes, again after a restart, elsewhere after failures."""

import datetime as dt
import time

import pytest
from django.utils import timezone

from fleet.control import adapters
from fleet.control.publish import publish_fleet
from fleet.models import AdapterHome, Instance, InstanceEvent, Pool, State
from fleet.tests.simengine.conftest import start
from router.contract.models import Adapter
from router.contract.redis import redis_keys
from router.tests.values import loaded, stored

pytestmark = pytest.mark.django_db


class Engines:
    """The instances of a pool, whose processes this test starts, with the control worker's step over them."""

    def __init__(self, count, slots):
        engine = {"enable_lora": True, "max_loras": slots}
        self.pool = Pool.objects.create(name="chat", model="sim", kind="sim", replicas=count, engine=engine)
        self.slots, self.running, self.now = slots, {}, timezone.now()
        for ordinal in range(count):
            Instance.objects.create(pool=self.pool, name=f"chat-{ordinal}", ordinal=ordinal)
            self.start(f"chat-{ordinal}")

    def start(self, name):
        """Start the instance as a new process with a new epoch."""
        if name in self.running:
            self.running.pop(name).stop()
        sim = self.running[name] = start(max_loras=self.slots)
        row = Instance.objects.get(name=name)
        Instance.objects.filter(pk=row.pk).update(url=sim.url, state=State.READY, epoch=row.epoch + 1)
        publish_fleet("chat")

    def step(self, wanted, seconds=1.0, carried_out=True):
        self.now += dt.timedelta(seconds=seconds)
        orders = []
        found = {("chat", one.name): one for one in wanted}
        changes = adapters.adapters_step(self.now, found, lambda *order: orders.append(order))
        for verb, _node, instance, epoch in orders if carried_out else ():
            assert verb == "adapt"
            adapters.adapt_instance(instance, epoch)
        return changes

    def listed(self, name):
        data = self.running[name].http.get("/v1/models").json()["data"]
        return {one["id"] for one in data if one["parent"]}

    def homes(self):
        return {name: held for name in self.running if (held := self.listed(name))}


@pytest.fixture
def engines(db, live_redis):
    made = []

    def make(count=2, slots=3):
        made.append(Engines(count, slots))
        return made[0]

    adapters._ordered_at.clear()
    yield make
    for sim in made[0].running.values():
        sim.stop()


def lora(tmp_path, name, replicas=1):
    (tmp_path / name).mkdir(exist_ok=True)
    return Adapter(name, str(tmp_path / name), replicas)


def published(client):
    value = loaded(client.get(redis_keys.fleet_key("chat")))
    return {one["id"]: tuple(one.get("adapters", ())) for one in value["instances"]}


def test_an_adapter_is_loaded_at_its_homes_published_once_listed_and_unloaded_again(engines, tmp_path, live_redis):
    world = engines()
    bot = lora(tmp_path, "bot@v1")
    (change,) = world.step([bot], carried_out=False)
    assert not any(published(live_redis).values())
    world.step([bot], seconds=adapters.AGAIN_S)
    assert world.homes() == {change.instance: {"bot@v1"}}
    assert published(live_redis)[change.instance] == ("bot@v1",)
    assert world.step([bot]) == []
    world.step([])
    assert world.homes() == {}
    assert not AdapterHome.objects.exists()
    assert not any(published(live_redis).values())


def test_an_engine_that_restarts_with_three_adapters_reloads_them_in_one_step(engines, tmp_path, live_redis):
    world = engines(count=1)
    three = [lora(tmp_path, f"a{n}") for n in range(3)]
    world.step(three)
    assert published(live_redis)["chat-0"] == ("a0", "a1", "a2")
    world.start("chat-0")
    assert published(live_redis)["chat-0"] == ()  # no request for an adapter reaches an engine that does not list it
    began = time.monotonic()
    world.step(three)
    assert world.listed("chat-0") == {"a0", "a1", "a2"}
    assert published(live_redis)["chat-0"] == ("a0", "a1", "a2")
    assert time.monotonic() - began < 4.0


def test_a_load_that_fails_twice_is_shown_with_the_engines_error_and_moves_to_another_home(engines, tmp_path):
    world = engines()
    bot = Adapter("bot@v1", str(tmp_path / "missing"))
    (first,) = world.step([bot])
    world.step([bot], seconds=adapters.AGAIN_S)
    failed = AdapterHome.objects.get(instance__name=first.instance)
    assert (failed.state, failed.failures) == ("failed", 2)
    assert "No adapter found for" in failed.text
    assert InstanceEvent.objects.filter(instance=first.instance, kind="refused").count() == 1
    (tmp_path / "missing").mkdir()
    (second,) = world.step([bot])
    assert second.instance != first.instance
    assert world.homes() == {second.instance: {"bot@v1"}}


def test_a_folder_that_this_node_does_not_allow_is_not_loaded(engines, tmp_path, settings):
    world = engines(count=1)
    settings.ALLOWED_FOLDERS = ("/lora",)
    world.step([lora(tmp_path, "bot@v1")])
    assert world.homes() == {}
    assert "the administrators do not allow this folder" in AdapterHome.objects.get().text


def test_one_more_home_is_loaded_when_requests_wait_at_all_of_them_for_half_a_minute(engines, tmp_path, live_redis):
    world = engines()
    bot = lora(tmp_path, "bot@v1")
    (home,) = world.step([bot])
    sample = {"id": home.instance, "pool": "chat", "epoch": 1, "at": time.time(), "waiting": 4.0}
    live_redis.set(redis_keys.instance_key(home.instance), stored(sample))
    assert world.step([bot], seconds=1) == []
    (more,) = world.step([bot], seconds=31)
    assert more.instance != home.instance
    assert len(world.homes()) == 2


def test_adapters_loaded_by_others_are_recognised_and_left_alone(engines, tmp_path, live_redis):
    world = engines(count=1)
    world.running["chat-0"].post("/v1/load_lora_adapter", {"lora_name": "theirs", "lora_path": "org/theirs"})
    world.step([])
    assert published(live_redis)["chat-0"] == ("theirs",)
    world.step([lora(tmp_path, "bot@v1")])
    assert world.listed("chat-0") == {"theirs", "bot@v1"}
    world.running["chat-0"].post("/v1/unload_lora_adapter", {"lora_name": "theirs"})
    world.step([], seconds=adapters.LOOK_S)
    world.step([], seconds=adapters.LOOK_S)
    assert published(live_redis)["chat-0"] == ()


def test_an_order_for_an_earlier_epoch_is_void(engines, tmp_path):
    world = engines(count=1)
    bot = lora(tmp_path, "bot@v1")
    world.step([bot], carried_out=False)
    world.start("chat-0")
    assert adapters.adapt_instance("chat-0", 1) is False
    assert world.homes() == {}
