"""Tutti's and Neuron's comparisons start on a pool of simulated engines, with what their pages were asked."""

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
from controlplane.people.audit.services import Actor
from fleet import services as fleet

ROOT = Path(__file__).resolve().parents[4]
TIERS = ["HBM", "DRAM", "LMCache", "GDS", "Tutti"]
ONE_PAIR = ["1P1D", "continuous batching", "chunked prefill"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("slug", "given", "traces", "arms"),
    [
        ("tutti", {}, ["leval", "documents-reread"], TIERS),
        ("tutti", {"mean_tokens": 20_000}, ["documents-reread"], TIERS),
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
        ("offload", dict(OFFLOAD.presets["The author's fleet"]), ["A, B and D", "C: the", "D at 3", "D at 3", "Both"]),
    ],
)
def test_a_pages_comparisons_can_be_started_there_and_over_rest(
    ci: Any, otto_client: Client, data_dir: Path, slug: str, given: dict[str, object], titles: list[str]
) -> None:
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / "fleet-demo.yaml").read_text()), "ada")
    plays = ci.post(f"/systems/{slug}", {"inputs": given}).json()["plays"]
    assert [play["pool"] for play in plays] == ["demo"] * len(titles)
    assert all(play["title"].startswith(title) for play, title in zip(plays, titles, strict=True))
    page = otto_client.get(f"/systems/{slug}/", given).content.decode()
    (form,) = re.findall(r'<form[^>]*action="/experiments/new".*?</form>', page, re.DOTALL)
    bodies = [html.unescape(body) for body in re.findall(r'value="(\{[^"]*)"', form)]
    assert [json.loads(body) for body in bodies] == [play["body"] for play in plays]
    short = json.dumps({**json.loads(bodies[0]), "duration_s": 20})
    number = int(otto_client.post("/experiments/new", {"body": short}).headers["Location"].split("/")[2])
    running.run_experiment(number)
    records = {run.arm: read(run.records_path) for run in Experiment.objects.get(pk=number).runs.all()}
    assert list(records) == [arm["name"] for arm in json.loads(bodies[0])["arms"]]
    assert {one.outcome for found in records.values() for one in found} == {"ok"}
    for play in (plays[0], plays[-1]):
        answer = ci.post("/experiments", play["body"])
        assert answer.status_code == 201, answer.content
        engines = [arm["fleet"]["engine"] for arm in answer.json()["arms"]]
        assert {one["gpu"] for one in engines if "gpu" in one} <= {given.get("gpu", "h100_sxm")}


@pytest.mark.parametrize(
    ("given", "arm", "engine"),
    [
        ({"tier": "dram", "read_gb_s": 25}, "DRAM", {"dram_gb_per_s": 25}),
        ({"tier": "ssd-gds", "read_gb_s": 20}, "GDS", {"ssd_read_gb_s": 10, "dram_gb_per_s": 50}),
        ({"metadata": "prp", "hbm_tokens": 64_000}, "Tutti", {"ssd_metadata": "prp", "kv_blocks": 1_000}),
        ({"object_tokens": 32, "picks_faster": True}, "HBM", {"block_size": 32, "tier_load": "if_faster"}),
    ],
)
def test_a_play_of_tutti_takes_the_given_values_of_its_tier(
    given: dict[str, object], arm: str, engine: dict[str, object]
) -> None:
    body = tutti_play(given).body
    arms = {one["name"]: one["fleet"]["engine"] for one in body["arms"]}  # type: ignore[call-overload, index, union-attr]
    assert engine.items() <= arms[arm].items()
    assert body["question"] == "What does each tier below HBM change?"
    others = [one for name, one in arms.items() if name != arm]
    assert all("ssd_read_gb_s" not in one and "ssd_metadata" not in one for one in others)


def test_a_play_says_which_given_values_engines_do_not_take() -> None:
    question = tutti_play({"write_gb_s": 5, "contention": "naive", "mode": "block"}).body["question"]
    assert str(question).endswith("Engines keep their own: Loading, Writes, Reads beside writes.")


def tutti_play(given: dict[str, object]) -> Play:
    tutti = SYSTEMS["tutti"]
    assert tutti.playable is not None
    return next(iter(tutti.playable.plays(inputs_of(tutti, given), [PoolFacts("demo", "sim", "m", {})])))


def test_arrivals_that_no_experiment_plays_offer_none() -> None:
    neuron = SYSTEMS["neuron"]
    assert neuron.playable is not None
    pools = [PoolFacts("demo", "sim", "m", {})]
    assert [*neuron.playable.plays(inputs_of(neuron, {"rate": 0.01}), pools)] == []
