"""Nodes: their reports, cordons, and the effects of a silent node; and nothing starts twice."""

import datetime as dt
import errno
import io
import os
import sys
import time
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.utils import timezone

from fleet import services
from fleet.control import node_agent, nodes
from fleet.control.node_agent import in_seconds
from fleet.control.reconciler import reconcile_step
from fleet.models import Instance, InstanceEvent, Node, Pool, State
from fleet.node import fencing, inventory, process
from fleet.observe.failover_probe import FailoverProbe
from fleet.redis import connect
from fleet.tests.world import World, deliver, document, roll_back
from router.contract.redis import codec, redis_keys
from router.contract.redis.sample import InstanceSample

# Inventory


def test_the_inventory_lists_the_hosts_resources(tmp_path: Path) -> None:
    found = inventory.inventory(tmp_path)
    assert (found.cpus or 0) >= 1
    assert (found.memory_bytes or 0) > 2**20
    assert all(disk.bytes >= disk.free_bytes >= 0 for disk in found.disks)


def test_memory_is_the_containers_limit_if_that_is_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(inventory, "MEMORY_MAX", limit)
    whole = inventory.memory_bytes()
    limit.write_text("1048576\n")
    assert inventory.memory_bytes() == 1_048_576
    limit.write_text("max\n")
    assert inventory.memory_bytes() == whole


def nvml(**functions: Any) -> types.ModuleType:
    module = types.ModuleType("pynvml")
    module.NVMLError = OSError  # type: ignore[attr-defined]
    vars(module).update({"nvmlInit": lambda: None, "nvmlShutdown": lambda: None, **functions})
    return module


def broken() -> None:
    raise OSError("Driver Not Loaded")


def test_gpus_come_from_nvml_or_the_reason_for_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert inventory.read_gpus() == (None, "nvidia-ml-py is not installed")
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=broken))
    assert inventory.read_gpus() == (None, "NVML does not answer: Driver Not Loaded")
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetCount=broken))
    assert inventory.read_gpus() == (None, "NVML does not answer: Driver Not Loaded")
    one = nvml(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda handle: b"H200",
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=8, used=2),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=45),
    )
    monkeypatch.setitem(sys.modules, "pynvml", one)
    assert inventory.read_gpus() == ((inventory.NodeGpu(0, "H200", 8, 2, 0.45),), "")
    vars(one).update(
        nvmlDeviceGetPowerUsage=lambda handle: 412_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: broken(),
        nvmlDeviceGetTemperature=lambda handle, sensor: 54,
        nvmlDeviceGetClockInfo=lambda handle, clock: 1980,
    )
    (gpu,) = inventory.read_gpus()[0] or ()
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c, gpu.clock_mhz) == (412.0, None, 54.0, 1980.0)


# Reporting, and cordoning


def test_a_node_reports_its_address_labels_and_inventory(db: None, live_redis: object, settings: Any) -> None:
    settings.NODE_ADDRESS, settings.NODE_LABELS = "10.0.0.7", [("zone", "a")]
    now = timezone.now()
    nodes.record_heartbeat("gpu-1", now)
    node = Node.objects.get()
    assert (node.address, node.labels, node.last_seen) == ("10.0.0.7", {"zone": "a"}, now)
    assert node.inventory["cpus"] >= 1
    assert nodes.silent(now) == []
    assert nodes.silent(now + dt.timedelta(seconds=13)) == ["gpu-1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--name", "Gpu 1"], "--name Gpu 1: must be lower-case"),
        (["--name", "a", "--label", "x"], "--label x: must be KEY=VALUE"),
    ],
)
def test_an_invalid_node_is_refused_at_once(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("node", *words)


def step(orders: list[tuple[str, str, str, int]] | None = None) -> None:
    reconcile_step(timezone.now(), lambda *order: orders.append(order) if orders is not None else None, roll_back)


def test_nothing_is_started_on_a_cordoned_node(db: None, live_redis: object, fake_kind: None) -> None:
    nodes.record_heartbeat("local", timezone.now())
    services.apply_fleet(document(1), "ada")
    nodes.cordon("local", "ada", "new disk")
    for _ in range(3):
        step()
    assert "node local is cordoned" in Instance.objects.get().reason
    assert Node.objects.get().because == "ada: new disk"
    orders: list[tuple[str, str, str, int]] = []
    nodes.uncordon("local", "ada")
    step(orders)
    assert orders == [("start", "local", "p-0", 1)]
    assert Node.objects.get().because == ""


def test_a_document_that_names_an_unknown_node_gets_a_warning(db: None, live_redis: object, fake_kind: None) -> None:
    made = document(1)
    made["spec"]["pools"][0]["node"] = "gpu-9"
    assert services.apply_fleet(made, "ada").warnings == (
        "pool p: node gpu-9 is not known yet; its instances start once it reports (manage.py node --name gpu-9)",
    )
    nodes.record_heartbeat("gpu-9", timezone.now())
    assert services.apply_fleet(made, "ada", dry_run=True).warnings == ()


# Fencing, with real processes


def started(world: World) -> Instance:
    world.apply(1)
    world.until_ready(1)
    return world.one()


def test_an_order_that_arrives_twice_starts_one_process(world: World) -> None:
    row = started(world)
    Instance.objects.update(state=State.STARTING, pid=None)  # the row as a second worker saw it a moment earlier
    assert node_agent.start_instance("p-0", row.epoch) is False
    assert [pid for pid, _ in world.processes()] == [row.pid]


def test_a_database_that_is_behind_its_node_catches_up(world: World) -> None:
    row = started(world)
    process.stop(row.pid, row.pid_started, grace_s=0)
    Instance.objects.update(epoch=5, state=State.STARTING, pid=None)
    assert fencing.claim(world.one()) is None
    Instance.objects.update(epoch=2)  # an older backup was restored
    assert node_agent.start_instance("p-0", 2) is False
    assert (world.one().epoch, world.one().state) == (5, State.STOPPED)
    assert "has already started epoch 5 of it" in InstanceEvent.objects.get(kind="refused").text
    world.until_ready(1)
    assert world.one().epoch == 6


def test_an_epoch_is_not_forgotten_when_the_disk_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = started(world)
    path = fencing._record(Instance.objects.select_related("pool").get())
    with path.open("rb+") as record, monkeypatch.context() as patched:
        patched.setattr(fencing.os, "fdopen", lambda *_args, **_more: FullDisk(record.fileno(), "r+b", closefd=False))
        Instance.objects.update(epoch=row.epoch + 1)
        with pytest.raises(OSError, match="No space left on device"):
            fencing.claim(world.one())
    assert path.read_text() == str(row.epoch)
    assert fencing.claim(world.one()) is None
    assert path.read_text() == str(row.epoch + 1)


class FullDisk(io.FileIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_damaged_record_of_a_start_stops_no_start(world: World) -> None:
    row = started(world)
    path = fencing._record(Instance.objects.select_related("pool").get())
    path.write_bytes(b"\0\0\0\0 damaged")
    assert fencing.claim(world.one()) is None
    assert path.read_text() == str(row.epoch)


def test_a_fence_that_lacks_file_descriptors_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = started(world)

    def exhausted(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", exhausted)
        with pytest.raises(OSError, match="Too many open files"):
            fencing.fence("local")
    assert process.is_alive(row.pid, row.pid_started)


def test_a_recreated_pool_starts_a_new_record(world: World) -> None:
    row = started(world)
    Pool.objects.update(created_at=timezone.now() + dt.timedelta(seconds=5))
    assert fencing.claim(Instance.objects.select_related("pool").get()) is None
    folder = Path(fencing.settings.DATA_DIR) / "starts" / row.node
    assert len(list(folder.glob("p-0.*"))) == 1


def test_a_returning_node_ends_instances_that_were_started_elsewhere_in_the_meantime(world: World) -> None:
    row = started(world)
    fence = fencing.Fence()
    assert fence.step("local") == []
    assert process.is_alive(row.pid, row.pid_started)
    Instance.objects.update(node="mars", epoch=row.epoch + 1)
    assert fence.step("local") == []  # it has just checked
    assert fencing.Fence().step("local") == ["p-0"]
    assert not process.is_alive(row.pid, row.pid_started)


def test_a_node_ends_only_its_own_processes(world: World) -> None:
    row = started(world)
    Instance.objects.update(epoch=row.epoch + 1)
    assert fencing.fence("mars") == []
    assert process.is_alive(row.pid, row.pid_started)


# A silent node


@pytest.fixture
def silent(world: World) -> Instance:
    """Return an instance whose node's worker has stopped while the engine runs."""
    row = started(world)
    Node.objects.update(last_seen=in_seconds(timezone.now(), -40))
    return row


def look(failover_probe: FailoverProbe, until: str) -> Instance:
    end = time.monotonic() + 60
    while (row := Instance.objects.get()).state != until:
        assert time.monotonic() < end, row.reason
        failover_probe.step(timezone.now())
        time.sleep(0.05)
    return row


def test_an_engine_that_answers_keeps_its_requests_while_its_worker_is_silent(world: World, silent: Instance) -> None:
    failover_probe = FailoverProbe()
    for _ in range(3):
        assert failover_probe.step(timezone.now()) == []
        reconcile_step(timezone.now(), deliver, roll_back)
    assert world.one().state == State.READY
    failover_probe.close()


@pytest.mark.slow
def test_an_unreachable_engine_on_a_silent_node_is_started_elsewhere(world: World, silent: Instance) -> None:
    failover_probe = FailoverProbe()
    world.tell(health=503)
    lost = look(failover_probe, State.UNREACHABLE)
    assert lost.reason.startswith("node local is silent; no answer for")
    assert world.published()["p-0"]["routable"] is False
    Pool.objects.update(node="", placement={"spread": True})
    Node.objects.create(name="mars", last_seen=timezone.now())
    world.age(31)
    orders: list[tuple[str, str, str, int]] = []
    step(orders)
    assert orders == [("start", "mars", "p-0", silent.epoch + 1)]
    assert fencing.fence("local") == ["p-0"]
    failover_probe.close()


@pytest.mark.slow
def test_an_engine_that_answers_again_gets_requests_again(world: World, silent: Instance) -> None:
    failover_probe = FailoverProbe()
    world.tell(health=503)
    look(failover_probe, State.UNREACHABLE)
    world.tell(health=200)
    assert look(failover_probe, State.READY).epoch == silent.epoch
    failover_probe.close()


def test_samples_continue_while_the_database_refuses_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.apply(1)
    world.until_ready(1)
    world.scraper._seen_at.clear()  # a heartbeat is due
    monkeypatch.setattr(nodes, "record_heartbeat", Mock(side_effect=OperationalError("readonly database")))
    connect().delete(redis_keys.instance_key("p-0"))
    with pytest.raises(OperationalError):
        world.tick()
    assert codec.decode(InstanceSample, connect().get(redis_keys.instance_key("p-0"))).running == 0


def test_a_node_whose_probes_fail_still_reports(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.apply(1)
    world.until_ready(1)
    world.scraper._seen_at.clear()  # a heartbeat is due
    Node.objects.update(last_seen=timezone.now() - dt.timedelta(hours=1))
    monkeypatch.setattr("fleet.observe.scrape.free_space", Mock(side_effect=OSError("Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        world.tick()
    assert timezone.now() - Node.objects.get(name="local").last_seen < dt.timedelta(minutes=30)
