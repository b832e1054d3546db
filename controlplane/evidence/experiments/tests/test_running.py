"""Running an experiment from its first run to its results, with a replacement for the fleet."""

import threading
import time

import pytest

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.modes import ephemeral_pool
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.tests.conftest import OTTO
from fleet import jobs

pytestmark = pytest.mark.django_db


def test_every_arm_gets_the_same_requests_and_its_own_pool(asked, stand_in):
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


def test_a_run_stores_its_figures_and_the_other_measurements(asked, stand_in):
    experiment = asked()
    running.run_experiment(experiment.pk)
    run = experiment.runs.first()
    assert run.results["classes"]["all"]["ok"] == run.done > 0
    assert run.facts["instances"] == ["fake-0", "fake-1"]
    assert run.facts["client_cpu_s"] > 0
    assert run.results["balance"] == 2.0


def test_a_message_that_arrives_twice_runs_the_experiment_once(asked, stand_in):
    experiment = asked()
    running.run_experiment(experiment.pk)
    running.run_experiment(experiment.pk)
    assert len(stand_in.set_up_for) == 2


def test_a_pool_that_does_not_start_fails_the_run_with_its_log_and_no_other_run_starts(asked, stand_in):
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


def test_an_unexpected_error_is_reported_with_its_step_and_the_pool_is_removed(asked, stand_in):
    experiment = asked()
    stand_in.fails = RuntimeError("surprise")
    running.run_experiment(experiment.pk)
    run = experiment.runs.first()
    assert (run.status, run.cause) == ("failed", "starting the pool: RuntimeError: surprise")
    assert stand_in.torn_down == [run.pool_name]


def test_a_run_fails_with_an_explanation_if_no_request_fits_its_window(asked, stand_in, monkeypatch):
    experiment = asked()
    monkeypatch.setattr(ephemeral_pool, "context_tokens", lambda pool: 10)
    running.run_experiment(experiment.pk)
    assert "no request of agentic-demo begins in its first 10 s and fits" in experiment.runs.first().cause


@pytest.mark.django_db(transaction=True)
def test_cancelling_stops_a_replay_within_seconds_and_keeps_finished_requests(asked, stand_in, engine, monkeypatch):
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
    assert took < 60  # the whole replay takes 600
    assert (run.status, experiment.status) == ("cancelled", "cancelled")
    assert run.cause == experiment.cause == "cancelled by otto"
    assert run.done >= 2
    assert results_of(experiment)["arms"][0]["partial"]
    assert stand_in.torn_down == [run.pool_name]
