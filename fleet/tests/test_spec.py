"""The fleet document: its valid values, and that nothing is lost in a round trip."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.spec import document as documents
from fleet.spec.fleet_spec import InvalidFleet, PoolSpec, config_hash, dump_fleet, parse_fleet

POOL = {
    "name": "demo",
    "model": "llama-3.1-8b",
    "policy": "default",
    "kind": "sim",
    "replicas": 8,
    "node": "local",
    "engine": {"gpu": "h100_sxm", "model_profile": "Llama-3.1-8B", "time_scale": 1.0, "seed": 1},
}
DOCUMENT = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "demo"}, "spec": {"pools": [POOL]}}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return DOCUMENT with the value at one path set, or deleted if it is `del`."""
    made: Any = copy.deepcopy(DOCUMENT)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = made
    for part in parents:
        place = place[part]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return made


DELETE = object()


def problems(document: object) -> dict[str, str]:
    with pytest.raises(InvalidFleet) as caught:
        parse_fleet(document)
    return {problem.path: problem.text for problem in caught.value.problems}


def test_a_full_document_survives_parsing_and_dumping() -> None:
    assert dump_fleet(parse_fleet(DOCUMENT)) == DOCUMENT


def test_omitted_fields_take_their_defaults() -> None:
    lean = changed("spec.pools.0", {"name": "demo", "model": "m", "kind": "sim"})
    assert parse_fleet(lean).pools == (PoolSpec("demo", "m", "sim", 1, "default", "local", {}),)


@pytest.mark.parametrize(
    ("path", "value", "where", "words"),
    [
        ("apiVersion", "weir/v2", "apiVersion", "must be weir/v1"),
        ("kind", DELETE, "kind", "must be Fleet"),
        ("metadata", DELETE, "metadata", "must be a mapping"),
        ("metadata.name", "Demo", "metadata.name", "lower-case"),
        ("metadata.labels", {}, "metadata.labels", "unknown field; known are name"),
        ("spec", [], "spec", "must be a mapping"),
        ("spec.pool", [], "spec.pool", "did you mean pools?"),
        ("spec.pools", {}, "spec.pools", "must be a list"),
        ("spec.pools", [POOL] * 201, "spec.pools", "allowed: 0 to 200"),
        ("spec.pools.0", "demo", "spec.pools[0]", "must be a mapping"),
        ("spec.pools.0.name", DELETE, "spec.pools[0].name", "missing; allowed: 1–63 lower-case letters"),
        ("spec.pools.0.name", "a" * 64, "spec.pools[0].name", "1–63 lower-case letters"),
        ("spec.pools.0.name", "exp-1", "spec.pools[0].name", "experiments"),
        ("spec.pools.0.name", 3, "spec.pools[0].name", "3 is not allowed; allowed: 1–63 lower-case letters"),
        ("spec.pools.0.model", "a\nb", "spec.pools[0].model", "printable"),
        ("spec.pools.0.kind", "tgi", "spec.pools[0].kind", "not allowed; allowed: one of sim"),
        ("spec.pools.0.kind", ["sim"], "spec.pools[0].kind", "not allowed; allowed: one of sim"),
        (
            "spec.pools.0.replicas",
            1_025,
            "spec.pools[0].replicas",
            "1025 is above 1,024; allowed: a whole number from 0",
        ),
        ("spec.pools.0.replicas", True, "spec.pools[0].replicas", "whole number"),
        ("spec.pools.0.replica", 3, "spec.pools[0].replica", "did you mean replicas?"),
        ("spec.pools.0.node", "", "spec.pools[0].node", "allowed: 1–63 lower-case letters"),
        ("spec.pools.0.engine", [], "spec.pools[0].engine", "must be a mapping"),
        ("spec.pools.0.engine.sede", 1, "spec.pools[0].engine.sede", "did you mean seed?"),
        ("spec.pools.0.engine.zzz", 1, "spec.pools[0].engine.zzz", "known are gpu"),
        (
            "spec.pools.0.engine.seed",
            -1,
            "spec.pools[0].engine.seed",
            "-1 is below 0; allowed: a whole number",
        ),
        ("spec.pools.0.engine.seed", 1.5, "spec.pools[0].engine.seed", "whole number"),
        ("spec.pools.0.engine.seed", None, "spec.pools[0].engine.seed", "null is not allowed"),
        ("spec.pools.0.engine.time_scale", float("nan"), "spec.pools[0].engine.time_scale", "nan is not a number"),
        ("spec.pools.0.engine.gpu", "h100", "spec.pools[0].engine.gpu", "allowed: one of h100_sxm"),
        (
            "spec.pools.0.engine.kv_blocks",
            15,
            "spec.pools[0].engine.kv_blocks",
            "15 is below 16; allowed: a whole number",
        ),
        ("spec.pools.0.engine.tp", 3, "spec.pools[0].engine.tp", "tp 1, 2, 4, 8"),
    ],
)
def test_each_problem_has_its_path_and_allowed_values(path: str, value: Any, where: str, words: str) -> None:
    assert words in problems(changed(path, value))[where]


def test_all_problems_are_reported_at_once() -> None:
    wrong = changed("spec.pools.0.replicas", -1)
    wrong["spec"]["pools"][0]["engine"]["seed"] = "one"
    wrong["metadata"]["name"] = ""
    assert set(problems(wrong)) == {"metadata.name", "spec.pools[0].replicas", "spec.pools[0].engine.seed"}


def test_two_pools_with_the_same_name_are_refused() -> None:
    twice = changed("spec.pools", [POOL, POOL])
    assert problems(twice) == {"spec.pools[1].name": "is also the name of spec.pools[0]"}


@pytest.mark.parametrize("document", [None, [], "Fleet", 3])
def test_anything_but_a_mapping_is_not_a_document(document: object) -> None:
    assert "must be a mapping" in problems(document)[""]


def test_pools_are_sorted_by_name_and_options_in_the_order_of_the_kind() -> None:
    engine = {"seed": 1, "gpu": "h100_sxm"}
    pools = [{**POOL, "name": "b", "engine": engine}, {**POOL, "name": "a", "engine": {}}]
    dumped = dump_fleet(parse_fleet(changed("spec.pools", pools)))["spec"]["pools"]
    assert [pool["name"] for pool in dumped] == ["a", "b"]
    assert list(dumped[1]["engine"]) == ["gpu", "seed"]
    assert "engine" not in dumped[0]


def pool(**engine: Any) -> PoolSpec:
    return PoolSpec("p", "m", "sim", 1, "default", "local", engine)


def test_the_hash_changes_only_with_options_that_affect_a_start() -> None:
    assert config_hash(pool()) == config_hash(pool(seed=1)) == config_hash(pool(time_scale=1))
    assert config_hash(pool()) != config_hash(pool(seed=2))
    assert config_hash(PoolSpec("p", "m", "sim", 9, "other")) == config_hash(pool())
    assert config_hash(PoolSpec("p", "n", "sim")) != config_hash(pool())


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter(lambda n: not n.startswith("exp-"))
engines = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.sampled_from(["h100_sxm", "h200_sxm", "b200_sxm"]),
        "model_profile": st.sampled_from(["Llama-3.1-8B", "Qwen3-32B"]),
        "time_scale": st.floats(0.01, 1000),
        "seed": st.integers(0, 2**31 - 1),
        "kv_blocks": st.none() | st.integers(16, 10_000_000),
        "max_num_seqs": st.integers(1, 65_536),
    },
)
pools = st.fixed_dictionaries(
    {
        "name": names,
        "model": st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40),
        "policy": names,
        "kind": st.just("sim"),
        "replicas": st.integers(0, 1_024),
        "node": names,
        "engine": engines,
    }
)
fleets = st.lists(pools, max_size=4, unique_by=lambda one: one["name"])


@settings(max_examples=25)
@given(name=names, listed=fleets)
def test_any_valid_document_survives_a_round_trip_through_yaml(name: str, listed: list[dict[str, Any]]) -> None:
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": name}, "spec": {"pools": listed}}
    spec = parse_fleet(document)
    dumped = dump_fleet(spec)
    again = parse_fleet(documents.load(documents.dump(dumped)))
    assert dump_fleet(again) == dumped
    assert {one.name: one for one in again.pools} == {one.name: one for one in spec.pools}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["spec", "pools", "kind", "engine", "name"]), inner)
), max_leaves=20))  # fmt: skip
def test_nothing_but_invalid_fleet_is_raised_for_any_value(value: object) -> None:
    for document in (value, changed("spec.pools", [value]), changed("spec.pools.0.engine", value)):
        with contextlib.suppress(InvalidFleet):
            parse_fleet(document)


@pytest.mark.parametrize(
    ("kind", "engine", "replicas", "most"),
    [
        ("external", {"urls": ["http://a", "http://b"]}, 3, 2),
        ("vllm", {"gpus": ["0", "1", "2"], "tensor_parallel": 2}, 2, 1),
        ("mooncake-master", {}, 2, 1),
    ],
)
def test_more_replicas_than_the_options_allow_are_refused(kind: str, engine: Any, replicas: int, most: int) -> None:
    pool = {"name": "p", "model": "m", "kind": kind, "engine": engine, "replicas": replicas}
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document)
    (problem,) = refused.value.problems
    assert problem.path == "spec.pools[0].replicas"
    assert problem.text == f"too many for these options; allowed: 0 to {most}"
    pool["replicas"] = most
    assert parse_fleet(document).pools[0].replicas == most


@pytest.mark.parametrize(
    ("kind", "engine", "replicas"),
    [
        ("external", {"urls": ["http://a", "http://b", "http://c"]}, 3),
        ("external", {"dns": "engines:8000"}, 1),
        ("vllm", {"gpus": ["0", "1"]}, 1),
    ],
)
def test_without_replicas_a_pool_adopts_all_listed_engines_or_starts_one(kind: str, engine: Any, replicas: int) -> None:
    pool = {"name": "p", "model": "m", "kind": kind, "engine": engine}
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
    assert parse_fleet(document).pools[0].replicas == replicas
