"""Share one router among all machines of a test."""

from collections.abc import Iterator

import pytest
import redis
from hypothesis.internal.conjecture.engine import ConjectureRunner

from router.http import server
from router.pool import endpoint, lease
from router.serving import proxy
from router.sync import redis_link, token_bucket_store
from router.tests.liar.stage import Stage, staged


@pytest.fixture
def stage(live_redis: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Build the stage. Advancing the clock makes no Redis command late, and no retry waits in real time. Each program
    is drawn from scratch; by default, five of six would repeat part of the previous program.
    """
    monkeypatch.setattr(ConjectureRunner, "generate_mutations_from", lambda runner, data: None)
    for module in (redis_link, token_bucket_store):
        monkeypatch.setattr(module, "ANSWER_S", 6000.0)
    monkeypatch.setattr(proxy, "JITTER_S", 0.0)
    monkeypatch.setattr(server, "LINGER_S", 0.01)
    with staged(live_redis, redis_url) as running:
        for module in (lease, endpoint):
            monkeypatch.setattr(module, "perf_counter", running.time)  # requests are held in the stage's time
        yield running
