from pathlib import Path

import pytest

from controlplane import redis_server


def test_the_bundled_server_answers(live_redis):
    live_redis.set("key", "value")
    assert live_redis.get("key") == b"value"


def test_a_socket_path_that_is_too_long_is_refused_with_its_limit():
    with pytest.raises(redis_server.NoRedis, match="107 bytes"):
        redis_server.arguments(Path("/bin/true"), Path("/" + "x" * 120))
