"""Prices in the fleet document: validated, stored, shown as a change, and published on each instance's Redis entry."""

from typing import Any

import pytest
import redis

from fleet import services
from fleet.control.publish import publish_fleet
from fleet.kinds import KINDS
from fleet.kinds.kind import Hardware, hardware_of
from fleet.kinds.options.option import build
from fleet.models import Fleet, Instance, Pool
from fleet.spec.changes import FieldChange
from fleet.spec.fleet_spec import InvalidFleet, parse_fleet
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue


def document(prices: object = None, **engine: object) -> dict[str, Any]:
    pools = [{"name": "demo", "model": "m", "kind": "sim", "replicas": 1, "engine": engine}]
    spec: dict[str, Any] = {"pools": pools} | ({} if prices is None else {"prices": prices})
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": spec}


@pytest.mark.parametrize(
    ("prices", "path", "allowed"),
    [
        ({"gpu_hour": -1}, "spec.prices.gpu_hour", "a number from 0 to 1,000 $"),
        ({"dram_gb_hour": "much"}, "spec.prices.dram_gb_hour", "a number from 0 to 10 $"),
        ({"gpu": 1}, "spec.prices.gpu", ""),
        ([1], "spec.prices", ""),
    ],
)
def test_wrong_prices_are_refused(prices: object, path: str, allowed: str) -> None:
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document(prices))
    (problem,) = refused.value.problems
    assert (problem.path, problem.allowed) == (path, allowed)


def test_prices_are_stored_shown_as_a_change_and_removed_by_leaving_them_out(db: None) -> None:
    services.apply_fleet(document(), "ada")
    applied = services.apply_fleet(document({"gpu_hour": 2.5}), "ada")
    (change,) = applied.changes
    assert (change.kind, change.pool, change.fields) == ("prices", "", (FieldChange("prices.gpu_hour", None, 2.5),))
    assert applied.drift
    assert services.export()["spec"]["prices"] == {"gpu_hour": 2.5}
    assert services.apply_fleet(services.export(), "ada").changes == ()
    services.apply_fleet(document(), "ada")
    assert Fleet.objects.get().prices == {}
    assert "prices" not in services.export()["spec"]


@pytest.mark.parametrize(
    ("kind", "engine", "role", "expected"),
    [
        ("sim", {}, "both", Hardware(1)),
        (
            "sim",
            {"model_profile": "Qwen3-32B", "tp": 2, "dram_gb": 64.0, "ssd_gb": 999.0},
            "both",
            Hardware(2, 64, 999),
        ),
        ("sim", {"tp": 2, "prefill_tp": 4, "model_profile": "Qwen3-32B"}, "prefill", Hardware(4)),
        ("vllm", {"device": "cuda", "tensor_parallel": 4}, "both", Hardware(4)),
        ("vllm", {"device": "cpu"}, "both", Hardware()),
        ("neuron", {}, "both", Hardware()),
    ],
)
def test_the_gpus_of_an_instance_come_from_its_kind(
    kind: str, engine: dict[str, Any], role: str, expected: Hardware
) -> None:
    assert hardware_of(KINDS[kind], build(KINDS[kind].spec, engine), role) == expected


def test_each_instance_has_its_gpus_and_their_cost_per_hour(db: None, live_redis: redis.Redis) -> None:
    services.apply_fleet(document({"gpu_hour": 2.0, "dram_gb_hour": 0.01}, dram_gb=100.0), "ada")
    pool = Pool.objects.get()
    Instance.objects.create(pool=pool, ordinal=0, name="demo-0", node="local")
    publish_fleet("demo")
    (shown,) = codec.read(FleetValue, live_redis.get(redis_keys.fleet_key("demo"))).instances
    assert (shown.gpus, shown.dollars_per_hour) == (1, 3.0)
    Pool.objects.update(kind="gone")
    publish_fleet("demo")
    (unknown,) = codec.read(FleetValue, live_redis.get(redis_keys.fleet_key("demo"))).instances
    assert (unknown.gpus, unknown.dollars_per_hour) == (0, None)
