from pathlib import Path

import pytest

from controlplane.base.process import redis_server


def test_the_bundled_server_answers(live_redis):
    live_redis.set("key", "value")
    assert live_redis.get("key") == b"value"


@pytest.mark.parametrize("url", ["redis://:s3cret@127.0.0.1:1/0", "redis://:s3cret@host:s3cret/0", "s3cret"])
def test_no_error_shows_the_password(url):
    with pytest.raises(redis_server.NoRedis, match="Redis") as refused:
        redis_server.wait_until_ready(url, timeout_s=0.05)
    assert "s3cret" not in str(refused.value)


def test_a_socket_path_that_is_too_long_is_refused_with_its_limit():
    with pytest.raises(redis_server.NoRedis, match="107 bytes"):
        redis_server.arguments(Path("/bin/true"), Path("/" + "x" * 120))
