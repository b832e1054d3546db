"""An experiment whose worker or message is lost, and what remains of it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.modes import ephemeral_pool, run_inputs
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.records import Record
from controlplane.evidence.experiments.tests.conftest import OTTO, record, write_records
from fleet import jobs
from fleet.tries import tries

pytestmark = pytest.mark.django_db


def expire() -> None:
    with tries() as attempt:
        jobs.fail_lost(Experiment, running.fail_lost, attempt)
        running.end_left(attempt)
    jobs.send_next(Experiment, jobs.SENT_AGAIN_S)


def lose(experiment: Experiment, seconds: float) -> Run:
    """Age the first run's last heartbeat by that many seconds."""
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


def test_a_run_with_a_recent_heartbeat_is_left_alone(asked):
    run = lose(asked(), 5)
    expire()
    run.refresh_from_db()
    assert run.status == "running"


def test_a_worker_that_was_declared_lost_stops_itself(asked):
    run = lose(asked(), jobs.LOST_S + 1)
    run.refresh_from_db()
    heart = running.RunHeartbeat(run.experiment, run)
    expire()
    with pytest.raises(jobs.Stopped):
        heart.beat(step="replaying")


def performed(experiment: Experiment, kept: list[Record], **facts) -> Run:
    """Mark the first run as performed, with all its records, and lose its worker."""
    run = lose(experiment, jobs.LOST_S + 1)
    run.refresh_from_db()
    run.facts = {"instances": ["fake-0", "fake-1"], **facts}
    write_records(run, kept)
    run_inputs.performed(run)
    return run


def test_a_performed_run_is_done_even_if_its_worker_is_lost_before_closing_it(asked, stand_in, sent):
    experiment = asked()
    run = performed(experiment, [record(i) for i in range(7)], client_cpu_s=0.5)
    expire()
    run.refresh_from_db()
    assert (run.status, run.cause, run.done, run.results["classes"]["all"]["n"]) == ("done", "", 7, 7)
    assert run.facts["client_cpu_s"] == 0.5
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    assert (experiment.status, experiment.cause, stand_in.set_up_for) == ("done", "", ["adaptive_v1"])
    assert not results_of(experiment)["partial"]


@pytest.mark.parametrize("pacing", ["timestamps", "closed_loop"])
def test_a_run_is_marked_as_performed_before_its_pool_is_removed(asked, stand_in, monkeypatch, pacing):
    experiment = asked(pacing=pacing, arms=["round_robin"])
    said = []
    monkeypatch.setattr(
        ephemeral_pool, "tear_down", lambda name: said.append(run_inputs.was_performed(experiment.runs.get()))
    )
    running.run_experiment(experiment.pk)
    assert said == [True]


def test_in_a_closed_loop_fewer_records_than_requests_are_complete(asked, sent):
    run = performed(asked(pacing="closed_loop"), [record(i) for i in range(3)])
    Run.objects.filter(pk=run.pk).update(total=9)
    expire()
    run.refresh_from_db()
    assert (run.status, run.done, run.total) == ("done", 3, 9)


def _lose_one(run: Run) -> None:
    run.records_path.write_bytes(b"".join(run.records_path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_lose_one, id="a record is missing"),
        pytest.param(lambda run: write_records(run, [record(6)]), id="a record is doubled"),
        pytest.param(lambda run: write_records(run, [record(7, outcome="cancelled")]), id="a request was cancelled"),
        pytest.param(lambda run: run.records_path.unlink(), id="all records are gone"),
    ],
)
def test_a_run_with_fewer_or_more_records_than_it_wrote_fails_as_lost(asked, change):
    experiment = asked()
    run = performed(experiment, [record(i) for i in range(7)])
    change(run)
    expire()
    run.refresh_from_db()
    experiment.refresh_from_db()
    assert run.status == experiment.status == "failed"
    assert "worker lost: no heartbeat for 61 s, while replaying" in run.cause


def test_an_ended_run_is_not_marked_as_performed(asked):
    run = lose(asked(), jobs.LOST_S + 1)
    write_records(run, [record(0)])
    run.refresh_from_db()
    late = Run.objects.get(pk=run.pk)
    expire()
    late.facts = {"late": True}
    run_inputs.performed(late)
    run.refresh_from_db()
    assert (run.status, "late" in run.facts) == ("failed", False)


def between_two_runs(experiment: Experiment, **values) -> None:
    long_ago = timezone.now() - timedelta(minutes=2)
    running_long = Experiment.objects.filter(pk=experiment.pk)
    running_long.update(status="running", started_at=long_ago, heartbeat_at=long_ago, **values)
    Run.objects.filter(pk=experiment.runs.first().pk).update(status="done", ended_at=long_ago)


def test_an_experiment_whose_worker_died_between_two_runs_continues_with_the_next(asked, stand_in):
    experiment = asked()
    between_two_runs(experiment)
    expire()
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    assert (experiment.status, stand_in.set_up_for) == ("done", ["adaptive_v1"])


def test_an_experiment_that_loses_a_second_worker_between_two_runs_fails_and_keeps_its_runs(asked):
    experiment = asked()
    between_two_runs(experiment, cause="worker lost: its process ended")
    expire()
    experiment.refresh_from_db()
    assert (experiment.status, experiment.cause) == ("failed", "worker lost: no heartbeat for 120 s, between two runs")
    assert [run.status for run in experiment.runs.all()] == ["done", "cancelled"]


@pytest.mark.parametrize("whole", [False, True])
def test_a_run_whose_worker_died_after_the_cancellation_ends(asked, whole):
    experiment = asked()
    run = lose(experiment, jobs.LOST_S + 1)
    run.refresh_from_db()
    write_records(run, [record(0)])
    if whole:
        run_inputs.performed(run)
    services.cancel_experiment(experiment, OTTO)
    expire()
    run.refresh_from_db()
    assert (run.status, run.cause) == (("done", "") if whole else ("cancelled", "cancelled by otto"))


def test_a_cancelled_run_whose_worker_is_alive_is_left_to_that_worker(asked):
    experiment = asked()
    run = lose(experiment, 5)
    services.cancel_experiment(experiment, OTTO)
    expire()
    run.refresh_from_db()
    assert run.status == "running"


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


def test_a_queued_experiment_shows_how_many_are_ahead_of_it(asked, ci, vera_client):
    first, second = asked(), asked()
    third = asked()
    Experiment.objects.filter(pk=first.pk).update(status="running", heartbeat_at=timezone.now())
    Experiment.objects.filter(pk=third.pk).update(actor="night (otto)")  # another token of the same owner

    def behind() -> list[int | None]:
        return [
            ci.get(f"/experiments/{each.pk}").json()["progress"]["queued_behind"] for each in (first, second, third)
        ]

    assert behind() == [None, 1, 2]
    assert "behind 2 experiments" in vera_client.get(f"/experiments/{third.pk}/").content.decode()
    Experiment.objects.filter(pk=first.pk).update(status="done")
    assert behind() == [None, 0, 1]


def test_pools_of_ended_runs_are_removed(asked, monkeypatch):
    from fleet.models import Pool

    gone: list[str] = []
    monkeypatch.setattr(ephemeral_pool, "tear_down", gone.append)
    over, alive = asked().runs.all()
    Run.objects.filter(pk=over.pk).update(status="failed", ended_at=timezone.now())
    for run in (over, alive):
        Pool.objects.create(name=run.pool_name, model="m", kind="sim", ephemeral_owner=ephemeral_pool.owner_of(run))
    ephemeral_pool.remove_abandoned()
    assert gone == [over.pool_name]
