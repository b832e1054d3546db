from celery import shared_task

from controlplane.batches import running


@shared_task(name="batches.run")
def run(batch_id: int) -> None:
    running.run_batch(batch_id)
