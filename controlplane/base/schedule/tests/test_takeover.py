"""Two real control workers: the other one leads within 10 s, whatever happens to the first."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.base.schedule.tests.workers import Workers

pytestmark = pytest.mark.slow
ONE, OTHER = "control@one", "control@other"


@pytest.fixture
def workers() -> Iterator[Workers]:
    # /tmp: the path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="weir-lease-", dir="/tmp") as folder:
        made = Workers(Path(folder))
        try:
            made.start(ONE)
            made.until(lambda: made.acts(ONE), "the first leads")
            made.start(OTHER)
            made.until(lambda: OTHER in _there(made), "the second stands by")
            yield made
        finally:
            made.close()


def _there(workers: Workers) -> list[str]:
    found = workers.redis.zrange("weir:control-workers", 0, -1)
    return [name.decode() for name in found]  # type: ignore[union-attr]


def test_another_worker_takes_over_from_a_killed_one(workers: Workers) -> None:
    workers.signal(ONE, signal.SIGKILL)
    workers.until(lambda: workers.acts(OTHER), "the second leads")
    assert workers.lease() == (OTHER, 2)


def test_another_worker_takes_over_from_one_that_ended(workers: Workers) -> None:
    workers.signal(ONE, signal.SIGTERM)
    workers.until(lambda: workers.acts(OTHER), "the second leads")


def test_a_stopped_worker_that_wakes_up_stands_by(workers: Workers) -> None:
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
