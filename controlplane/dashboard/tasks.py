"""Task of the control worker: one dashboard frame a second."""

import time

from celery import shared_task

from controlplane.dashboard.step import step
from fleet.redis import connect


@shared_task(name="dashboard.frame")
def frame() -> None:
    step(connect(), time.time(), "worker")
