"""The record of an experiment, and its repetition from the record."""

import json
from dataclasses import replace

import msgspec
import pytest

from controlplane.evidence.experiments import provenance, running
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.results import assemble
from controlplane.evidence.experiments.results.assemble import (
    KeptResults,
    results_of,
    with_first_numbers,
    with_kept_numbers,
)
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.experiments.tests.conftest import body, read_again
from controlplane.evidence.traces import library
from controlplane.evidence.traces.models import Trace
from controlplane.evidence.twin.pool_model import twin_of
from controlplane.people.audit.services import Actor
from fleet.engine.engine_model import TransferLink
from fleet.engine.tiers.shared import StoreModel
from fleet.models import Node, Pool

pytestmark = pytest.mark.django_db
IN_TWIN = {"mode": "twin", "time_scale": 1, "duration_s": 20}


@pytest.fixture
def performed(ci, demo_pool, sent, data_dir):
    """An experiment started over REST and run."""

    def perform(path="/experiments", **changes) -> Experiment:
        answer = ci.post(path, body(**IN_TWIN, **changes) if path == "/experiments" else None)
        assert answer.status_code == 201, answer.content
        running.run_experiment(answer.json()["id"])
        return Experiment.objects.get(pk=answer.json()["id"])

    return perform


def bytes_of(experiment):
    return [run.records_path.read_bytes() for run in experiment.runs.all()]


def test_running_again_from_the_record_is_byte_identical_whatever_happened_to_the_pool(performed, ci, demo_pool):
    first = performed()
    Pool.objects.filter(pk=demo_pool.pk).update(engine={"seed": 1, "kv_blocks": 500}, replicas=5)
    again = performed(f"/experiments/{first.pk}/repeat")
    assert bytes_of(first) == bytes_of(again) != [b"", b""]
    hashes = [[run.facts["records_sha256"] for run in each.runs.all()] for each in (first, again)]
    assert hashes[0] == hashes[1]
    assert again.record["repeats"] == {"id": first.pk, "product": first.record["product"]}
    numbers = [{k: v for k, v in results_of(each).items() if k in ("differences", "ecdf")} for each in (first, again)]
    assert numbers[0] == numbers[1]
    demo_pool.delete()
    assert bytes_of(performed(f"/experiments/{first.pk}/repeat")) == bytes_of(first)


def test_the_record_contains_everything_that_the_runs_depend_on(performed, ci):
    experiment = performed(seeds=[3], load_factor=2)
    record = ci.get(f"/experiments/{experiment.pk}/record").json()
    assert record["product"] == msgspec.to_builtins(provenance.product())
    assert record["trace"] == {"name": "agentic-demo", "sha256": library.sha256("agentic-demo")}
    assert record["selection"] == {"duration_s": 20, "load_factor": 2, "pacing": "closed_loop", "seeds": [3]}
    arm = record["arms"]["round_robin"]
    assert arm["policy_sha256"] == experiment.settled_arms[0].sha256
    assert arm["policy_schema"] == experiment.settled_arms[0].document["schema"]
    fleet = record["fleets"][arm["fleet"]]
    assert (fleet["pool"], fleet["kind"], fleet["replicas"], fleet["options"]["gpu"]) == ("demo", "sim", 2, "h100_sxm")
    assert fleet["twin"]["models"][0]["law"]["fixed_s"] > 0
    assert list(fleet["twin"]["instances"]) == ["demo-0", "demo-1"]
    assert record["runs"][0]["facts"]["load"]
    assert len(record["fleets"]) == 1


def test_a_recorded_fleet_gives_the_same_models(demo_pool):
    found = twin_of(demo_pool)
    assert read_again(fleets.recorded(found)) == found
    model = replace(next(iter(found.fleet.instances.values())), api_s=float("inf"))
    store = StoreModel(1e9, TransferLink(), 131_072.0)
    endless = replace(found, fleet=replace(found.fleet, instances={"demo-0": model}, store=store))
    assert read_again(fleets.recorded(endless)) == endless


def test_secrets_of_engines_are_hidden_in_the_record(performed, ci):
    experiment = performed()
    for fleet in experiment.record["fleets"].values():
        fleet["engine"] = {"environment": {"HF_TOKEN": "hf_abc"}}
    experiment.save()
    assert b"hf_abc" not in ci.get(f"/experiments/{experiment.pk}/record").content


def test_an_experiment_whose_trace_changed_is_neither_repeated_nor_played(performed, ci):
    line = '{"timestamp": %d, "input_length": 600, "output_length": 8, "hash_ids": [1, 2]}\n'
    library.upload("t.jsonl", "".join(line % (i * 500) for i in range(30)).encode(), Actor("user", "otto"))
    experiment = performed(trace="t.jsonl")
    assert experiment.status == "done"
    Trace.objects.filter(name="t.jsonl").update(sha256="0" * 64)
    refused = ci.post(f"/experiments/{experiment.pk}/repeat")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["path"] == "trace"
    assert "has changed since: its sha256 was" in refused.json()["errors"][0]["message"]
    Experiment.objects.update(status="queued")
    experiment.runs.update(status="queued")
    running.run_experiment(experiment.pk)
    assert "trace t.jsonl has changed since" in experiment.runs.first().cause


def test_an_experiment_from_before_records_says_so(performed, ci, otto_client):
    experiment = performed()
    Experiment.objects.update(record={}, status="queued")
    experiment.runs.update(status="queued")
    running.run_experiment(experiment.pk)
    assert "no record of its fleet" in experiment.runs.first().cause
    assert ci.post(f"/experiments/{experiment.pk}/repeat").status_code == 422
    page = otto_client.post(f"/experiments/{experiment.pk}/repeat", follow=True).content.decode()
    assert "no record of its fleet" in page


def test_the_page_repeats_an_experiment_and_links_both(performed, otto_client, vera_client):
    experiment = performed()
    assert vera_client.post(f"/experiments/{experiment.pk}/repeat").status_code == 403
    page = otto_client.post(f"/experiments/{experiment.pk}/repeat", follow=True).content.decode()
    assert f'<a href="/experiments/{experiment.pk}/">experiment {experiment.pk}</a>' in page
    assert provenance.product().version in page


def test_repeating_with_another_version_of_weir_warns(performed, monkeypatch):
    first = performed()
    newer = msgspec.structs.replace(provenance.product(), commit="newer")
    monkeypatch.setattr("controlplane.evidence.experiments.services.product", lambda: newer)
    again = performed(f"/experiments/{first.pk}/repeat")
    (warning,) = results_of(again)["warnings"]
    assert warning.startswith(f"the product has changed since experiment {first.pk}")
    assert warning.endswith("now newer")


def test_figures_stay_when_a_newer_version_computes_the_results_again(performed, data_dir, monkeypatch):
    experiment = performed()
    first = json.loads(json.dumps(results_of(experiment)))
    path = data_dir / "experiments" / f"results-{experiment.pk}.json"
    path.unlink()
    assert json.loads(json.dumps(results_of(experiment))) == first
    made = assemble.make
    changed = lambda *given: made(*given) | {"differences": [], "new": 1}  # noqa: E731
    monkeypatch.setattr(assemble, "make", changed)
    monkeypatch.setattr(assemble, "SCHEMA", assemble.SCHEMA + 1)
    newer = results_of(experiment)
    assert (newer["differences"], newer["new"], newer["schema"]) == (first["differences"], 1, first["schema"] + 1)
    assert results_of(experiment) == newer


def test_stored_figures_take_precedence_at_any_depth():
    made = {"a": {"x": 2.0, "y": 3.0}, "rows": [{"n": 5, "m": 6}], "other": [1, 2]}
    kept = {"a": {"x": 1.0}, "rows": [{"n": 4}], "other": [1]}
    assert with_first_numbers(made, kept) == {"a": {"x": 1.0, "y": 3.0}, "rows": [{"n": 4, "m": 6}], "other": [1]}


def kept_results(schema: int, endpoint: str) -> KeptResults:
    runs = [{"prompt_tokens_by_instance": {endpoint: 1}}]
    arm = {"name": "a", "tokens_per_gpu_s": 5.0, "dollars_per_million": 4.0, "balance": 1.0, "runs": runs}
    rows = [{"metric": "tokens_per_gpu_s", "arm": "a", "value": 5.0}, {"metric": "balance", "arm": "a", "value": 1.0}]
    first = {"schema": schema, "arms": [arm], "expectations": rows, "verdict": "fail", "differences": [{"low": 1.0}]}
    return KeptResults([schema], first)


@pytest.mark.parametrize(
    ("schema", "endpoint", "throughput", "verdict", "low"),
    [
        (5, "p-0#1", 20.0, "pass", 0.5),
        (6, "p-0#1", 5.0, "fail", 0.5),
        (7, "p-0#1", 5.0, "fail", 1.0),
        (5, "p-0", 5.0, "fail", 0.5),
        (2, "p-0", 20.0, "pass", 0.5),
    ],
)
def test_wrong_costs_of_ranks_and_unadjusted_marks_are_corrected_and_everything_else_stays(
    schema, endpoint, throughput, verdict, low
):
    runs = [{"prompt_tokens_by_instance": {endpoint: 1}}]
    made = {
        "schema": 7,
        "differences": [{"low": 0.5}],
        "arms": [{"name": "a", "tokens_per_gpu_s": 20.0, "dollars_per_million": 1.0, "balance": 1.0, "runs": runs}],
        "expectations": [
            {"metric": "tokens_per_gpu_s", "arm": "a", "value": 20.0},
            {"metric": "balance", "arm": "a", "value": 1.0},
        ],
        "verdict": "pass",
    }
    results = with_kept_numbers(made, kept_results(schema, endpoint))
    assert (results["arms"][0]["tokens_per_gpu_s"], results["verdict"], results["schema"]) == (throughput, verdict, 7)
    assert (results["expectations"][0]["value"], results["differences"]) == (throughput, [{"low": low}])


def test_weir_has_a_version_and_the_hash_of_its_source(monkeypatch):
    found = provenance.product()
    assert len(found.source_sha256) == 64
    monkeypatch.setattr(provenance.shutil, "which", lambda name: None)
    assert provenance._commit() == ""


def test_a_replay_records_its_host_and_the_nodes_of_its_engines(demo_pool):
    Node.objects.create(name="local", inventory={"cpus": 8})
    demo_pool.instances.create(name="demo-0", ordinal=0, node="local")
    assert provenance.nodes(demo_pool) == {"local": {"cpus": 8}}
    assert provenance.host().cpus > 0
