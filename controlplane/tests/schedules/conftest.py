import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Barrier

import pytest
import redis
from django.db import connections

from controlplane.tests.schedules import seams
from controlplane.tests.schedules.database import shared_database
from controlplane.tests.schedules.stage import Stage
from controlplane.traffic.policies import acknowledged

ACTORS = 6  # at the same time


@pytest.fixture
def threads(transactional_db: None, tmp_path: Path) -> Iterator[ThreadPoolExecutor]:
    """Threads that each have a connection to the schedules' own database."""
    with (
        shared_database(tmp_path),
        seams.instrumented(),
        ThreadPoolExecutor(ACTORS + 2, initializer=seams.watch_statements) as pool,
    ):
        yield pool
        idle = Barrier(ACTORS + 2)  # lets each thread close its own connection
        wait([pool.submit(lambda: (idle.wait(), connections.close_all())) for _ in range(ACTORS + 2)])


@pytest.fixture
def stage(
    threads: ThreadPoolExecutor, live_redis: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    monkeypatch.setattr(acknowledged, "WAIT_S", 0.0)  # one second for each acknowledgement that the schedule delays
    logging.disable(logging.CRITICAL)
    made = Stage(live_redis, redis_url, threads)
    yield made
    made.close()
    logging.disable(logging.NOTSET)
