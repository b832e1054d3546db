"""Celery's side of the API."""

from celery import shared_task
from django.core.management import call_command


@shared_task(name="api.clean_up", ignore_result=True)
def clean_up() -> None:
    """Answers kept for repeated requests, and sessions, that have had their day."""
    # Only now: the REST API's framework comes with it, which a worker needs once an hour.
    from controlplane.api.idempotency import forget_old

    forget_old()
    call_command("clearsessions")
