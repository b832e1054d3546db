"""Comparisons for Tutti and Neuron start on a pool of simulated engines, with the inputs of their pages."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.test import Client

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.results.records import read
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.systems.offload import OFFLOAD
from controlplane.evidence.systems.registry import SYSTEMS, inputs_of
from controlplane.evidence.systems.system import Play, PoolFacts
from controlplane.evidence.systems.tiers.inputs import device_of
from controlplane.people.audit.services import Actor
from fleet import services as fleet
from fleet.engine.tiers.devices import TierDevice
from fleet.kinds.kind import Launch
from fleet.kinds.options.option import build
from fleet.kinds.sim.sim import SIM, twin_model

ROOT = Path(__file__).resolve().parents[4]
TIERS = ["HBM", "DRAM", "LMCache", "GDS", "Tutti"]
ONE_PAIR = ["1P1D", "continuous batching", "chunked prefill"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("slug", "given", "traces", "arms"),
    [
        ("tutti", {}, ["leval", "documents-reread"], TIERS),
        ("tutti", {"mean_tokens": 20_000}, ["documents-reread"], TIERS),
        ("tutti", {"benchmark": "leval-documents"}, ["leval-documents", "documents-reread"], TIERS),
        ("tutti", {"floor_s": 0.217, "rate": 3, "dram_gb": 64}, ["leval", "documents-reread"], TIERS),
        ("neuron", {}, ["prompts-8k"], ONE_PAIR),
        ("neuron", {"decodes": 2}, ["prompts-8k"], ["1P1D", "1P2D", *ONE_PAIR[1:]]),
    ],
)
def test_the_comparison_of_a_page_starts_on_a_simulated_pool(
    data_dir: Path, otto: User, slug: str, given: dict[str, object], traces: list[str], arms: list[str]
) -> None:
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / "fleet-demo.yaml").read_text()), "ada")
    system = SYSTEMS[slug]
    assert system.playable is not None
    pools = [PoolFacts("demo", "sim", "m", {}), PoolFacts("real", "vllm", "m", {})]
    plays = [*system.playable.plays(inputs_of(system, given), pools)]
    assert [play.body["trace"] for play in plays] == traces
    for play in plays:
        body = ExperimentIn.model_validate(play.body)
        assert [arm["name"] for arm in services.settled(body, Actor("user", "otto")).arms] == arms


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("slug", "given", "titles"),
    [
        ("tutti", {"runs": 1, "requests": 100}, ["leval at 1.5", "Documents that are read again"]),
        ("neuron", {}, ["Prompts of 8K at"]),
        pytest.param("neuron", {"prefills": 2, "decodes": 3}, ["Prompts of 8K at"], marks=pytest.mark.slow),
        ("dwdp", {}, [f"{users} tokens/s for a user" for users in (217, 180, 150, 132, 124, 119, 114)]),
        pytest.param(
            "dwdp",
            {"model": "gpt-oss-120b", "gpu": "B200"},
            [f"{users} tokens/s for a user" for users in (495, 453, 407, 365, 324, 293, 267)],
            marks=pytest.mark.slow,
        ),
        ("offload", dict(OFFLOAD.presets["The author's fleet"]), ["A, B and D", "C: the", "D at 3", "D at 3", "Both"]),
    ],
)
def test_the_comparisons_of_a_page_can_be_started_there_and_over_rest(
    ci: Any, otto_client: Client, data_dir: Path, slug: str, given: dict[str, object], titles: list[str]
) -> None:
    example, pool = ("fleet-pd-dwdp", "r1") if slug == "dwdp" else ("fleet-demo", "demo")
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / f"{example}.yaml").read_text()), "ada")
    plays = ci.post(f"/systems/{slug}", {"inputs": given}).json()["plays"]
    assert [play["pool"] for play in plays] == [pool] * len(titles)
    assert all(play["title"].startswith(title) for play, title in zip(plays, titles, strict=True))
    page = otto_client.get(f"/systems/{slug}/", given).content.decode()
    (form,) = re.findall(r'<form[^>]*action="/experiments/new".*?</form>', page, re.DOTALL)
    bodies = [html.unescape(body) for body in re.findall(r'value="(\{[^"]*)"', form)]
    assert [json.loads(body) for body in bodies] == [play["body"] for play in plays]
    short = json.dumps({**json.loads(bodies[0]), "duration_s": 20})
    number = int(otto_client.post("/experiments/new", {"body": short}).headers["Location"].split("/")[2])
    running.run_experiment(number)
    records = {run.arm: read(run.records_path) for run in Experiment.objects.get(pk=number).runs.all()}
    assert list(records) == [*map(name_of, json.loads(bodies[0])["arms"])]
    assert {one.outcome for found in records.values() for one in found} == {"ok"}
    for play in (plays[0], plays[-1]):
        answer = ci.post("/experiments", play["body"])
        assert answer.status_code == 201, answer.content
        engines = [arm["fleet"]["engine"] for arm in answer.json()["arms"]]
        assert {one["gpu"] for one in engines if "gpu" in one} <= {given.get("gpu", "h100_sxm")}


def name_of(arm: dict[str, Any] | str) -> str:
    return arm.rpartition("name=")[2] if isinstance(arm, str) else str(arm["name"])


@pytest.mark.parametrize(
    ("given", "arm", "engine"),
    [
        ({"tier": "dram", "read_gb_s": 25}, "DRAM", {"dram_gb_per_s": 25}),
        ({"tier": "ssd-gds", "read_gb_s": 20}, "GDS", {"ssd_read_gb_s": 10, "dram_gb_per_s": 50}),
        ({"metadata": "prp", "hbm_tokens": 64_000}, "Tutti", {"ssd_metadata": "prp", "kv_blocks": 1_000}),
        ({"object_tokens": 32, "picks_faster": True}, "HBM", {"block_size": 32, "tier_load": "if_faster"}),
    ],
)
def test_a_comparison_of_tutti_uses_the_given_values_of_its_tier(
    given: dict[str, object], arm: str, engine: dict[str, object]
) -> None:
    body = tutti_play(given).body
    arms = {one["name"]: one["fleet"]["engine"] for one in body["arms"]}  # type: ignore[call-overload, index, union-attr]
    assert engine.items() <= arms[arm].items()
    others = [one for name, one in arms.items() if name != arm]
    assert all("ssd_read_gb_s" not in one and "ssd_metadata" not in one for one in others)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"floor_s": 0.217},
        {"floor_s": 0.217, "dram_read_gb_s": 19.4, "hbm_tokens": 410_000},
        {"dram_layer_ms": 2},
        dict(SYSTEMS["tutti"].presets["As published"]),
    ],
)
def test_a_comparison_of_tutti_models_host_memory_as_the_page_does(given: dict[str, object]) -> None:
    body = tutti_play(given).body
    (arm,) = (one for one in body["arms"] if one["name"] == "DRAM")  # type: ignore[call-overload, index, union-attr]
    played = host_memory(arm["fleet"]["engine"])  # type: ignore[call-overload, index]
    computed = device_of(inputs_of(SYSTEMS["tutti"], {**given, "tier": "dram"}))
    assert computed is not None
    assert (played.read_bytes_per_s, played.layer_setup_s) == (computed.read_bytes_per_s, computed.layer_setup_s)
    assert "Set-up of a layer" not in str(body["question"])


@pytest.mark.parametrize(
    ("engine", "rate", "setup_ms"),
    [
        ({"tier_law": "published"}, 50e9, 4.15),
        ({"tier_law": "published", "dram_gb_per_s": 19.4}, 19.4e9, 0),  # each model is allowed alone
        ({"tier_law": "published", "dram_layer_ms": 0}, 50e9, 0),
        ({}, 50e9, 0),
    ],
)
def test_host_memory_has_only_one_model_at_a_time(engine: dict[str, object], rate: float, setup_ms: float) -> None:
    memory = host_memory({"dram_gb": 256, **engine})
    assert (memory.read_bytes_per_s, round(memory.layer_setup_s * 1e3, 2)) == (rate, setup_ms)


@pytest.mark.parametrize(
    ("given", "titles"),
    [
        (
            {"attention": 1, "write_gb_s": 5, "contention": "naive", "mode": "block"},
            "Loading, Writes, Reads beside writes",
        ),
        ({}, "Attention factor"),
        ({"floor_s": 0.1}, "Least time of a layer-wise pass"),
        ({"floor_s": 0.217, "attention": 1}, "Attention factor"),
    ],
)
def test_a_comparison_lists_values_that_engines_do_not_accept(given: dict[str, object], titles: str) -> None:
    assert str(tutti_play(given).body["question"]).endswith(f"change? Engines keep their own: {titles}.")


def test_a_comparison_whose_values_engines_accept_adds_nothing() -> None:
    published = dict(SYSTEMS["tutti"].presets["As published"])
    assert tutti_play(published).body["question"] == "What does each tier below HBM change?"


def host_memory(engine: dict[str, object]) -> TierDevice:
    """Return the host memory of an engine with these options in the twin."""
    tiers = twin_model(build(SIM.spec, engine), Launch("p-0", "m", "127.0.0.1", {}, "python")).engine.tiers
    assert tiers is not None
    return tiers.tiers[0].device


def tutti_play(given: dict[str, object]) -> Play:
    tutti = SYSTEMS["tutti"]
    assert tutti.playable is not None
    return next(iter(tutti.playable.plays(inputs_of(tutti, given), [PoolFacts("demo", "sim", "m", {})])))


def test_arrivals_that_no_experiment_can_play_offer_no_comparison() -> None:
    neuron = SYSTEMS["neuron"]
    assert neuron.playable is not None
    pools = [PoolFacts("demo", "sim", "m", {})]
    assert [*neuron.playable.plays(inputs_of(neuron, {"rate": 0.01}), pools)] == []
