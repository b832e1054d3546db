"""`deliver --stop POOL` needs only Redis."""

import os
import subprocess
import sys

import pytest
from django.conf import settings

from controlplane.traffic.deliveries import stop
from controlplane.traffic.policies import publication
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import StopValue
from router.contract.redis.published import CandidateVersion, FullRollout, PolicyValue, SplitRollout
from router.policy.schema import document as documents

DOCUMENT = documents.default()
SHA256 = documents.sha256(DOCUMENT)


def published(live_redis, rollout) -> None:
    value = PolicyValue(
        pool="chat", policy="default", version=3, sha256=SHA256, document=DOCUMENT, rollout=rollout, published_at=1.0
    )
    live_redis.set(redis_keys.policy_key("chat"), codec.encode(value))


def split(delivery: int) -> SplitRollout:
    candidate = CandidateVersion(version=4, sha256=SHA256, document=DOCUMENT)
    return SplitRollout(delivery=delivery, generation=5, salt="s", share=0.05, candidate=candidate)


def stopped(live_redis) -> StopValue | None:
    return codec.decode(StopValue, live_redis.get(redis_keys.stop_key("chat")))


def test_the_current_delivery_is_stopped_and_the_stop_announced(live_redis, capsys) -> None:
    published(live_redis, split(7))
    listener = live_redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(redis_keys.CHANGED)
    listener.get_message(timeout=20)
    assert stop.main(["--stop", "chat", "--reason", "answers are odd"]) == 0
    value = stopped(live_redis)
    assert (value.delivery, value.why, value.by) == (7, "answers are odd", "person")
    assert 0 < live_redis.ttl(redis_keys.stop_key("chat")) <= redis_keys.STOP_TTL_S
    assert "stopped delivery 7; 1 processes were told" in capsys.readouterr().out
    assert listener.get_message(timeout=20)["data"] == redis_keys.stop_key("chat").encode()
    listener.close()


def test_without_a_split_nothing_is_stopped_as_it_could_end_the_next_delivery(live_redis, capsys) -> None:
    published(live_redis, FullRollout(generation=4))
    assert stop.main(["--stop=chat"]) == stop.REFUSED
    assert "no delivery splits its requests; v3 serves them all" in capsys.readouterr().err
    assert stopped(live_redis) is None


@pytest.mark.parametrize("raw", [None, b"{", b'{"v": 99}'])
def test_if_the_policy_cannot_be_read_any_delivery_is_stopped(live_redis, raw) -> None:
    if raw is not None:
        live_redis.set(redis_keys.policy_key("chat"), raw)
    assert stop.main(["--stop", "chat"]) == 0
    assert (stopped(live_redis).delivery, stopped(live_redis).why) == (0, stop.WHY)
    assert 0 < live_redis.ttl(redis_keys.stop_key("chat")) <= stop.ANY_TTL_S


def test_without_redis_the_command_says_what_happens(redis_away, capsys) -> None:
    assert stop.main(["--stop", "chat"]) == 1
    assert "routers serve the live version within 30 s" in capsys.readouterr().err


def test_stopping_works_without_a_database_and_loads_no_models(live_redis, tmp_path) -> None:
    published(live_redis, split(7))
    away = {**os.environ, "DATABASE_URL": "postgresql://weir@127.0.0.1:1/gone", "WEIR_DATA_DIR": str(tmp_path)}
    code = (
        "import sys, runpy; sys.argv = ['manage.py', 'deliver', '--stop', 'chat', '--reason', 'database is away']\n"
        "try: runpy.run_path('manage.py', run_name='__main__')\n"
        "except SystemExit as end: print('status', end.code)\n"
        "print('models', 'controlplane.traffic.deliveries.models' in sys.modules, 'django.db.models' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=away, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=100
    )
    assert "status 0" in done.stdout, done.stderr
    assert "models False False" in done.stdout
    assert stopped(live_redis).why == "database is away"


def test_the_routers_policy_is_unchanged(live_redis) -> None:
    """The stop is stored beside the policy, which only the control plane writes."""
    published(live_redis, split(7))
    stop.stop("chat", "why")
    assert publication.published(["chat"])["chat"].rollout.delivery == 7
