"""Celery's side of previews: compute one, look after all."""

from celery import shared_task

from controlplane.previews import expire, running


@shared_task(name="previews.run")
def run(preview_id: int) -> None:
    running.run_preview(preview_id)


@shared_task(name="previews.reap")
def reap_step() -> None:
    """Every few seconds on the queue `control`."""
    expire.step()
