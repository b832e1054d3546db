"""The sections of a pool in the fleet document: their valid values, and a lossless round trip."""

from typing import Any

import pytest

from fleet.spec.changes import changes
from fleet.spec.fleet_spec import InvalidFleet, dump_fleet, parse_fleet
from fleet.spec.sections import Placement, ScheduleWindow, Update, autoscale_of, placement_of, schedule_of, slo_of

SECTIONS: dict[str, Any] = {
    "update": {"strategy": "surge", "max_surge": 2, "on_failure": "rollback"},
    "placement": {"nodes": ["gpu-1", "gpu-2"], "labels": {"zone": "a"}, "spread": False, "gpus": 1, "memory_gib": 20},
    "schedule": {
        "timezone": "UTC",
        "windows": [{"days": ["mon", "fri"], "from": "08:00", "to": "18:30", "replicas": 6}],
    },
    "autoscale": {"mode": "automatic", "min": 1, "max": 4, "target_queue": 4, "slo_ttft_p90_ms": {"warm": 300}},
    "slo": {"ttft_p90_ms": {"heavy": 4000}},
    "access": {"trusted_keys": ["a scheduler"], "salt_by_key": True, "billing_line": "keep"},
}
CORES = [str(core) for core in range(72)]  # cores of 9 instances of the kind neuron
GROUP = {"dwdp_size": 2, "dwdp_total_experts": 256, "chunked_prefill": False}
SIDES = {"target_kv": 0.5, "prefill_max": 2}


def document(**sections: Any) -> dict[str, Any]:
    pool = {"name": "p", "model": "m", "policy": "default", "kind": "sim", "replicas": 2, **sections}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}


def problems(**sections: Any) -> dict[str, str]:
    with pytest.raises(InvalidFleet) as caught:
        parse_fleet(document(**sections))
    return {problem.path.removeprefix("spec.pools[0]."): problem.text for problem in caught.value.problems}


def test_every_section_survives_parsing_and_dumping() -> None:
    assert dump_fleet(parse_fleet(document(**SECTIONS))) == document(**SECTIONS)


def test_a_pool_with_a_placement_must_not_name_a_node() -> None:
    assert parse_fleet(document(placement={})).pools[0].node == ""
    assert "placement.nodes" in problems(node="local", placement={})["node"]


@pytest.mark.parametrize(
    ("section", "value", "path", "words"),
    [
        ("update", 3, "update", "must be a mapping"),
        ("update", {"strategy": "blue"}, "update.strategy", "one of in_place, surge"),
        ("update", {"max_surge": 1}, "update.max_surge", "strategy surge only"),
        ("update", {"max_unavailable": 0}, "update.max_unavailable", "1 or more with the strategy in_place"),
        (
            "update",
            {"strategy": "surge", "max_surge": 0},
            "update.max_surge",
            "a whole number from 1 to 1,024 instances",
        ),
        ("placement", {"node": "x"}, "placement.node", "did you mean nodes?"),
        ("placement", {"nodes": ["A b"]}, "placement.nodes", "node names, each once"),
        ("placement", {"nodes": ["a", "a"]}, "placement.nodes", "each once"),
        ("placement", {"labels": {"zone": 3}}, "placement.labels", "both text"),
        ("placement", {"gpus": -1}, "placement.gpus", "allowed: a whole number from 0 to 64"),
        ("schedule", {"timezone": "Mars/Base"}, "schedule.timezone", "Europe/Berlin"),
        ("schedule", {"timezone": "../etc"}, "schedule.timezone", "Europe/Berlin"),
        ("schedule", {"zone": "UTC"}, "schedule.zone", "did you mean timezone?"),
        ("schedule", {"windows": 1}, "schedule.windows", "list of 0 to 50 windows"),
        ("schedule", {"windows": [{"from": "24:00", "to": "8:00"}]}, "schedule.windows[0].from", '"00:00" to "24:00"'),
        ("schedule", {"windows": [{"from": "08:00", "to": "8:00"}]}, "schedule.windows[0].to", "time of day in quotes"),
        ("schedule", {"windows": [{"days": ["Monday"]}]}, "schedule.windows[0].days", "mon, tue"),
        ("schedule", {"windows": [{"replicas": True}]}, "schedule.windows[0].replicas", "allowed: 0 to 1,024"),
        ("schedule", {"windows": [{"day": "mon"}]}, "schedule.windows[0].day", "did you mean days?"),
        ("autoscale", {"min": 5, "max": 2, "target_kv": 0.5}, "autoscale.min", "not be more than max (2)"),
        ("autoscale", {}, "autoscale", "needs a target"),
        ("autoscale", {"target_kv": 70}, "autoscale.target_kv", "70 is above 1; allowed: a number from 0.05 to 1"),
        ("slo", {"ttft_p90_ms": {"cold": 3}}, "slo.ttft_p90_ms.cold", "warm, medium, heavy"),
        ("slo", {"tpot_p90_ms": {"warm": 3}}, "slo.tpot_p90_ms", "unknown"),
        ("access", {"trusted_key": []}, "access.trusted_key", "did you mean trusted_keys?"),
        ("access", {"trusted_keys": "ci"}, "access.trusted_keys", "names of API keys, each once"),
        ("access", {"trusted_keys": ["ci", "ci"]}, "access.trusted_keys", "names of API keys, each once"),
        ("access", {"trusted_keys": [""]}, "access.trusted_keys", "names of API keys, each once"),
        ("access", {"salt_by_key": "yes"}, "access.salt_by_key", "must be true or false"),
        ("access", {"billing_line": "drop"}, "access.billing_line", "allowed: auto, keep, remove"),
        ("autoscale", {"target_kv": 0.5, "decode_max": 3}, "autoscale.decode_max", "needs prefill_max"),
        ("autoscale", {**SIDES, "prefill_min": 3}, "autoscale.prefill_min", "must not be more than prefill_max (2)"),
        ("autoscale", {**SIDES, "decode_min": 8}, "autoscale.max", "than both sides have at least (9)"),
        ("autoscale", {**SIDES, "min": 0}, "autoscale.min", "must be 1 or more with prefill_max"),
        ("autoscale", SIDES, "autoscale.prefill_max", "needs prefill_instances in engines that Weir starts"),
        ("autoscale", {"slo_ttft_p90_ms": 3}, "autoscale.slo_ttft_p90_ms", "mapping of classes"),
        ("autoscale", {"slo_ttft_p90_ms": {"cold": 3}}, "autoscale.slo_ttft_p90_ms.cold", "warm, medium, heavy"),
        ("autoscale", {"slo_ttft_p90_ms": {"warm": 0}}, "autoscale.slo_ttft_p90_ms.warm", "allowed: 1 to"),
    ],
)
def test_each_problem_has_its_path_and_allowed_values(section: str, value: Any, path: str, words: str) -> None:
    assert words in problems(**{section: value})[path]


def test_omitted_fields_take_their_defaults() -> None:
    assert placement_of({}, "local") == Placement(nodes=("local",))
    assert placement_of({"gpus": 2}) == Placement(gpus=2)
    assert autoscale_of({"target_kv": 1, "target_queue": None}).target_kv == 1.0
    assert schedule_of({"windows": [{"from": "22:00", "to": "06:00", "replicas": 1}]}).windows == (
        ScheduleWindow(("mon", "tue", "wed", "thu", "fri", "sat", "sun"), 1320, 360, 1),
    )
    assert Update().strategy == "in_place"


def test_the_effect_of_a_changed_section_is_described() -> None:
    def effect(**sections: Any) -> str:
        return changes(parse_fleet(document()), parse_fleet(document(**sections)), prune=False)[0].effect

    assert effect(update={"strategy": "surge"}) == "changes no instance"
    assert effect(access={"trusted_keys": ["ci"]}) == "changes no instance"
    assert effect(placement={"nodes": ["gpu-1"]}) == "moves instances off nodes that no longer fit"
    both = effect(update={"strategy": "surge"}, engine={"seed": 4})
    assert both == "replaces 2 instances: starts up to 1 new ones, then drains old ones"


def test_a_pools_own_slo_takes_precedence_over_that_of_the_autoscaler() -> None:
    own, scaled = {"ttft_p90_ms": {"warm": 300}}, {"slo_ttft_p90_ms": {"warm": 400, "heavy": 4000}}
    assert slo_of(own, scaled) == {"warm": 300, "heavy": 4000}
    assert slo_of({}, {}) == {}


@pytest.mark.parametrize(
    ("kind", "engine", "words"),
    [
        ("sim", {"kv": "neuron", "prefill_instances": 1}, ""),
        ("vllm", {"kv": "nixl", "prefill_instances": 1}, ""),
        ("sim", {"kv": "neuron", "prefill_instances": 1, "pairs": "1P1D"}, "cannot be combined with fixed pairs"),
        ("vllm", {"kv": "nixl", "prefill_instances": 1, "gpus": ["0", "1"]}, "a list of GPUs"),
        ("neuron", {"prefill_instances": 1, "etcd": "h:2379", "cores": CORES}, ""),
        ("neuron", {"prefill_instances": 1, "etcd": "h:2379", "cores": CORES[1:]}, "needs 72 entries .* and has 71"),
        ("neuron", {"prefill_instances": 1, "cores": CORES}, "cannot be combined with fixed pairs"),
        ("trtllm", {"prefill_instances": 2, **GROUP}, "as in groups"),
        ("external", {"urls": ["http://h:1", "http://h:2"], "prefill_instances": 1}, "engines that Weir starts"),
    ],
)
def test_only_sides_that_nothing_else_fixes_are_scaled_automatically(kind: str, engine: Any, words: str) -> None:
    given = document(kind=kind, engine=engine, autoscale=SIDES)
    if not words:
        assert parse_fleet(given).pools[0].autoscale == SIDES
        return
    with pytest.raises(InvalidFleet, match=rf"autoscale.prefill_max: .*{words}"):
        parse_fleet(given)
