"""Celery tasks of the API."""

from celery import shared_task
from django.core.management import call_command


@shared_task(name="api.clean_up", ignore_result=True)
def clean_up() -> None:
    """Delete expired idempotent answers and sessions."""
    # Imported here: it loads the API framework, which a worker needs only once an hour.
    from controlplane.api.idempotency import forget_old

    forget_old()
    call_command("clearsessions")
