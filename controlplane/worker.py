"""Additions to a Celery worker: the schedule in a thread, a node's watch loop, and a heartbeat in Redis."""

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any

import redis
from celery import bootsteps, signals
from celery.beat import EmbeddedService, Scheduler

from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import WorkerPresence

PRESENCE_S = 2.0
WATCH_S = 1.0
SET_BY_S = 2.0  # a clock that NTP slews moves less between two ticks
log = logging.getLogger(__name__)


@signals.worker_init.connect
def wait_for_database(**_: Any) -> None:
    from controlplane import migrated

    try:
        migrated.wait(migrated.LIMIT_S)
    except migrated.NotMigrated as error:
        sys.exit(f"weir: {error}")


class BeatScheduler(Scheduler):
    """Begins anew when the wall clock and the monotonic clock part: Celery compares wall-clock times, and after an hour
    back it would do nothing for an hour."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._offset = _offset()
        super().__init__(*args, **options)

    def tick(self, *args: Any, **options: Any) -> float:
        offset = _offset()
        if abs(offset - self._offset) > SET_BY_S:
            for entry in self.schedule.values():
                entry.last_run_at = entry.default_now()
            self._heap = None  # is made anew by the tick
        self._offset = offset
        due_in_s: float = super().tick(*args, **options)
        return due_in_s


def _offset() -> float:
    return time.time() - time.monotonic()


class Beat(bootsteps.StartStopStep):
    """Celery's beat in a thread of this worker: its own `-B` forks a process that a killed worker leaves behind."""

    def __init__(self, parent: Any, with_beat: bool = False, **options: Any) -> None:
        self.enabled = with_beat
        self.thread: Any = None
        super().__init__(parent, **options)

    def include_if(self, parent: Any) -> bool:
        return self.enabled

    def start(self, parent: Any) -> None:
        self.thread = EmbeddedService(parent.app, thread=True, scheduler_cls=parent.app.conf.beat_scheduler)
        self.thread.start()

    def stop(self, parent: Any) -> None:
        if self.thread is not None:
            self.thread.stop()


class BeatWatch(bootsteps.StartStopStep):
    """With `--node NAME`: scrapes the engines of this host every second, independent of the schedule."""

    def __init__(self, parent: Any, node: str = "", **options: Any) -> None:
        self.enabled, self.node = bool(node), node
        self.stopping = threading.Event()
        super().__init__(parent, **options)

    def include_if(self, parent: Any) -> bool:
        return self.enabled

    def start(self, parent: Any) -> None:
        threading.Thread(target=watch, args=(self.node, self.stopping), name="watch", daemon=True).start()

    def stop(self, parent: Any) -> None:
        self.stopping.set()


def watch(node: str, stopping: threading.Event) -> None:
    from django.db import close_old_connections

    from fleet.tasks import scrape

    while not stopping.is_set():
        begun = time.monotonic()
        try:
            scrape(node)
        except Exception as error:
            # Redis or the database may be back in a second; a loop that ends would lose the node.
            log.warning("node %s could not scrape its engines: %s", node, error)
        close_old_connections()
        stopping.wait(max(0.05, WATCH_S - (time.monotonic() - begun)))


class Presence(bootsteps.StartStopStep):
    """While the worker takes tasks, it writes `weir:worker:<name>` every PRESENCE_S seconds."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        self.stopping = threading.Event()
        super().__init__(parent, **options)

    def start(self, parent: Any) -> None:
        self.stopping = threading.Event()
        queues = sorted(parent.app.amqp.queues.consume_from)
        thread = threading.Thread(
            target=tell, args=(parent.hostname, queues, self.stopping), name="presence", daemon=True
        )
        thread.start()

    def stop(self, parent: Any) -> None:
        self.stopping.set()


def tell(hostname: str, queues: list[str], stopping: threading.Event) -> None:
    from fleet.redis import connect

    started_at = time.time()
    while not stopping.is_set():
        value = WorkerPresence(
            name=hostname, at=time.time(), started_at=started_at, pid=os.getpid(), queues=tuple(queues)
        )
        # A lost Redis is reported by the broker's connection, and readers see the age of the value.
        with contextlib.suppress(redis.RedisError):
            connect().set(redis_keys.worker_key(hostname), codec.encode(value), ex=redis_keys.WORKER_TTL_S)
        stopping.wait(PRESENCE_S)
