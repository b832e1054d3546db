from celery import shared_task

from controlplane.evidence.experiments import running


@shared_task(name="experiments.run")
def run(experiment_id: int) -> None:
    """Run an experiment on the queue `experiments`, whose worker takes one at a time."""
    running.run_experiment(experiment_id)
