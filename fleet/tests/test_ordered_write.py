"""Redis keeps the publication that read the database last, whichever write arrives first."""

import ast
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from fleet import services
from fleet.control.publish import publish_fleet, publish_step
from fleet.models import Instance, Pool, PublicationOrder, State
from fleet.redis import ordered_write
from fleet.tests.interleaved import between_reading_and_writing
from router.contract.redis import codec, redis_keys
from router.contract.redis.codec import LARGEST_ORDER
from router.contract.redis.published import FleetValue
from router.contract.redis.router_status import RouterStatus

KEY = redis_keys.fleet_key("p")
CODE = Path(__file__).resolve().parents[2]


@pytest.fixture
def pool(db: None) -> Pool:
    return Pool.objects.create(name="p", model="one", kind="sim")


def serve(model: str) -> None:
    Pool.objects.filter(name="p").update(model=model)


def publish(model: str) -> None:
    serve(model)
    publish_fleet("p")


def held(client: redis.Redis) -> tuple[str, int]:
    """Return the model and the order in Redis."""
    value = codec.read(FleetValue, client.get(KEY))  # type: ignore[arg-type]
    return value.model, value.order


def declare_again(model: str) -> None:
    Pool.objects.create(name="p", model=model, kind="sim")
    publish_fleet("p")


def remove() -> None:
    Pool.objects.filter(name="p").delete()
    publish_fleet("p")


# Two writers


def test_the_later_of_two_crossing_publications_stays(pool: Pool, live_redis: redis.Redis) -> None:
    with between_reading_and_writing(lambda: publish("two")):
        publish("older")
    assert held(live_redis)[0] == "two"


def test_the_periodic_step_does_not_undo_a_publication_that_came_between(pool: Pool, live_redis: redis.Redis) -> None:
    with between_reading_and_writing(lambda: publish("two")):
        assert publish_step() == ["p"]
    assert held(live_redis)[0] == "two"
    assert publish_step() == []


def test_a_view_read_between_a_change_and_its_reversal_overwrites_neither(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    with between_reading_and_writing(lambda: publish("one")):  # Redis holds it only briefly
        publish("two")
    assert held(live_redis)[0] == "one"


def test_a_change_between_the_comparison_and_the_reading_is_written(
    pool: Pool, live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ordered_write.read_in_order
    monkeypatch.setattr(ordered_write, "read_in_order", lambda what: (serve("two"), read(what))[1])
    publish_fleet("p")
    assert held(live_redis)[0] == "two"


def test_a_late_publisher_does_not_restore_a_removed_pool(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    with between_reading_and_writing(remove):
        publish("two")
    assert not live_redis.exists(KEY)
    assert live_redis.smembers(redis_keys.POOLS) == set()


def test_a_late_removal_does_not_remove_a_pool_that_was_declared_again(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    pool.delete()
    with between_reading_and_writing(lambda: declare_again("two")):
        publish_fleet("p")
    assert held(live_redis)[0] == "two"
    assert live_redis.smembers(redis_keys.POOLS) == {b"p"}


def test_a_pool_that_is_declared_again_continues_with_greater_orders(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    before = held(live_redis)[1]
    remove()
    declare_again("two")
    assert held(live_redis)[1] > before


def test_the_order_of_a_removed_pool_is_known_for_a_day(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    assert live_redis.ttl(redis_keys.order_key(KEY)) == -1
    remove()
    assert 0 < live_redis.ttl(redis_keys.order_key(KEY)) <= redis_keys.REMOVED_TTL_S  # type: ignore[operator]


def test_a_write_that_arrives_twice_is_written_once(pool: Pool, live_redis: redis.Redis) -> None:
    order, found = ordered_write.read_in_order(lambda: {KEY: FleetValue(pool="p", model="one", at=0.0, instances=())})
    assert ordered_write.write(order, found) == 0
    first = live_redis.get(KEY)
    assert ordered_write.write(order, found) == 0
    assert live_redis.get(KEY) == first


# Databases and Redis that were reset


def test_a_database_from_a_backup_overtakes_the_orders_in_redis(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    ahead = held(live_redis)[1] + 10**9  # a later time: the order follows the clock of the process that wrote it
    live_redis.set(redis_keys.order_key(KEY), ahead)
    publish("two")
    assert held(live_redis) == ("two", ahead + 1)


def test_a_lost_redis_and_a_lost_counter_continue_with_greater_orders(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    before = held(live_redis)[1]
    PublicationOrder.objects.all().delete()
    live_redis.flushall()
    while time.time_ns() // 1_000_000 <= before:
        pass
    publish_step()
    assert held(live_redis)[1] > before


def a_router_refuses(client: redis.Redis, key: str, order: int) -> None:
    status = RouterStatus(id="router-1", at=time.time(), refused={key: order})
    client.set(redis_keys.router_key("router-1"), codec.encode(status))
    client.zadd(redis_keys.ROUTERS, {"router-1": time.time()})


def test_a_value_refused_as_older_is_written_again_with_a_greater_order(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    ahead = held(live_redis)[1] + 10**9
    a_router_refuses(live_redis, KEY, ahead)
    assert publish_step() == ["p"]
    assert held(live_redis) == ("one", ahead + 1)


def test_a_router_that_refuses_another_key_changes_nothing(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    a_router_refuses(live_redis, redis_keys.fleet_key("other"), 5)
    assert publish_step() == []


def test_a_router_that_is_gone_is_not_consulted(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    a_router_refuses(live_redis, KEY, 10**15)
    live_redis.zadd(redis_keys.ROUTERS, {"router-1": time.time() - 60})
    assert publish_step() == []


@pytest.mark.parametrize("order", ["", "garbage", "nan", "inf", str(LARGEST_ORDER * 4), b"\xff"])
def test_an_order_that_cannot_be_read_is_overwritten(pool: Pool, live_redis: redis.Redis, order: str | bytes) -> None:
    live_redis.set(redis_keys.order_key(KEY), order)
    publish("one")
    assert held(live_redis)[0] == "one"
    assert int(live_redis.get(redis_keys.order_key(KEY))) == held(live_redis)[1]  # type: ignore[arg-type]


def test_an_order_of_another_type_is_overwritten(pool: Pool, live_redis: redis.Redis) -> None:
    live_redis.rpush(redis_keys.order_key(KEY), "garbage")
    publish("one")
    assert held(live_redis)[0] == "one"


def test_a_value_that_was_written_without_an_order_is_overwritten(pool: Pool, live_redis: redis.Redis) -> None:
    publish("one")
    live_redis.set(KEY, '{"schema":1,"pool":"p","model":"older","at":1.0,"instances":[]}')
    assert publish_step() == ["p"]
    assert held(live_redis)[0] == "one"


def test_orders_that_stay_greater_are_abandoned_and_reported(
    pool: Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_write, "write", lambda order, found: order + 1000)
    publish_fleet("p")
    assert "greater orders again and again" in caplog.text


# The counter


def test_orders_grow_and_are_at_least_the_time(db: None) -> None:
    orders = [ordered_write.read_in_order(dict)[0] for _ in range(20)]
    assert orders == sorted(set(orders))
    assert abs(orders[0] - time.time() * 1000) < 60_000


def test_a_quiet_fleet_allocates_nothing(pool: Pool) -> None:
    publish_step()
    before = PublicationOrder.objects.get().last
    for _ in range(3):
        assert publish_step() == []
    assert PublicationOrder.objects.get().last == before


def test_without_redis_nothing_is_allocated(pool: Pool, redis_away: None) -> None:
    assert publish_step() == []
    assert not PublicationOrder.objects.exists()


def test_a_drain_within_a_transaction_is_published_after_its_commit(
    pool: Pool, live_redis: redis.Redis, django_capture_on_commit_callbacks: Any
) -> None:
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, state=State.READY, url="http://127.0.0.1:1")
    publish_fleet("p")
    with django_capture_on_commit_callbacks() as then, transaction.atomic():
        services.drain("p-0", "ada")
    assert codec.read(FleetValue, live_redis.get(KEY)).instances[0].routable  # type: ignore[arg-type]
    for callback in then:
        callback()
    assert not codec.read(FleetValue, live_redis.get(KEY)).instances[0].routable  # type: ignore[arg-type]


def test_within_a_transaction_nothing_is_published(pool: Pool) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        ordered_write.publish(dict)


def test_a_list_of_pools_with_the_wrong_redis_type_is_created_again(pool: Pool, live_redis: redis.Redis) -> None:
    live_redis.set(redis_keys.POOLS, "garbage")
    publish_fleet("p")
    assert live_redis.smembers(redis_keys.POOLS) == {b"p"}


def test_the_lock_is_taken_before_the_database_is_read(pool: Pool) -> None:
    publish("one")
    serve("two")
    with CaptureQueriesContext(connection) as asked:
        publish_fleet("p")
    statements = [query["sql"] for query in asked if query["sql"].startswith(("UPDATE", "SELECT"))]
    (lock,) = (place for place, sql in enumerate(statements) if sql.startswith("UPDATE"))
    assert 'UPDATE "fleet_publicationorder"' in statements[lock]
    assert any('FROM "fleet_pool"' in sql for sql in statements[lock:])


needs_locks = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="threads share an SQLite in memory, without its locks"
)


@needs_locks
@pytest.mark.django_db(transaction=True)
def test_a_process_that_is_suspended_with_the_lock_loses_it(
    live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.create(name="p", model="one", kind="sim")
    monkeypatch.setattr(ordered_write, "SUSPENDED_MS", 500)
    suspended, published, outcome = threading.Event(), threading.Event(), []

    def suspend() -> dict[str, None]:
        suspended.set()
        published.wait()
        return {}

    def first() -> None:
        try:
            ordered_write.publish(suspend)
        except ordered_write.FAILURES as error:
            outcome.append(error)
        finally:
            connection.close()

    other = threading.Thread(target=first)
    other.start()
    suspended.wait()
    assert publish_fleet("p") is True
    published.set()
    other.join()
    assert outcome
    assert held(live_redis)[0] == "one"


@needs_locks
@pytest.mark.django_db(transaction=True)
def test_a_lock_that_is_not_released_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    Pool.objects.create(name="p", model="one", kind="sim")
    monkeypatch.setattr(ordered_write, "WAIT_MS", 100)
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        ordered_write.read_in_order(lambda: (locked.set(), done.wait(), {})[2])
        connection.close()

    other = threading.Thread(target=hold)
    other.start()
    locked.wait()
    assert publish_fleet("p") is False
    done.set()
    other.join()
    assert "pool p not published" in caplog.text


@needs_locks
@pytest.mark.django_db(transaction=True)
def test_no_reader_runs_while_another_holds_the_next_order() -> None:
    """Otherwise the greater order might hold the older view."""
    events: list[str] = []
    orders: dict[str, int] = {}
    started = threading.Event()

    def has_read(name: str) -> dict[str, None]:
        events.append(name)
        return {}

    def second() -> None:
        started.set()
        orders["second"], _ = ordered_write.read_in_order(lambda: has_read("second"))
        connection.close()

    other = threading.Thread(target=second)

    def first() -> dict[str, None]:
        other.start()
        started.wait()
        other.join(timeout=0.3)  # it cannot end before this process has read
        return has_read("first")

    orders["first"], _ = ordered_write.read_in_order(first)
    other.join()
    assert events == ["first", "second"]
    assert orders["first"] < orders["second"]


# Every writer

WRITES = {"set", "setex", "psetex", "setnx", "getset", "mset", "delete", "unlink", "rename", "sadd", "srem", "expire"}
PUBLISHED = {"policy_key", "fleet_key", "order_key", "API_KEYS", "POOLS"}


def test_only_ordered_write_writes_published_values() -> None:
    modules = [path for package in ("router", "fleet", "controlplane") for path in (CODE / package).rglob("*.py")]
    product = [path for path in modules if "tests" not in path.parts and "testing" not in path.name]
    assert len(product) > 300
    found = {str(path.relative_to(CODE)): list(writes(path.read_text())) for path in product}
    assert {path for path, calls in found.items() if calls} == set()


@pytest.mark.parametrize(
    "code",
    [
        "pipe.set(redis_keys.policy_key(pool), raw)",
        "for key in (redis_keys.fleet_key(p), redis_keys.policy_key(p)):\n    pipe.delete(key)",
        "def put(pool):\n    key = redis_keys.fleet_key(pool)\n    connect().set(key, raw)",
        "client.sadd(redis_keys.POOLS, pool)",
        "pipe.set(redis_keys.API_KEYS, raw)",
    ],
)
def test_a_write_by_other_code_is_detected(code: str) -> None:
    assert list(writes(code))


def test_reading_is_not_a_write() -> None:
    assert not list(writes("raw = client.get(redis_keys.policy_key(p))\npipe.set(redis_keys.stop_key(p), raw)"))


def writes(code: str) -> Iterator[str]:
    """Return the calls that write a published key, named in the call or in a variable."""
    if not any(name in code for name in PUBLISHED):
        return
    tree = ast.parse(code)
    given = [(node.targets[0], node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    given += [(node.target, node.iter) for node in ast.walk(tree) if isinstance(node, ast.For)]
    named = {ast.unparse(target) for target, value in given if _names_a_published_key(value)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in WRITES:
            keys = call.args if call.func.attr in ("delete", "unlink", "rename") else call.args[:1]
            if any(_names_a_published_key(key) or ast.unparse(key) in named for key in keys):
                yield ast.unparse(call)


def _names_a_published_key(node: ast.AST) -> bool:
    reads = {id(child) for call in ast.walk(node) if _reads(call) for child in ast.walk(call)}
    names = (child for child in ast.walk(node) if id(child) not in reads)
    return any(getattr(child, "attr", "") in PUBLISHED or getattr(child, "id", "") in PUBLISHED for child in names)


def _reads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "mget")
