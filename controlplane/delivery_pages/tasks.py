"""Celery's side: what Live and the wall show of deliveries."""

from celery import shared_task
from django.utils import timezone

from controlplane.delivery_pages.report import report


@shared_task(name="delivery_pages.report", ignore_result=True)
def report_deliveries() -> None:
    report(timezone.now())
