"""KV usage over time and the parts of the TTFT, of runs in the twin."""

import json
from dataclasses import asdict

import pytest

from controlplane.evidence.experiments import running
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.twin_records import KV_BUCKETS, InstanceKv, KvOverTime, kv_over_time
from controlplane.evidence.experiments.tests.conftest import body, record
from controlplane.evidence.twin.simulation.types import SimulatedUse, TwinOutcome
from fleet.models import Pool

PLACES = ("_device", "_host", "_disk", "_pulled")
WALL = {"kv": "nixl", "prefill_instances": 1, "kv_blocks": 2600, "kv_gb_per_s": 0.5, "kv_busy_gb_per_s": 0.2}


def outcome(**samples):
    use = {name: SimulatedUse(tuple(found), (0,) * len(found), (0,) * len(found), 0) for name, found in samples.items()}
    return TwinOutcome((), use, 10.0, ())


def test_seconds_are_averaged_into_a_limited_number_of_buckets():
    short = kv_over_time(outcome(a=[0.0, 0.5], b=[1.0, 1.0]))
    assert short.bucket_s == 1
    assert short.instances["a"] == InstanceKv([0.0, 0.5], mean=0.25, peak=0.5)
    long = kv_over_time(outcome(a=[0.2, 0.4] * 400, b=[]))
    assert (long.bucket_s, len(long.instances["a"].usage)) == (4, 200)
    assert long.instances["a"].usage[0] == 0.3
    assert "b" not in long.instances
    assert len(kv_over_time(outcome(a=[0.1] * 100_001)).instances["a"].usage) <= KV_BUCKETS
    assert kv_over_time(outcome()) == KvOverTime(1, {})


@pytest.fixture
def performed(ci, demo_pool, sent, data_dir):
    def perform(**changes) -> Experiment:
        answer = ci.post("/experiments", body(mode="twin", time_scale=1, duration_s=20, **changes))
        assert answer.status_code == 201, answer.content
        made = answer.json()
        running.run_experiment(made["id"])
        return Experiment.objects.get(pk=made["id"])

    return perform


@pytest.mark.django_db
def test_each_run_stores_the_usage_of_its_instances_and_the_api_returns_the_fullest(performed, ci, vera_client):
    experiment = performed(seeds=[1, 2])
    path = f"/experiments/{experiment.pk}/kv"
    every = ci.get(path).json()
    assert [(run["arm"], run["seed"]) for run in every] == [(run.arm, run.seed) for run in experiment.runs.all()]
    assert [one["id"] for one in every[0]["instances"]] == ["demo-0", "demo-1"]
    (one,) = ci.get(f"{path}?arm=round_robin&seed=2&limit=1").json()
    assert one["of"] == 2
    assert one["instances"][0]["peak"] == max(each["peak"] for each in every[2]["instances"])
    assert ci.get(f"{path}?limit=0").status_code == 422
    page = vera_client.get(f"/experiments/{experiment.pk}/?seed=2").content.decode()
    assert "KV usage over time, seed 2" in page
    assert 'data-kv="adaptive_v1"' in page


@pytest.mark.django_db
def test_the_ttft_is_the_sum_of_its_parts_and_includes_waiting_for_a_slow_link(performed, ci):
    Pool.objects.filter(name="demo").update(engine=WALL)
    limits = "classes.heavy_new_tokens=1001 classes.warm_new_tokens=1000"
    experiment = performed(arms=[f"adaptive_offload {limits} name=offloads"])
    found = [one for one in records.read(experiment.runs.get().records_path) if one.outcome == "ok"]
    for one in found:
        assert one.queue_ms + one.kv_ms + one.prefill_ms == pytest.approx(one.ttft_ms, abs=0.01)
        assert min(one.queue_ms, one.kv_ms, one.prefill_ms) >= 0
    assert max(one.kv_ms for one in found) > 100
    results = ci.get(f"/experiments/{experiment.pk}/results").json()["arms"][0]["classes"]["all"]
    assert results["ttft_kv_share"] == pytest.approx(
        sum(one.kv_ms for one in found) / sum(one.ttft_ms for one in found), abs=1e-5
    )
    assert 0 <= results["ttft_queue_share"] < 1


@pytest.mark.django_db
def test_a_replay_shows_no_kv_usage_and_no_share_of_ttft(ended, ci, vera_client):
    experiment = ended()
    assert ci.get(f"/experiments/{experiment.pk}/kv").json() == []
    page = vera_client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "KV usage over time" not in page
    assert "Share of TTFT" not in page


def test_records_of_an_older_version_are_read(data_dir):
    path = data_dir / "requests.jsonl"
    names = [name for name in records.COLUMNS if not name.endswith(("queue_ms", "kv_ms", "prefill_ms", *PLACES))]
    old = {name: value for name, value in asdict(record(1)).items() if name in names}
    path.write_text(json.dumps(old) + "\n{}\n")
    (one,) = records.read(path)
    assert (one.kv_ms, one.cached_host) == (None, None)
