"""Celery's side of experiments: run one, look after all."""

from celery import shared_task

from controlplane.experiments import expire, running


@shared_task(name="experiments.run")
def run(experiment_id: int) -> None:
    """On the queue `experiments`, whose worker runs one at a time."""
    running.run_experiment(experiment_id)


@shared_task(name="experiments.reap")
def reap_step() -> None:
    """Every few seconds on the queue `control`."""
    expire.step()
