"""A frame is built from values in Redis; unknown values are None."""

from typing import Any

import pytest
from msgspec import convert

from controlplane.live.dashboard.frame import types
from controlplane.live.dashboard.frame.build import FrameInputs, build_frame
from router.contract.values import sketch

NOW = 1_000_000.0


def Inputs(**values: Any) -> FrameInputs:
    """Build inputs as Redis holds them, with sketch buckets as text."""
    return convert(values, FrameInputs, str_keys=True)


def instance(name: str, state: str = "ready", reason: str = "") -> dict[str, Any]:
    at = {"epoch": 1, "url": "http://127.0.0.1:1", "routable": state == "ready"}
    return {"id": name, "state": state, "reason": reason, "kv_blocks": 100, **at}


def sample(at: float = NOW, **figures: Any) -> dict[str, Any]:
    known = {
        "kv_usage": 0.5,
        "running": 2,
        "waiting": 0,
        "hit_rate": 0.25,
        "epoch": 1,
        "generation_tokens_total": 100.0,
    }
    return {"id": "demo-0", "at": at, **known, **figures}


def window(n: int = 0, ttft: tuple[float, ...] = (), **counts: Any) -> dict[str, Any]:
    measured: dict[int, int] = {}
    for value in ttft:
        sketch.add(measured, value)
    zero = {"started_10s": 0, "ok": n, "error": 0, "client_error": 0, "refused": 0, "cancelled": 0, "tpot": {}}
    return {"n": n, **zero, "ttft": {str(key): count for key, count in measured.items()}, **counts}


def router(at: float = NOW, version: int = 3, **classes: Any) -> dict[str, Any]:
    return {
        "id": "r",
        "at": at,
        "url": "u",
        "pools": {"demo": {"version": version}},
        "degraded": [],
        "classes": {"demo": classes},
    }


def fleet(*instances: dict[str, Any]) -> dict[str, Any]:
    return {"pool": "demo", "model": "m", "at": NOW - 60, "instances": list(instances)}


def only(frame: dict[str, Any], column: str) -> Any:
    (value,) = frame["instances"][column]
    return value


@pytest.mark.parametrize("state", ["stopped", "failed", "starting"])
def test_a_stopped_instance_has_no_figures_even_if_its_last_sample_is_there(state: str) -> None:
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(instance("demo-0", state))}, samples={"demo-0": sample()}))
    assert [only(frame, column) for column in ("status", "kv", "running", "age_s")] == [state, None, None, None]


def test_a_sample_of_the_previous_process_is_not_shown() -> None:
    inputs = Inputs(fleets={"demo": fleet(instance("demo-0", "loading"))}, samples={"demo-0": sample(epoch=0)})
    assert only(build_frame(NOW, inputs), "hit_rate") is None


def test_an_instance_without_a_sample_has_no_figures_instead_of_zeros() -> None:
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(instance("demo-0"))}))
    assert only(frame, "status") == "unseen"
    assert [only(frame, key) for key in ("kv", "running", "waiting", "hit_rate", "tokens_s", "age_s")] == [None] * 6


def test_a_pool_shows_the_mean_use_and_total_power_of_its_reporting_gpus() -> None:
    reported = [{"use": 0.4, "memory": 0.9, "power_w": 300.0}, {"use": 0.6}, None]
    samples = {f"demo-{i}": {**sample(gpu=gpu), "id": f"demo-{i}"} for i, gpu in enumerate(reported)}
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(*map(instance, samples))}, samples=samples))
    assert frame["instances"]["gpu_use"] == [0.4, 0.6, None]
    assert frame["instances"]["gpu_power_w"] == [300.0, None, None]
    totals = frame["totals"]["demo"]
    assert [totals[name] for name in ("gpu_use", "gpu_memory", "gpu_power_w")] == [0.5, 0.9, 300.0]
    assert totals["gpu_simulated"] == 0


def test_simulated_gpus_are_distinguished_from_measured_ones() -> None:
    reported = [{"memory": 0.9, "power_w": 300.0, "simulated": True}, {"power_w": 200.0}, {}, None]
    samples = {f"demo-{i}": {**sample(gpu=gpu), "id": f"demo-{i}"} for i, gpu in enumerate(reported)}
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(*map(instance, samples))}, samples=samples))
    assert frame["instances"]["gpu_simulated"] == [True, False, None, None]
    assert frame["totals"]["demo"]["gpu_simulated"] == 0.5
    samples = {
        f"demo-{i}": {**sample(gpu={"power_w": 200.0, "simulated": i > 0}), "id": f"demo-{i}"} for i in range(3_000)
    }
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(*map(instance, samples))}, samples=samples))
    assert 0.999 < frame["totals"]["demo"]["gpu_simulated"] < 1  # one is measured


def test_instances_are_sorted_by_pool_and_by_number_not_by_text() -> None:
    names = [instance("demo-10"), instance("demo-2"), instance("demo-1")]
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(*names), "chat": fleet(instance("zed"))}))
    assert frame["instances"]["id"] == ["zed", "demo-1", "demo-2", "demo-10"]


@pytest.mark.parametrize(
    ("state", "at", "figures", "status"),
    [
        ("ready", NOW - 3, {}, "ready"),
        ("ready", NOW - 3.1, {}, "stale"),
        ("ready", NOW - 15, {}, "stale"),
        ("ready", NOW - 15.1, {}, "offline"),
        ("ready", NOW, {"kv_usage": 0.951}, "saturated"),
        ("ready", NOW, {"kv_usage": 0.95}, "ready"),
        ("ready", NOW, {"waiting": 16}, "saturated"),
        ("ready", NOW, {"kv_usage": None, "waiting": None}, "ready"),
        ("draining", NOW, {"kv_usage": 0.99}, "draining"),
        ("draining", NOW, {"running": 0}, "drained"),
        ("draining", NOW, {"running": 0, "waiting": 1}, "draining"),
        ("draining", NOW, {"running": None}, "draining"),
        ("draining", NOW - 4, {}, "stale"),
        ("ready", NOW + 1, {}, "ready"),
        ("ready", NOW + 3600, {}, "stale"),
        ("failed", NOW, {}, "failed"),
        ("loading", NOW - 99, {}, "loading"),
    ],
)
def test_the_shown_status_is_the_state_corrected_by_the_sample(
    state: str, at: float, figures: dict[str, Any], status: str
) -> None:
    heard = {"demo-0": sample(at, **figures), "demo-1": {**sample(), "id": "demo-1"}}
    inputs = Inputs(fleets={"demo": fleet(instance("demo-0", state), instance("demo-1"))}, samples=heard)
    instances = build_frame(NOW, inputs)["instances"]
    assert (instances["status"][0], instances["last_known"][0]) == (status, False)


@pytest.mark.parametrize(
    ("state", "age", "node_age", "status", "reason", "last_known"),
    [
        ("ready", 3, 3, "ready", "", False),
        ("ready", 4, 4, "ready", "last known 4 s ago: no sample of its node has arrived since", True),
        ("ready", 4, 3, "stale", "last sample 4 s ago", False),
        ("ready", 60, 60, "ready", "last known 60 s ago: no sample of its node has arrived since", True),
        ("ready", 60, 4, "ready", "last known 60 s ago: no sample of its node has arrived since", True),
        ("ready", 60, 1, "offline", "no sample for 60 s", False),
        ("draining", 60, 60, "draining", "last known 60 s ago: no sample of its node has arrived since", True),
        ("failed", 60, 60, "failed", "", False),
        ("loading", 60, 60, "loading", "", False),
        ("ready", 60, -3600, "ready", "last known 60 s ago: no sample of its node has arrived since", True),
    ],
)
def test_an_instance_is_stale_or_offline_only_while_others_of_its_node_report(
    state: str, age: float, node_age: float, status: str, reason: str, last_known: bool
) -> None:
    there = [{**instance("demo-0", state), "node": "gpu-1"}, {**instance("demo-1"), "node": "gpu-1"}]
    elsewhere = {**instance("demo-2"), "node": "gpu-2"}
    samples = {"demo-0": sample(NOW - age), "demo-1": sample(NOW - node_age), "demo-2": sample()}
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(*there, elsewhere)}, samples=samples))
    shown = [frame["instances"][column][0] for column in ("status", "reason", "last_known")]
    assert shown == [status, reason, last_known]
    assert frame["totals"]["demo"]["running"] == (6 if last_known or age <= 15 else 4)


def under(limit: object) -> dict[str, Any]:
    return {
        "policy": "chat",
        "version": 1,
        "sha256": "",
        "published_at": 1.0,
        "document": {"load": {"kv_usage_max": limit}},
    }


@pytest.mark.parametrize(
    ("policies", "limit", "status"),
    [
        ({"demo": under(0.8)}, 0.8, "saturated"),
        ({"demo": under(0.9)}, 0.9, "ready"),
        ({"demo": under("full")}, 0.95, "ready"),
        ({"demo": {**under(0.8), "document": {}}}, 0.95, "ready"),
        ({"chat": under(0.8)}, 0.95, "ready"),
    ],
)
def test_the_pools_policy_sets_the_limit_of_kv_usage(policies: dict[str, Any], limit: float, status: str) -> None:
    samples = {"demo-0": sample(kv_usage=0.9)}
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(instance("demo-0"))}, samples=samples, policies=policies))
    assert (frame["pools"]["demo"]["kv_limit"], only(frame, "status")) == (limit, status)


def test_totals_per_status_add_up_to_the_fleet() -> None:
    names = [instance("a"), instance("b", "failed"), instance("c", "loading"), instance("d")]
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(*names)}, samples={"a": sample()}))
    assert frame["counts"] == {"failed": 1, "unseen": 1, "loading": 1, "ready": 1}
    assert next(iter(frame["counts"])) == "failed"


def test_tokens_per_second_are_computed_from_two_samples_of_one_epoch() -> None:
    fleets = {"demo": fleet(instance("demo-0"))}

    def after(first: dict[str, Any], second: dict[str, Any]) -> Any:
        previous = build_frame(NOW, Inputs(fleets=fleets, samples={"demo-0": first}))
        return only(build_frame(NOW + 2, Inputs(fleets=fleets, samples={"demo-0": second}), previous), "tokens_s")

    assert after(sample(), sample(NOW + 2, generation_tokens_total=300.0)) == 100.0
    assert after(sample(), sample(NOW + 2, generation_tokens_total=300.0, epoch=2)) is None
    assert after(sample(), sample(NOW + 2, generation_tokens_total=20.0)) is None
    assert after(sample(generation_tokens_total=None), sample(NOW + 2)) is None


def test_tokens_per_second_stay_until_a_newer_sample() -> None:
    fleets = {"demo": fleet(instance("demo-0"))}
    frame = build_frame(NOW, Inputs(fleets=fleets, samples={"demo-0": sample()}))
    newer = Inputs(fleets=fleets, samples={"demo-0": sample(NOW + 1, generation_tokens_total=150.0)})
    second = build_frame(NOW + 1, newer, frame)
    assert only(build_frame(NOW + 2, newer, second), "tokens_s") == 50.0


def test_percentiles_cover_all_routers_and_have_their_n() -> None:
    routers = {
        "r1": router(warm=window(2, (10.0, 10.0), started_10s=20)),
        "r2": router(warm=window(2, (1000.0, 1000.0), started_10s=5)),
    }
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet()}, routers=routers))
    warm = frame["classes"]["demo"]["warm"]
    assert (warm["n"], warm["ttft_n"], warm["rate"]) == (4, 4, 2.5)
    assert warm["ttft"][0] == pytest.approx(10.0, rel=0.021)
    assert warm["ttft"][2] == pytest.approx(1000.0, rel=0.021)
    assert warm["tpot"] == [None, None, None]


def test_an_ended_router_counts_neither_for_latency_nor_for_acknowledgements() -> None:
    policies = {"demo": {"policy": "default", "version": 4, "sha256": "", "published_at": NOW, "document": {}}}
    routers = {"here": router(version=4, warm=window(1)), "gone": router(NOW - 6, version=4, warm=window(9))}
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet()}, routers=routers, policies=policies))
    assert frame["classes"]["demo"]["warm"]["n"] == 1
    assert (frame["policies"]["demo"]["acknowledged"], frame["policies"]["demo"]["routers"]) == (1, 1)
    assert frame["routers"]["gone"].count(True) == 1


@pytest.mark.parametrize(
    ("ages", "answers", "state"),
    [
        ((1, 90), [], "serving"),
        ((), [], "none"),
        ((6, 30), ["refused", "answered"], "late"),
        ((300,), ["answered"], "late"),
        ((6, 30), ["no answer", "refused"], "late"),
        ((16,), ["no answer"], "down"),
        ((6,), ["refused"], "down"),
    ],
)
def test_routers_are_down_only_if_neither_their_reports_nor_their_sockets_show_otherwise(
    ages: tuple[float, ...], answers: list[str], state: str
) -> None:
    routers = {f"r{number}": router(NOW - age) for number, age in enumerate(ages)}
    health = build_frame(NOW, Inputs(routers=routers, router_answers=answers))["health"]
    assert (health["routers_state"], health["routers_age_s"]) == (state, min(ages, default=None))


def test_names_that_clients_use_are_shown_beside_the_pool_that_serves_them() -> None:
    counts = {f"name-{number}": 60 * number for number in range(1, 8)}
    routers = {
        "r-1": router() | {"aliases": {"demo": counts}},
        "r-2": router() | {"aliases": {"demo": {"name-7": 30}, "other": {"chat": 1}}},
        "gone": router(NOW - 60) | {"aliases": {"demo": {"name-1": 6000}}},
    }
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet()}, routers=routers))
    words = frame["aliases"]["demo"].replace("\xa0", " ")
    assert words.startswith("name-7 7.5 requests/s, name-6 6 requests/s")
    assert words.endswith("2 others 3 requests/s")
    assert build_frame(NOW, Inputs(fleets={"demo": fleet()}, routers={"r": router()}))["aliases"] == {}


def test_without_any_router_class_figures_are_unknown() -> None:
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet()}))
    assert frame["classes"]["demo"] == {"warm": None, "medium": None, "heavy": None}


def test_pools_of_running_experiments_are_counted_and_left_out() -> None:
    fleets = {"demo": fleet(instance("demo-0")), "exp-7-a": fleet(instance("exp-7-a-0"))}
    frame = build_frame(NOW, Inputs(fleets=fleets))
    assert (list(frame["pools"]), frame["instances"]["id"], frame["ephemeral_pools"]) == (["demo"], ["demo-0"], 1)
    assert types.ALL_POOLS not in frame["classes"]


@pytest.mark.parametrize(("kind", "simulated"), [("sim", True), ("vllm", False), ("", False)])
def test_a_pool_of_simulated_engines_is_marked_as_such(kind: str, simulated: bool) -> None:
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet({**instance("demo-0"), "kind": kind})}))
    assert frame["pools"]["demo"]["simulated"] is simulated


def test_several_pools_are_also_added_up() -> None:
    both = {**router(), "classes": {"a": {"warm": window(1)}, "b": {"warm": window(2)}}}
    frame = build_frame(NOW, Inputs(fleets={"a": fleet(), "b": fleet()}, routers={"r": both}))
    assert [frame["classes"][pool]["warm"]["n"] for pool in ("a", "b", types.ALL_POOLS)] == [1, 2, 3]


def test_an_instance_declared_as_stopped_is_as_declared() -> None:
    stopped = {**instance("demo-0", "stopped"), "matches": True}
    assert only(build_frame(NOW, Inputs(fleets={"demo": fleet(stopped)})), "matches") is True
