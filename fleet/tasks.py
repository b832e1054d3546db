"""Celery tasks of the fleet: orders to nodes, calibrations and the step of a node's worker."""

import functools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from celery import current_app, shared_task
from django.utils import timezone

from fleet.calibration import services as calibrations
from fleet.control import adapters, node_agent, sleep
from fleet.observe.scrape import Scraper
from fleet.plan.reconcile import CLAIM_S
from fleet.redis import connect
from router.contract.redis import redis_keys

LOCK_MS = 10_000  # expiry of a step's lock: a step that takes longer has died or hangs, so the next may run
# Delete the lock only if this process still holds it.
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
_TASKS = {order: f"fleet.{order}_instance" for order in ("start", "stop", "kill", "sleep", "wake", "adapt")}


@contextmanager
def exclusively(name: str) -> Iterator[bool]:
    """Take the lock (SET NX PX) and yield True; yield False, to skip the step, if another process holds it."""
    client, key, token = connect(), redis_keys.lock_key(name), uuid.uuid4().hex
    acquired = bool(client.set(key, token, nx=True, px=LOCK_MS))
    try:
        yield acquired
    finally:
        if acquired:
            client.eval(_RELEASE, 1, key, token)


def send(order: str, node: str, instance: str, epoch: int) -> None:
    current_app.send_task(_TASKS[order], (instance, epoch), queue=f"node.{node}", expires=CLAIM_S)


def scrape(node: str) -> None:
    with exclusively(f"fleet.scrape.{node}") as acquired:
        if acquired:
            scraper().step(timezone.now(), node)


@functools.cache
def scraper() -> Scraper:
    """Return this process's scraper, which keeps its connections and state."""
    return Scraper()


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


@shared_task(name="fleet.adapt_instance")
def adapt_instance(name: str, epoch: int) -> None:
    adapters.adapt_instance(name, epoch)


@shared_task(name="fleet.calibrate")
def calibrate(calibration_id: int) -> None:
    calibrations.perform(calibration_id)
