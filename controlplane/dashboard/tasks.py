"""The control worker's second: one dashboard frame."""

import time

from celery import shared_task

from controlplane.dashboard.step import step
from fleet.redis import connect


@shared_task(name="dashboard.frame")
def frame() -> None:
    step(connect(), time.time(), "worker")
