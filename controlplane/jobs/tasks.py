from celery import shared_task

from controlplane.jobs import expire


@shared_task(name="jobs.expire")
def expire_step() -> None:
    """Every few seconds on the queue `control`."""
    expire.step()
