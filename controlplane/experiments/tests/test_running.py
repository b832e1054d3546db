"""Running an experiment from its first run to its results, with a stand-in for the fleet."""

import threading
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.experiments import running, services
from controlplane.experiments.models import Experiment, Run
from controlplane.experiments.modes import ephemeral_pool
from controlplane.experiments.results import records
from controlplane.experiments.results.assemble import results_of
from controlplane.experiments.start.body import ExperimentIn
from controlplane.experiments.tests.conftest import body, record, write_records
from controlplane.experiments.tests.fake_engine import engine_in_a_thread
from controlplane.experiments.tests.stand_in import StandIn
from fleet import jobs
from fleet.tries import tries

pytestmark = pytest.mark.django_db
OTTO = Actor("user", "otto")


@pytest.fixture
def engine():
    with engine_in_a_thread() as made:
        yield made


@pytest.fixture
def stand_in(engine, monkeypatch):
    made = StandIn(engine.url)
    made.install(lambda name, value: monkeypatch.setattr(ephemeral_pool, name, value))
    return made


@pytest.fixture
def asked(demo_pool, sent, data_dir):
    def make(**changes) -> Experiment:
        fields = {"duration_s": 10, "time_scale": 100, **changes}
        return services.start_experiment(ExperimentIn.model_validate(body(**fields)), OTTO)

    return make


def test_every_arm_gets_the_same_requests_and_a_pool_of_its_own(asked, stand_in):
    experiment = asked(pacing="timestamps")  # in a closed loop a busy machine may be too late for a turn
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    assert experiment.status == "done", experiment.cause
    runs = list(experiment.runs.all())
    sent = [{r.index: r.input_tokens for r in records.read(run.records_path)} for run in runs]
    assert sent[0] == sent[1] != {}
    assert stand_in.set_up_for == ["round_robin", "adaptive_v1"]
    assert stand_in.torn_down == [run.pool_name for run in runs]
    assert [(run.status, run.done, run.total) for run in runs] == [("done", len(sent[0]), run.total) for run in runs]
    assert results_of(experiment)["differences"]


def test_a_run_keeps_its_figures_and_what_was_measured_beside_them(asked, stand_in):
    experiment = asked()
    running.run_experiment(experiment.pk)
    run = experiment.runs.first()
    assert run.results["classes"]["all"]["ok"] == run.done > 0
    assert run.facts["instances"] == ["fake-0", "fake-1"]
    assert run.facts["client_cpu_s"] > 0
    assert run.results["balance"] == 2.0


def test_a_message_that_comes_twice_runs_it_once(asked, stand_in):
    experiment = asked()
    running.run_experiment(experiment.pk)
    running.run_experiment(experiment.pk)
    assert len(stand_in.set_up_for) == 2


def test_a_pool_that_does_not_start_fails_the_run_with_its_log_and_starts_no_other(asked, stand_in):
    experiment = asked()
    stand_in.fails = ephemeral_pool.RunFailed("exp-1-1-0 does not start: exit status 1", "Traceback: boom")
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    first, second = experiment.runs.all()
    assert (first.status, first.cause, first.log) == (
        "failed",
        "exp-1-1-0 does not start: exit status 1",
        "Traceback: boom",
    )
    assert (second.status, stand_in.set_up_for) == ("cancelled", ["round_robin"])
    assert experiment.status == "failed"
    assert "round_robin, seed 1: exp-1-1-0 does not start" in experiment.cause
    assert stand_in.torn_down == [first.pool_name]


def test_an_unexpected_error_names_its_step_and_takes_the_pool_away(asked, stand_in):
    experiment = asked()
    stand_in.fails = RuntimeError("surprise")
    running.run_experiment(experiment.pk)
    run = experiment.runs.first()
    assert (run.status, run.cause) == ("failed", "starting the pool: RuntimeError: surprise")
    assert stand_in.torn_down == [run.pool_name]


def test_a_window_without_a_request_that_fits_fails_in_words(asked, stand_in, monkeypatch):
    experiment = asked()
    monkeypatch.setattr(ephemeral_pool, "context_tokens", lambda pool: 10)
    running.run_experiment(experiment.pk)
    assert "no request of agentic-demo begins in its first 10 s and fits" in experiment.runs.first().cause


@pytest.mark.django_db(transaction=True)
def test_cancelling_stops_a_replay_within_seconds_and_keeps_what_finished(asked, stand_in, engine, monkeypatch):
    monkeypatch.setattr(jobs, "BEAT_S", 0.05)
    experiment = asked(duration_s=600, time_scale=1, arms=["round_robin"])
    cancelled_at = []

    def cancel_when_some_are_done() -> None:
        while engine.answered < 2:
            time.sleep(0.01)
        engine.token_s = 0.5
        services.cancel_experiment(experiment, OTTO)
        cancelled_at.append(time.monotonic())
        from django.db import connection

        connection.close()

    thread = threading.Thread(target=cancel_when_some_are_done)
    thread.start()
    running.run_experiment(experiment.pk)
    took = time.monotonic() - cancelled_at[0]
    thread.join()
    run = experiment.runs.get()
    experiment.refresh_from_db()
    assert took < 60  # of 600
    assert (run.status, experiment.status) == ("cancelled", "cancelled")
    assert run.cause == experiment.cause == "cancelled by otto"
    assert run.done >= 2
    assert results_of(experiment)["arms"][0]["partial"]
    assert stand_in.torn_down == [run.pool_name]


def expire() -> None:
    with tries() as attempt:
        jobs.fail_lost(Experiment, running.fail_lost, attempt)
    jobs.send_next(Experiment, jobs.SENT_AGAIN_S)


def lose(experiment: Experiment, seconds: float) -> Run:
    """Its first run was last heard of so long ago."""
    heard = timezone.now() - timedelta(seconds=seconds)
    Experiment.objects.filter(pk=experiment.pk).update(status="running", heartbeat_at=heard)
    run = experiment.runs.first()
    Run.objects.filter(pk=run.pk).update(status="running", step="replaying", heartbeat_at=heard)
    return run


def test_a_run_without_a_heartbeat_fails_as_lost_with_partial_figures(asked):
    experiment = asked()
    run = lose(experiment, jobs.LOST_S + 1)
    write_records(run, [record(i) for i in range(7)])
    expire()
    run.refresh_from_db()
    experiment.refresh_from_db()
    assert run.status == experiment.status == "failed"
    assert "worker lost: no heartbeat for 61 s, while replaying" in run.cause
    assert (run.done, run.results["classes"]["all"]["n"]) == (7, 7)
    assert results_of(experiment)["partial"]
    assert {other.status for other in experiment.runs.exclude(pk=run.pk)} == {"cancelled"}


def test_a_run_that_was_heard_of_lately_is_left_alone(asked):
    run = lose(asked(), 5)
    expire()
    run.refresh_from_db()
    assert run.status == "running"


def test_a_worker_that_was_taken_for_lost_stops_itself(asked):
    run = lose(asked(), jobs.LOST_S + 1)
    run.refresh_from_db()
    heart = running.RunHeartbeat(run.experiment, run)
    expire()
    with pytest.raises(jobs.Stopped):
        heart.beat(step="replaying")


def test_an_experiment_whose_worker_died_between_two_runs_ends_failed(asked):
    experiment = asked()
    long_ago = timezone.now() - timedelta(minutes=2)
    Experiment.objects.filter(pk=experiment.pk).update(status="running", heartbeat_at=long_ago)
    first = experiment.runs.first()
    Run.objects.filter(pk=first.pk).update(status="done", ended_at=long_ago)
    expire()
    experiment.refresh_from_db()
    assert (experiment.status, experiment.cause) == ("failed", "worker lost: no heartbeat for 120 s, between two runs")


def test_a_queued_experiment_whose_message_got_lost_is_sent_again_once(asked, sent):
    experiment = asked()
    expire()
    assert len(sent) == 1
    Experiment.objects.update(sent_at=timezone.now() - timedelta(seconds=jobs.SENT_AGAIN_S))
    expire()
    expire()
    assert sent == [("experiments.run", [experiment.pk], "experiments")] * 2


def test_while_another_one_runs_a_queued_experiment_just_waits(asked, sent):
    first, _ = asked(), asked()
    Experiment.objects.update(sent_at=timezone.now() - timedelta(minutes=5))
    Experiment.objects.filter(pk=first.pk).update(status="running", heartbeat_at=timezone.now())
    expire()
    assert len(sent) == 2


def test_a_queued_experiment_says_behind_how_many(asked, ci, vera_client):
    first, second = asked(), asked()
    third = asked()
    Experiment.objects.filter(pk=first.pk).update(status="running", heartbeat_at=timezone.now())

    def behind() -> list[int | None]:
        return [
            ci.get(f"/experiments/{each.pk}").json()["progress"]["queued_behind"] for each in (first, second, third)
        ]

    assert behind() == [None, 1, 2]
    assert "behind 2 experiments" in vera_client.get(f"/experiments/{third.pk}/").content.decode()
    Experiment.objects.filter(pk=first.pk).update(status="done")
    assert behind() == [None, 0, 1]


def test_pools_of_runs_that_have_ended_are_taken_away(asked, monkeypatch):
    from fleet.models import Pool

    gone: list[str] = []
    monkeypatch.setattr(ephemeral_pool, "tear_down", gone.append)
    over, alive = asked().runs.all()
    Run.objects.filter(pk=over.pk).update(status="failed", ended_at=timezone.now())
    for run in (over, alive):
        Pool.objects.create(name=run.pool_name, model="m", kind="sim", ephemeral_owner=ephemeral_pool.owner_of(run))
    ephemeral_pool.remove_abandoned()
    assert gone == [over.pool_name]
