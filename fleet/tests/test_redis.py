import socket

import pytest
import redis

from fleet.redis import connect


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_a_redis_that_accepts_the_connection_but_never_answers_is_abandoned_in_seconds(settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(redis.TimeoutError):
            connect.__wrapped__().get("anything")
