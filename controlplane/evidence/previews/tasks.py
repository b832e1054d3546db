from celery import shared_task

from controlplane.evidence.previews import running
from controlplane.evidence.previews.report import report


@shared_task(name="previews.run")
def run(preview_id: int) -> None:
    running.run_preview(preview_id)


@shared_task(name="previews.report_savings", ignore_result=True)
def report_savings() -> None:
    report()
