from celery import shared_task

from controlplane.experiments import running


@shared_task(name="experiments.run")
def run(experiment_id: int) -> None:
    """On the queue `experiments`, whose worker runs one at a time."""
    running.run_experiment(experiment_id)
