"""Celery's side of deliveries."""

from celery import shared_task

from controlplane.deliveries.judge import step
from fleet.tasks import exclusively


@shared_task(name="deliveries.judge", ignore_result=True)
def judge() -> None:
    with exclusively("deliveries.judge") as acquired:
        if acquired:
            step.step()
