"""Shared test fixtures: a data folder and a real Redis for each test process."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

# Before Django's settings are read: tests never touch the developer's data folder, database or Redis.
# /tmp, not $TMPDIR: a unix socket path has room for 107 bytes.
_DATA = Path(tempfile.mkdtemp(prefix="weir-test-", dir="/tmp"))
_SOCKET = _DATA / "run" / "redis.sock"
os.environ["WEIR_DATA_DIR"] = str(_DATA)
os.environ["REDIS_URL"] = f"unix://{_SOCKET}"
os.environ["DATABASE_URL"] = os.environ.get("WEIR_TEST_DATABASE_URL", f"sqlite://{_DATA / 'weir.sqlite3'}")
os.environ.pop("WEIR_CELERY_BROKER_URL", None)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a Redis server that lives as long as this test process."""
    from controlplane import redis_server

    _SOCKET.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        redis_server.arguments(redis_server.find_server(), _SOCKET), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        redis_server.wait_until_ready(os.environ["REDIS_URL"], process)
        yield os.environ["REDIS_URL"]
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture
def live_redis(redis_url: str) -> Iterator[redis.Redis]:
    """A client of an empty Redis, the one that Django's code under test connects to as well."""
    client = redis.Redis.from_url(redis_url, socket_timeout=30)
    client.flushall()
    yield client
    client.close()


def pytest_unconfigure() -> None:
    shutil.rmtree(_DATA, ignore_errors=True)
