"""Additions to a Celery worker: the control plane's steps, a node's watch loop, and a heartbeat in Redis."""

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any

import redis
from celery import bootsteps, signals
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string

from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import WorkerPresence

PRESENCE_S = 2.0
WATCH_S = 1.0
STEPS = "controlplane.doors.steps.STEPS"  # imported late, because the steps load the whole control plane
log = logging.getLogger(__name__)


@signals.worker_init.connect
def wait_for_database(**_: Any) -> None:
    from controlplane.base.process import migrated, patience

    try:
        migrated.wait(patience.IDLE_S)
    except migrated.NotMigrated as error:
        sys.exit(f"weir: {error}")


class Steps(bootsteps.StartStopStep):
    """With `--control`, runs the steps of the control plane while the worker leads (controlplane/base/schedule),
    without a broker."""

    def __init__(self, parent: Any, control: bool = False, **options: Any) -> None:
        self.enabled = control
        super().__init__(parent, **options)

    def include_if(self, parent: Any) -> bool:
        return self.enabled

    def start(self, parent: Any) -> None:
        from controlplane.base.schedule.lanes import Schedule
        from controlplane.base.schedule.lease import limit_idle_transactions

        connection_created.connect(limit_idle_transactions)
        self.schedule = Schedule(parent.hostname, import_string(STEPS))
        self.schedule.start()
        signals.worker_shutting_down.connect(self.end)

    def end(self, **_: Any) -> None:
        """End at once; otherwise the worker would first wait for its jobs."""
        self.schedule.end()

    def stop(self, parent: Any) -> None:
        self.schedule.stop()


class Watch(bootsteps.StartStopStep):
    """With `--node NAME`, scrapes this host's engines every second."""

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
    from fleet.tries import Failures

    failures, what = Failures(log), f"scraping the engines of node {node}"
    while not stopping.is_set():
        begun = time.monotonic()
        try:
            scrape(node)
        except Exception as error:
            # Redis or the database may answer again soon; if the loop ended, the node would be lost.
            failures.failed(what, error)
        else:
            failures.works(what)
        close_old_connections()
        stopping.wait(max(0.05, WATCH_S - (time.monotonic() - begun)))


class Presence(bootsteps.StartStopStep):
    """Writes `weir:worker:<name>` every PRESENCE_S seconds while the worker takes tasks."""

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
        # The broker's connection reports an unreachable Redis, and readers see the age of the value.
        with contextlib.suppress(redis.RedisError):
            connect().set(redis_keys.worker_key(hostname), codec.encode(value), ex=redis_keys.WORKER_TTL_S)
        stopping.wait(PRESENCE_S)
