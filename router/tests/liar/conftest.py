"""One router for all machines of a test."""

from collections.abc import Iterator

import pytest
import redis

from router.http import server
from router.serving import proxy
from router.sync import live_state, peers, redis_link, redis_source, script
from router.tests.liar.stage import Stage, staged


@pytest.fixture
def stage(live_redis: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Time that is put forward makes no Redis late, and no retry waits for real."""
    for module in (redis_link, script):
        monkeypatch.setattr(module, "ANSWER_S", 6000.0)
    monkeypatch.setattr(proxy, "JITTER_S", 0.0)
    monkeypatch.setattr(redis_source, "FLUSH_S", 0.02)
    monkeypatch.setattr(server, "LINGER_S", 0.01)
    monkeypatch.setattr(live_state, "LISTEN_S", 0.02)
    monkeypatch.setattr(peers, "BLOCK_MS", 20)
    with staged(live_redis, redis_url) as running:
        yield running
