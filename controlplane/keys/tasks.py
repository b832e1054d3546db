"""Celery tasks of API keys."""

from celery import shared_task

from controlplane.keys import publishing


@shared_task(name="keys.republish", ignore_result=True)
def republish() -> None:
    publishing.republish()
    publishing.take_last_uses()
