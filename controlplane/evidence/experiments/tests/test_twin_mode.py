"""An experiment in the twin, from its start to every page and file that reports it."""

import csv
import io
from dataclasses import replace
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from django.utils import timezone

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.modes import ephemeral_pool, twin
from controlplane.evidence.experiments.results.records import read
from controlplane.evidence.experiments.selectors import progress_of
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.experiments.tests.conftest import body
from controlplane.evidence.twin import pool_model
from controlplane.people.audit.services import Actor
from fleet import jobs
from fleet.calibration import services as calibration
from fleet.models import Calibration
from fleet.tests.calibration.rows import age, instance, measure_well
from fleet.tries import tries

pytestmark = pytest.mark.django_db
BADGE = '<span class="badge">simulated in the twin</span>'
ABOUT = "constants of h100_sxm, Llama-3.1-8B"


def in_twin(**changes):
    return body(**{"mode": "twin", "time_scale": 1, "duration_s": 20, **changes})


@pytest.fixture
def asked(ci, demo_pool, sent, data_dir):
    def make(**changes) -> Experiment:
        answer = ci.post("/experiments", in_twin(**changes))
        assert answer.status_code == 201, answer.content
        return Experiment.objects.get(pk=answer.json()["id"])

    return make


@pytest.fixture
def no_engines(monkeypatch):
    """Fails every request for a pool, a router or an engine, as the twin needs none."""
    for name in ("set_up", "tear_down", "keep_policy", "context_tokens", "router_urls"):
        monkeypatch.setattr(ephemeral_pool, name, None)


@pytest.fixture
def ended(asked, no_engines):
    experiment = asked()
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    assert experiment.status == "done", experiment.cause
    return experiment


def test_every_arm_plays_the_same_requests_without_an_engine_or_a_router(ended):
    first, second = ended.runs.all()
    played = [{r.index: (r.input_tokens, r.trace_class) for r in read(run.records_path)} for run in (first, second)]
    assert played[0] == played[1] != {}
    assert (first.status, first.done, first.step) == ("done", len(played[0]), "simulating")
    assert first.facts["instances"] == ["demo-0", "demo-1"]
    expected = {"tpot": 0.05, "e2e": 0.07, "ttft_mean": 0.1, "ttft_p99": 0.2}
    assert first.facts["twin"] == {"basis": "profile", "about": ABOUT, "cautions": [], "expected": expected}
    assert 0 < first.facts["kv_usage"]["mean"] < first.facts["kv_usage"]["peak"] <= 1


def test_tiers_below_the_gpu_are_in_the_facts_and_columns_of_a_run(asked, no_engines, demo_pool, vera_client):
    demo_pool.engine |= {"dram_gb": 10, "ssd_gb": 100, "kv_blocks": 2_000, "tier_load": "always"}
    demo_pool.save()
    experiment = asked(duration_s=5)
    running.run_experiment(experiment.pk)
    facts = experiment.runs.first().facts
    assert facts["tiers"]["ssd-tutti"]["written_gb"] > 0
    assert facts["loading"]["failed"] == 0
    page = vera_client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "Drive writes per day" in page
    assert "ssd-tutti " in page


def test_the_same_experiment_gives_the_same_figures(asked, no_engines):
    found = []
    for experiment in (asked(), asked()):
        running.run_experiment(experiment.pk)
        found.append([read(run.records_path) for run in experiment.runs.all()])
    assert found[0] == found[1]


def test_seeds_without_effect_on_the_trace_are_reported(asked, no_engines, ci):
    experiment = asked(seeds=[1, 2])
    running.run_experiment(experiment.pk)
    (warning,) = ci.get(f"/experiments/{experiment.pk}/results").json()["warnings"]
    assert warning.startswith("several seeds played the same requests")


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"time_scale": 10}, "time_scale", "the twin runs in virtual time, as fast as it can; allowed: 1"),
        ({"pool": "real"}, "pool", "real"),
        ({"pool": "prod"}, "pool", "there is no such pool; there are demo, real"),
    ],
)
def test_settings_that_the_twin_cannot_simulate_are_refused_by_field(ci, demo_pool, sent, changes, path, message):
    answer = ci.post("/experiments", in_twin(**changes))
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["path"] == path
    assert message in fault["message"]
    assert sent == []


def test_cancelling_stops_a_running_simulation_and_keeps_earlier_runs(asked, monkeypatch):
    experiment = asked(duration_s=180)
    simulate, begun = twin.simulate, []

    def cancelled_in_its_second_run(*args, on_progress, **options):
        def heard(done, total):
            if len(begun) == 2:
                services.cancel_experiment(experiment, Actor("user", "otto"))
            on_progress(done, total)

        begun.append(options["seed"])
        return simulate(*args, on_progress=heard, **options)

    monkeypatch.setattr(jobs, "BEAT_S", 0.0)
    monkeypatch.setattr(twin, "simulate", cancelled_in_its_second_run)
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    first, second = experiment.runs.all()
    assert (experiment.status, second.cause) == ("cancelled", "cancelled by otto")
    assert (first.status, second.status, second.done) == ("done", "cancelled", 0)
    assert len(read(first.records_path)) == first.done > 0
    assert read(second.records_path) == []


def test_heartbeats_and_progress_are_written_while_the_twin_computes(asked, monkeypatch):
    experiment = asked(duration_s=180, arms=["round_robin"])
    seen = []
    monkeypatch.setattr(jobs, "BEAT_S", 0.0)
    write = running.RunHeartbeat.write
    monkeypatch.setattr(
        running.RunHeartbeat, "write", lambda self, at, progress: (write(self, at, progress), seen.append(progress))
    )
    running.run_experiment(experiment.pk)
    run = experiment.runs.get()
    assert [each["done"] for each in seen if each["step"] == "simulating" and each.get("done")] == [100, 174]
    assert run.heartbeat_at is not None


def test_the_remaining_time_follows_from_the_pace_so_far(asked):
    experiment = asked(seeds=[1, 2])
    now = timezone.now()
    assert progress_of(experiment, now).eta_s is None
    Experiment.objects.update(status="running", started_at=now - timedelta(seconds=4))
    first, second, *_ = experiment.runs.all()
    hour_ago, began = now - timedelta(hours=1), now - timedelta(seconds=4)  # another experiment had its turn in between
    ended = hour_ago + timedelta(seconds=6)
    Run.objects.filter(pk=first.pk).update(status="done", done=90, total=100, started_at=hour_ago, ended_at=ended)
    Run.objects.filter(pk=second.pk).update(status="running", done=60, total=100, started_at=began)
    assert progress_of(Experiment.objects.get(), now).eta_s == pytest.approx(10 * 240 / 160)


def test_a_killed_worker_loses_its_current_run_and_no_ended_one(asked, no_engines):
    experiment = asked()
    running.run_experiment(experiment.pk)
    first, second = experiment.runs.all()
    second.records_path.unlink()
    heard = timezone.now() - timedelta(seconds=90)
    Run.objects.filter(pk=second.pk).update(status="running", heartbeat_at=heard, ended_at=None)
    Experiment.objects.filter(pk=experiment.pk).update(status="running", heartbeat_at=heard, ended_at=None)
    with tries() as attempt:
        jobs.fail_lost(Experiment, running.fail_lost, attempt)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.status, second.status) == ("done", "failed")
    assert len(read(first.records_path)) == first.done > 0


def test_results_and_exports_say_that_they_are_simulated(ended, ci):
    results = ci.get(f"/experiments/{ended.pk}/results").json()
    assert (results["mode"], results["twin"]["about"]) == ("twin", ABOUT)
    assert results["time"] == "simulated in the twin, in virtual time"
    assert results["differences"]
    rows = csv.DictReader(io.StringIO(ci.get(f"/experiments/{ended.pk}/results?format=csv").content.decode()))
    assert {row["mode"] for row in rows} == {"twin"}
    report = ci.get(f"/experiments/{ended.pk}/report.md").content.decode()
    assert f"- Simulated: in the twin, {ABOUT}; no engine was started" in report
    suite = ElementTree.fromstring(ci.get(f"/experiments/{ended.pk}/junit.xml").content)
    properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    expected = "TPOT 5 %, E2E 7 %, mean TTFT 10 %, TTFT p99 20 % of a warm engine"
    assert f"- Expected error: {expected}" in report
    assert results["twin"]["expected"]["ttft_p99"] == 0.2
    assert properties == {"mode": "twin", "verdict": "none", "twin": ABOUT, "expected error": expected}
    assert (suite.get("tests"), suite.get("errors")) == ("2", "0")


def test_cautions_are_in_every_report(asked, no_engines, monkeypatch, ci):
    real = pool_model.twin_of
    careful = lambda *given: replace(real(*given), cautions=("roles are not modelled",))  # noqa: E731
    monkeypatch.setattr(fleets, "twin_of", careful)
    experiment = asked()
    running.run_experiment(experiment.pk)
    results = ci.get(f"/experiments/{experiment.pk}/results").json()
    assert results["warnings"] == ["the twin: roles are not modelled"]
    assert "- the twin: roles are not modelled" in ci.get(f"/experiments/{experiment.pk}/report.md").content.decode()
    assert 'name="caution" value="roles are not modelled"' in (
        ci.get(f"/experiments/{experiment.pk}/junit.xml").content.decode()
    )


def test_the_list_and_the_page_say_that_it_is_simulated(ended, vera_client):
    assert BADGE in vera_client.get("/experiments/").content.decode()
    page = vera_client.get(f"/experiments/{ended.pk}/").content.decode()
    assert BADGE in page
    assert f"in the twin, {ABOUT}; no engine was started" in page
    assert "Virtual time" in page
    assert "Client late" not in page


def test_real_engines_run_in_the_twin_once_one_was_measured_and_its_age_is_reported(
    asked, no_engines, monkeypatch, ci, live_redis
):
    monkeypatch.setattr(calibration, "measure", measure_well)
    instance()
    assert ci.post("/experiments", in_twin(pool="chat")).status_code == 422
    assert calibration.perform(calibration.ask_for("chat-0", "ada").pk)
    age(Calibration.objects.get(), days=9)
    experiment = asked(pool="chat", duration_s=300, arms=["lpwl"])
    running.run_experiment(experiment.pk)
    results = ci.get(f"/experiments/{experiment.pk}/results").json()
    assert results["arms"][0]["runs"][0]["status"] == "done", experiment.runs.get().cause
    assert results["twin"]["basis"] == "calibrated"
    assert results["twin"]["about"].startswith("calibrated on chat-0 on ")
    assert "the twin: the calibration is 9 days old" in results["warnings"]


def test_a_replay_is_labelled_as_one_and_not_as_simulated(ci, demo_pool, sent, data_dir, vera_client):
    number = ci.post("/experiments", body()).json()["id"]
    results = ci.get(f"/experiments/{number}/results").json()
    assert (results["mode"], results["twin"]) == ("replay", None)
    assert BADGE not in vera_client.get("/experiments/").content.decode()
    assert BADGE not in vera_client.get(f"/experiments/{number}/").content.decode()
