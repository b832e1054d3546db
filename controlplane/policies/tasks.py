"""Celery's side of policies."""

from celery import shared_task

from controlplane.policies.services import republish_missing


@shared_task(name="policies.republish_missing", ignore_result=True)
def republish() -> None:
    republish_missing()
