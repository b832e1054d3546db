from celery import shared_task

from controlplane.evidence.tuning import running


@shared_task(name="tuning.run")
def run(tuning_id: int) -> None:
    running.run_tuning(tuning_id)
