"""Celery tasks of the fleet: periodic steps, one at a time, and orders to the nodes."""

import functools
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from celery import current_app, shared_task
from django.utils import timezone

from fleet.calibration import services as calibrations
from fleet.control import node_agent, sleep
from fleet.control.autoscaler import scale_step
from fleet.control.publish import publish_step
from fleet.control.reconciler import expire_step, reconcile_step
from fleet.observe.failover_probe import FailoverProbe
from fleet.observe.scrape import Scraper
from fleet.plan.reconcile import CLAIM_S
from fleet.redis import connect
from router.contract.redis import redis_keys

LOCAL = "local"
LOCK_MS = 10_000  # a step that takes longer has died or hangs, so the next one may run
# Delete the lock only while it is still ours.
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
_TASKS = {order: f"fleet.{order}_instance" for order in ("start", "stop", "kill", "sleep", "wake")}
_scraping = threading.Lock()
_watching = threading.Lock()


@contextmanager
def exclusively(name: str) -> Iterator[bool]:
    """Whether this process holds the lock (SET NX PX); otherwise the step is skipped."""
    client, key, token = connect(), redis_keys.lock_key(name), uuid.uuid4().hex
    acquired = bool(client.set(key, token, nx=True, px=LOCK_MS))
    try:
        yield acquired
    finally:
        if acquired:
            client.eval(_RELEASE, 1, key, token)


def send(order: str, node: str, instance: str, epoch: int) -> None:
    current_app.send_task(_TASKS[order], (instance, epoch), queue=f"node.{node}", expires=CLAIM_S)


@shared_task(name="fleet.reconcile")
def reconcile() -> None:
    with exclusively("fleet.reconcile") as acquired:
        if acquired:
            reconcile_step(timezone.now(), send)


@shared_task(name="fleet.watch_silent")
def watch_silent() -> None:
    with exclusively("fleet.watch_silent") as acquired:
        if acquired and _watching.acquire(blocking=False):
            try:
                failover_probe().step(timezone.now())
            finally:
                _watching.release()


@functools.cache
def failover_probe() -> FailoverProbe:
    return FailoverProbe()


@shared_task(name="fleet.scrape")
def scrape(node: str = LOCAL) -> None:
    with exclusively(f"fleet.scrape.{node}") as acquired:
        # The lock in Redis may expire under a hanging step, whose event loop cannot be entered twice.
        if acquired and _scraping.acquire(blocking=False):
            try:
                scraper().step(timezone.now(), node)
            finally:
                _scraping.release()


@functools.cache
def scraper() -> Scraper:
    """One per process, with its connections and state."""
    return Scraper()


@shared_task(name="fleet.publish")
def publish() -> None:
    publish_step()
    expire_step(timezone.now())


@shared_task(name="fleet.autoscale")
def autoscale() -> None:
    with exclusively("fleet.autoscale") as acquired:
        if acquired:
            scale_step(timezone.now())


@shared_task(name="fleet.start_instance")
def start_instance(name: str, epoch: int) -> None:
    node_agent.start_instance(name, epoch)


@shared_task(name="fleet.stop_instance")
def stop_instance(name: str, epoch: int) -> None:
    node_agent.signal_instance(name, epoch, kill=False)


@shared_task(name="fleet.kill_instance")
def kill_instance(name: str, epoch: int) -> None:
    node_agent.signal_instance(name, epoch, kill=True)


@shared_task(name="fleet.sleep_instance")
def sleep_instance(name: str, epoch: int) -> None:
    sleep.sleep_instance(name, epoch)


@shared_task(name="fleet.wake_instance")
def wake_instance(name: str, epoch: int) -> None:
    sleep.wake_instance(name, epoch)


@shared_task(name="fleet.calibrate")
def calibrate(calibration_id: int) -> None:
    calibrations.perform(calibration_id)
