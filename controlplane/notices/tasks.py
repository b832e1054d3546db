"""Celery tasks of notices."""

import threading

from celery import shared_task
from django.utils import timezone

from controlplane.notices.step import forget_old, step

_sending = threading.Lock()  # a slow receiver holds one thread of the worker, not all of them


@shared_task(name="notices.send", ignore_result=True)
def send() -> None:
    if _sending.acquire(blocking=False):
        try:
            step(timezone.now())
        finally:
            _sending.release()


@shared_task(name="notices.clean_up", ignore_result=True)
def clean_up() -> None:
    forget_old(timezone.now())
