"""/metrics has the figures of the Live page, for callers who may see them."""

import re
import time
from pathlib import Path

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from controlplane.live.dashboard import step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.testing import api_caller
from controlplane.traffic.keys.models import ApiKey
from fleet.models import Node, Pool
from router.contract.redis import redis_keys
from router.tests.values import stored

DOCUMENTATION = Path(__file__).resolve().parents[4] / "docs" / "monitoring.md"


def undocumented(names):
    """The parser removes `_total` from the names of counters."""
    rows = [line.split("|")[1] for line in DOCUMENTATION.read_text().splitlines() if line.startswith("| `")]
    known = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    return [name for name in names if name not in known and f"{name}_total" not in known]


def families(user):
    answer = Client().get("/metrics", headers={"authorization": f"Bearer {api_caller(user).token}"})
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.content.decode()))


def page(user):
    return {family.name: family.samples for family in families(user)}


def values(samples, **labels):
    return [one.value for one in samples if labels.items() <= one.labels.items()]


@pytest.fixture
def fleet(live_redis):
    Client().get("/metrics")  # loads the pages: on a busy machine the samples would be too old by then
    made = FakeFleet(live_redis, size=3, routers=2)
    made.states["demo-2"] = ("failed", "its port is in use")
    made.kv["demo-0"] = 0.75
    made.write()
    return made


def test_the_metrics_of_a_fleet_equal_its_frame(fleet, vera):
    found = page(vera)
    assert values(found["weir_pool_instances"], pool="demo") == [3]
    assert values(found["weir_pool_ready_instances"], pool="demo") == [2]
    assert values(found["weir_instance_kv_usage"], instance="demo-0") == [0.75]
    assert values(found["weir_instance_status"], instance="demo-2", status="failed") == [1]
    assert values(found["weir_policy_routers"], pool="demo") == [2]
    assert values(found["weir_routers_alive"]) == [2]
    assert values(found["weir_redis_up"]) == [1]


def test_autoscalers_of_other_systems_read_the_advice(fleet, vera):
    Pool.objects.create(name="demo", kind="sim", model="m", autoscale={"min": 0, "target_queue": 4})
    value = {"pool": "demo", "at": 1.0, "changed_at": 0.0, "replicas": 0, "mode": "advisory", "advised": 3, "why": ""}
    value |= {"prefills": 0, "advised_prefills": 1}
    point = {"at": time.time() - 3, "ready": 0, "running": 0.0, "waiting": 0.0, "held": 5}
    fleet.client.set(redis_keys.scaling_key("demo"), stored({**value, "points": [point]}))
    found = page(vera)
    assert values(found["weir_pool_desired_instances"], pool="demo") == [3]
    assert values(found["weir_pool_desired_prefill_instances"], pool="demo") == [1]
    assert values(found["weir_pool_held_requests"], pool="demo") == [5]
    assert values(found["weir_pool_saturation"]) == []
    assert 3 <= values(found["weir_pool_load_age_seconds"], pool="demo")[0] < 60
    assert set(re.findall(r"weir_\w+", keda()["query"])) <= set(found)


def keda():
    """The documented example of a ScaledObject."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (document,) = [yaml.safe_load(block) for block in blocks if "kind: ScaledObject" in block]
    (trigger,) = document["spec"]["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    return trigger["metadata"]


def test_unknown_values_are_left_out(fleet, vera):
    assert values(page(vera)["weir_instance_kv_usage"], instance="demo-2") == []


def test_latencies_are_seconds(fleet, vera):
    (p50,) = values(page(vera)["weir_class_ttft_seconds"], pool="demo", **{"class": "heavy"}, quantile="0.5")
    frame = step.latest(fleet.client)
    assert p50 * 1000 == pytest.approx(frame["classes"]["demo"]["heavy"]["ttft"][0])


def test_only_summaries_have_quantiles_as_prometheus_expects(fleet, vera):
    found = families(vera)
    with_quantiles = {family.name for family in found if any("quantile" in one.labels for one in family.samples)}
    assert with_quantiles == {family.name for family in found if family.type == "summary"}
    assert with_quantiles == {"weir_class_ttft_seconds", "weir_class_tpot_seconds"}


def test_a_silent_node_is_visible_by_the_age_of_its_heartbeat(fleet, vera):
    Node.objects.update_or_create(name="gpu-1", defaults={"last_seen": "2026-01-01T00:00:00Z"})
    (age,) = values(page(vera)["weir_node_age_seconds"], node="gpu-1")
    assert age > 0


def test_a_key_has_its_name_beside_the_id_that_routers_use_as_a_label(redis_away, vera):
    kept, _ = ApiKey.issue(name="ci", created_by="ada")
    revoked, _ = ApiKey.issue(name="old", created_by="ada")
    revoked.revoke()
    [sample] = page(vera)["weir_key_info"]
    assert (sample.labels, sample.value) == ({"key": str(kept.pk), "name": "ci"}, 1)


def test_without_redis_only_metrics_from_the_database_are_reported(redis_away, vera):
    found = page(vera)
    assert values(found["weir_redis_up"]) == [0]
    assert "weir_instance_kv_usage" not in found
    assert "weir_experiments" in found


def test_a_stranger_gets_401_and_no_sign_in_page(db):
    answer = Client().get("/metrics")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


def test_a_token_without_the_scope_is_refused_with_the_scopes_name(vera):
    answer = Client().get("/metrics", headers={"authorization": f"Bearer {api_caller(vera, 'policy:read').token}"})
    assert answer.status_code == 403
    assert "live:read" in answer.content.decode()


def test_every_metric_is_documented(fleet, vera):
    Node.objects.update_or_create(name="gpu-1", defaults={"last_seen": "2026-01-01T00:00:00Z"})
    assert undocumented(page(vera)) == []
