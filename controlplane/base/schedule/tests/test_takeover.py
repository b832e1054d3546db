"""Two real control workers: whatever happens to the leader, the other one leads within 10 s."""

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.base.schedule.tests.workers import Workers

pytestmark = pytest.mark.slow
ONE, OTHER = "control@one", "control@other"


@pytest.fixture
def workers() -> Iterator[Workers]:
    # In /tmp, because the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="weir-lease-", dir="/tmp") as folder:
        made = Workers(Path(folder))
        try:
            made.start(ONE)
            made.until(lambda: made.acts(ONE), "the first leads")
            stands_by(made)
            yield made
        finally:
            made.close()


def stands_by(workers: Workers) -> None:
    workers.start(OTHER)
    began = time.time()
    heard_of = lambda: workers.redis.zrangebyscore("weir:control-workers", began, "+inf")  # noqa: E731
    workers.until(lambda: OTHER.encode() in heard_of(), "the second stands by")  # type: ignore[operator]


def test_another_worker_takes_over_when_the_leader_stalls_is_killed_or_exits(workers: Workers) -> None:
    workers.signal(ONE, signal.SIGSTOP)
    workers.until(lambda: workers.acts(OTHER), "the second leads")
    workers.signal(ONE, signal.SIGCONT)
    log = workers.folder / f"{ONE}.log"
    workers.until(lambda: "no longer leads" in log.read_text(), "the first has noticed")
    assert workers.lease() == (OTHER, 2)
    assert workers.acts(OTHER)

    workers.signal(OTHER, signal.SIGKILL)
    workers.until(lambda: workers.acts(ONE), "the first leads again")
    assert workers.lease() == (ONE, 3)

    stands_by(workers)
    workers.signal(ONE, signal.SIGTERM)
    workers.until(lambda: workers.acts(OTHER), "the second leads again")
