"""The fleet page's topology: tiers and nodes of a pool, from samples and records."""

from typing import Any

import pytest

from controlplane.pages.fleet_ops import topology
from controlplane.pages.fleet_ops.rows import InstanceRow
from fleet.models import Instance
from router.contract.redis.sample import InstanceSample, TierSample


def row(name: str, node: str = "gpu-1", **sample: Any) -> InstanceRow:
    instance = Instance(name=name, node=node, wire={"kv": {"bytes_per_token": 10}})
    known = InstanceSample(id=name, epoch=1, at=0.0, **sample) if sample else None
    return InstanceRow(instance, "ready", "", known, None, None, routable=True, kv_limit=0.95)


def test_tiers_of_a_pool_are_added_up() -> None:
    device = {"kv_usage": 0.5, "kv_blocks": 100, "block_size": 16}
    rows = [
        row("a", **device, tiers={"cpu": (5.0, 50.0)}),
        row("b", **device, kv_tiers={"disk": TierSample(used_bytes=70.0, capacity_bytes=100.0)}),
        row("c"),
    ]
    found = {tier.name: (tier.used, tier.size, tier.percent) for tier in topology._tiers(rows)}
    assert found == {"device": (16_000.0, 32_000.0, 50.0), "cpu": (5.0, 50.0, 10.0), "disk": (70.0, 100.0, 70.0)}


def test_many_instances_of_a_node_are_shown_as_their_number() -> None:
    found = topology._nodes([row(f"demo-{i}") for i in range(topology.SHOWN + 4)] + [row("x", node="")])
    assert [(node.name, len(node.instances), node.hidden) for node in found] == [
        ("", 1, 0),
        ("gpu-1", topology.SHOWN, 4),
    ]


@pytest.mark.django_db
def test_without_redis_a_topology_has_no_routers(redis_away: None) -> None:
    assert topology.topology([]) == []
