from celery import shared_task

from controlplane.previews import running


@shared_task(name="previews.run")
def run(preview_id: int) -> None:
    running.run_preview(preview_id)
