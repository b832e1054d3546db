"""The rules of Needs attention: one test per rule, and properties of all rules."""

from typing import Any

import pytest

from controlplane.live.dashboard.frame.build import build_frame
from controlplane.live.dashboard.tests.test_frames import NOW, Inputs, fleet, instance, router, sample, window
from router.contract.redis.fleet_status import StepReport

LIVE = {"demo": {"policy": "default", "version": 3, "sha256": "", "published_at": NOW - 60, "document": {}}}
ABORTED = {
    "delivery": 1, "policy": "default", "pools": ["demo"], "base": "v1", "candidate": "v2", "state": "aborted",
    "word": "aborted", "step": "", "figure": "", "next_at": None, "since": NOW,
    "why": "demo: warm TTFT 3.6× slower; slow warm requests +56 points",
}  # fmt: skip
ADVICE = {"pool": "demo", "at": NOW, "changed_at": NOW, "replicas": 4, "why": "7 wait"}


def late_step(error: str) -> StepReport:
    what = "starting, stopping and replacing instances"
    return StepReport(at=NOW - 40, every_s=1.0, took_s=0.1, what=what, worker="control@a", error=error)


BEFORE = build_frame(NOW - 1, Inputs())
del BEFORE["health"]["gap"]  # the frame is not the first one


def frame_of(**changes: Any) -> dict[str, Any]:
    """A fleet with one ready instance, one router on the live version and a running worker: nothing needs attention."""
    inputs: dict[str, Any] = {
        "fleets": {"demo": fleet(instance("demo-0"))},
        "samples": {"demo-0": sample()},
        "routers": {"r": router()},
        "policies": LIVE,
        "control_at": NOW,
    }
    return build_frame(NOW, Inputs(**{**inputs, **changes}), BEFORE)


def node(missed_at: float | None) -> dict[str, Any]:
    return {"name": "gpu-1", "last_seen": missed_at or NOW, "missed_at": missed_at}


def rules(**changes: Any) -> dict[str, str]:
    return {item["rule"]: item["reason"] for item in frame_of(**changes)["attention"]}


def test_a_silent_observed_pool_is_one_entry_however_many_engines_it_has() -> None:
    engines = [instance(f"seen-{i}", "unreachable", "no answer") for i in range(3)]
    seen = {**fleet(*engines), "pool": "seen", "observed": True}
    found = frame_of(fleets={"demo": fleet(instance("demo-0")), "seen": seen})["attention"]
    assert [(item["rule"], item["subject"]) for item in found] == [("pool_empty", "seen")]
    some = {**fleet(*engines[:2], instance("seen-9")), "pool": "seen", "observed": True}
    found = frame_of(
        fleets={"demo": fleet(instance("demo-0")), "seen": some}, samples={"demo-0": sample(), "seen-9": sample()}
    )["attention"]
    assert sorted(item["subject"] for item in found) == ["seen-0", "seen-1"]


def test_a_healthy_fleet_needs_no_attention() -> None:
    assert frame_of(nodes=[node(None)])["attention"] == []


@pytest.mark.parametrize(
    ("changes", "rule", "said"),
    [
        ({"samples": {"demo-0": sample(NOW - 5)}}, "worker_gone", "late: no heartbeat for 5 s"),
        (
            {"samples": {"demo-0": sample(NOW - 11)}},
            "worker_gone",
            "down: no heartbeat for 11 s; no instance is sampled",
        ),
        ({"control_at": NOW - 9}, "worker_gone", "late: no heartbeat for 9 s"),
        (
            {
                "steps": {
                    "fleet.reconcile": late_step("RowsFailed: policy default: LeaseLost: control@local no longer leads")
                }
            },
            "step_late",
            "late: last done 40 s ago, due every 1 s: policy default: control@local no longer leads",
        ),
        ({"steps": {"fleet.reconcile": late_step("")}}, "step_late", "late: last done 40 s ago, due every 1 s"),
        (
            {"steps": {"fleet.reconcile": late_step(""), "lease": late_step("")}, "read_only": True},
            "step_late",
            "read-only; nothing can be changed",
        ),
        ({"control_at": NOW - 1350}, "worker_gone", "down: no heartbeat for 22 min; nothing is started"),
        (
            {"nodes": [node(NOW - 45)], "fleets": {"demo": fleet({**instance("demo-0"), "node": "gpu-1"})}},
            "node_silent",
            "no heartbeat from the node for 45 s: 1 instance on it with samples of that age",
        ),
        ({"nodes": [node(NOW - 45)]}, "node_silent", "holds no instance: forget it if it is gone for good"),
        ({"routers": {"r": router(NOW - 6)}}, "router_gone", "no heartbeat from router for 6 s"),
        ({"routers": {}}, "router_gone", "no router is running"),
        ({"routers": {"r": {**router(), "degraded": ["Redis is away"]}}}, "router_degraded", "Redis is away"),
        ({"routers": {"r": router(version=2)}}, "router_behind", "runs v2 in pool demo; v3 is live"),
        ({"routers": {"r": {**router(), "pools": {}}}}, "router_behind", "runs no version"),
        ({"fleets": {"demo": fleet(instance("demo-0", "loading"))}}, "pool_empty", "0 of 1"),
        (
            {"fleets": {"demo": {**fleet(instance("demo-0", "loading")), "observed": True}}},
            "pool_empty",
            "no answer from its 1 engine, which Weir only observes",
        ),
        (
            {"fleets": {"demo": fleet(instance("demo-0", "failed", "exit status 1"))}},
            "instance_down",
            "failed: exit status 1",
        ),
        (
            {
                "fleets": {"demo": fleet(instance("demo-0"), instance("demo-1"))},
                "samples": {"demo-0": sample(NOW - 20), "demo-1": sample()},
            },
            "instance_down",
            "offline: no sample for 20 s",
        ),
        ({"samples": {"demo-0": sample(kv_usage=0.97)}}, "instance_saturated", "KV usage 97 %"),
        ({"routers": {"r": router(warm=window(40, error=3))}}, "class_failing", "8 % of warm requests failed"),
        (
            {"routers": {"r": router(warm=window(200, error=3, client_error=160))}},
            "class_failing",
            "8 % of warm requests failed in the last 60 s (n = 40)",
        ),
        (
            {"routers": {"r": router(heavy=window(40, refused=20))}},
            "class_failing",
            "50 % of heavy requests were refused",
        ),
        (
            {"fleets": {"demo": {**fleet(instance("demo-0")), "halted": "demo-3 failed"}}},
            "change_halted",
            "rollout is halted: demo-3 failed",
        ),
        (
            {"scaling": {"demo": {**ADVICE, "mode": "advisory", "advised": 6}}},
            "scaling_advised",
            "the autoscaler would scale from 4 to 6: 7 wait",
        ),
        (
            {"fleets": {"demo": {**fleet(instance("demo-0")), "policy": "chat"}}},
            "policy_missing",
            "the pool's policy chat has no published version: routers run default v3",
        ),
        (
            {"fleets": {"demo": {**fleet(instance("demo-0")), "policy": "chat"}}, "policies": {}},
            "policy_missing",
            "the pool's policy chat has no published version: routers run the built-in default",
        ),
        ({"deliveries": [ABORTED]}, "delivery_waits", "aborted: warm TTFT 3.6× slower; slow warm requests +56 points"),
        ({"unreadable": 2}, "unreadable", "2 values are unreadable"),
    ],
)
def test_each_rule_names_the_problem(changes: dict[str, Any], rule: str, said: str) -> None:
    assert said in rules(**changes)[rule]


def test_a_few_failures_among_few_requests_are_not_reported() -> None:
    assert rules(routers={"r": router(warm=window(19, error=19))}) == {}
    assert rules(routers={"r": router(warm=window(100, error=5))}) == {}


def test_a_router_gets_some_time_to_adopt_a_new_version() -> None:
    fresh = {"demo": {**LIVE["demo"], "version": 4, "published_at": NOW - 1}}
    assert rules(policies=fresh) == {}


def test_a_queue_counts_as_growing_if_it_is_well_above_its_last_minute() -> None:
    calm = frame_of(samples={"demo-0": sample(waiting=4)})
    inputs = Inputs(
        fleets={"demo": fleet(instance("demo-0"))}, samples={"demo-0": sample(NOW + 1, waiting=9)},
        routers={"r": router()}, policies=LIVE, control_at=NOW + 1,
    )  # fmt: skip
    (item,) = build_frame(NOW + 1, inputs, calm)["attention"]
    assert (item["rule"], item["subject"]) == ("queue_growing", "demo-0")
    assert "9 waiting, 4 on average" in item["reason"]


def test_the_worst_entry_is_first_and_each_links_to_its_subject() -> None:
    names = [instance("demo-0"), instance("demo-1", "failed", "x")]
    samples = {"demo-0": sample(kv_usage=0.96), "demo-1": sample()}
    found = frame_of(fleets={"demo": fleet(*names)}, samples=samples)["attention"]
    assert [(item["severity"], item["subject"]) for item in found] == [(3, "demo-1"), (2, "demo-0")]
    assert [item["href"] for item in found] == ["/fleet/instances/demo-1/", "/fleet/instances/demo-0/"]


def test_since_does_not_change_while_the_same_problem_lasts() -> None:
    first = frame_of(samples={"demo-0": sample(kv_usage=0.96)})
    later = Inputs(
        fleets={"demo": fleet(instance("demo-0"))}, samples={"demo-0": sample(NOW + 30, kv_usage=0.96)},
        routers={"r": router(NOW + 30)}, policies=LIVE, control_at=NOW + 30,
    )  # fmt: skip
    (item,) = build_frame(NOW + 30, later, first)["attention"]
    assert item["since"] == NOW
    assert "96 %" in item["reason"]


def test_a_pool_that_has_just_changed_its_policy_gets_some_time() -> None:
    just = {**fleet(instance("demo-0")), "policy": "chat", "at": NOW - 1}
    assert frame_of(fleets={"demo": just})["attention"] == []
    assert frame_of(fleets={"demo": {**just, "policy": "default", "at": NOW - 60}})["attention"] == []


@pytest.mark.parametrize(("state", "empty"), [("loading", False), ("draining", False), ("failed", True)])
def test_a_pool_that_wakes_or_scales_to_zero_needs_no_attention(state: str, empty: bool) -> None:
    waking = {**fleet(instance("demo-0", state)), "wake": {"max_held": 1, "max_wait_s": 1.0}}
    assert ("pool_empty" in rules(fleets={"demo": waking})) is empty


@pytest.mark.parametrize("said", [{"mode": "automatic", "advised": 6}, {"mode": "advisory", "advised": 4}])
def test_an_autoscaler_without_advice_to_apply_needs_no_attention(said: dict[str, Any]) -> None:
    assert frame_of(scaling={"demo": {**ADVICE, **said}})["attention"] == []


def test_the_policy_of_an_observed_pool_may_be_unpublished() -> None:
    observed = {**fleet(instance("demo-0")), "policy": "chat", "observed": True}
    assert "policy_missing" not in rules(fleets={"demo": observed})
