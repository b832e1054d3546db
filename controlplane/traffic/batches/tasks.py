from celery import shared_task

from controlplane.traffic.batches import running


@shared_task(name="batches.run")
def run(batch_id: int) -> None:
    """Send whatever is due; `batch_id` is the batch that was created or is late."""
    running.run_batches()
