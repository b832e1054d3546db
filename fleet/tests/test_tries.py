"""In steps over many rows, a failing row does not affect the others, and a repeated failure is logged once."""

import pytest
import redis
from django.utils import timezone

from fleet import services
from fleet.control import autoscaler, nodes, publish, reconciler
from fleet.models import Instance, Pool
from fleet.tests.world import document, roll_back
from fleet.tries import RowsFailed, StepOver, is_outside, log_failure, tries


def try_each(numbers: range, odd: set[int], seen: list[int]) -> None:
    with tries() as attempt:
        for number in numbers:
            with attempt(f"row {number}"):
                if number in odd:
                    raise ValueError("odd")
                seen.append(number)


def test_each_row_gets_its_turn_and_failed_ones_are_named() -> None:
    seen: list[int] = []
    with pytest.raises(RowsFailed, match=r"^row 1: ValueError: odd; row 3: ValueError: odd$"):
        try_each(range(5), {1, 3}, seen)
    assert seen == [0, 2, 4]


def test_only_a_few_of_many_failures_are_named() -> None:
    with pytest.raises(RowsFailed, match=r"^row 0: .* row 1: .* row 2: ValueError: odd; and 7 more$"):
        try_each(range(10), set(range(10)), [])


def test_refused_rows_are_logged_once_and_our_own_errors_separately(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = {"full": redis.exceptions.OutOfMemoryError("full"), "ours": KeyError("a"), "disk": OSError(28, "No space")}

    def try_all() -> None:
        with tries() as attempt:
            for name, error in errors.items():
                with attempt(name):
                    raise error

    with pytest.raises(RowsFailed) as failed:
        try_all()
    assert [record.getMessage() for record in caplog.records] == ["ours"]
    assert not is_outside(failed.value)
    assert is_outside(RowsFailed({"full": errors["full"], "disk": errors["disk"]}))


def test_a_step_that_may_not_continue_stops_and_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []

    def try_each() -> None:
        with tries() as attempt:
            for number in range(3):
                with attempt(f"row {number}"), log_failure(number):
                    seen.append(number)
                    raise StepOver("another worker leads")

    with pytest.raises(StepOver) as ended:
        try_each()
    assert (seen, caplog.records, is_outside(ended.value)) == ([0], [], True)


def test_a_read_that_its_store_refuses_is_skipped_and_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for error in (redis.exceptions.ConnectionError("away"), KeyError("a")):
        with log_failure("pool a"):
            raise error
    lines = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
    assert lines == [("pool a: ConnectionError: away", False), ("pool a", True)]


def two_pools() -> dict[str, object]:
    made = document(1)
    pool = made["spec"]["pools"][0]
    made["spec"]["pools"] = [pool | {"name": name} for name in ("a", "b", "c")]
    return made


@pytest.fixture
def pools(db: None, fake_kind: None) -> None:
    services.apply_fleet(two_pools(), "ada")


def test_a_pool_that_cannot_be_reconciled_leaves_the_others_reconciled(
    pools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = reconciler._APPLY["create"]

    def fails(order: reconciler._ActionStep) -> bool:
        if order.pool.name == "a":
            raise PermissionError(13, "Permission denied")
        return create(order)

    monkeypatch.setitem(reconciler._APPLY, "create", fails)
    with pytest.raises(RowsFailed, match="create a-0: PermissionError"):
        reconciler.reconcile_step(timezone.now(), lambda *_: None, roll_back)
    assert sorted(Instance.objects.values_list("pool__name", flat=True)) == ["b", "c"]


UNREADABLE = [("engine", {"newer": 1}), ("update", {"newer": 1}), ("autoscale", {"newer": 1})]


@pytest.mark.parametrize(("field", "value"), UNREADABLE, ids=[field for field, _ in UNREADABLE])
def test_a_pool_that_a_newer_release_declared_keeps_its_instances_and_leaves_the_others_reconciled(
    pools: None, live_redis: redis.Redis, field: str, value: object
) -> None:
    reconciler.reconcile_step(timezone.now(), lambda *_: None, roll_back)
    Pool.objects.filter(name="a").update(**{field: value})
    Pool.objects.filter(name="b").update(replicas=2)
    with pytest.raises(RowsFailed, match="pool a: "):
        reconciler.reconcile_step(timezone.now(), lambda *_: None, roll_back)
    assert sorted(Instance.objects.values_list("name", flat=True)) == ["a-0", "b-0", "b-1", "c-0"]
    live_redis.flushall()
    assert publish.publish_step() == ["a", "b", "c"]


def test_a_pool_that_cannot_be_published_leaves_the_others_published(
    pools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = []

    def fails(name: str) -> bool:
        if name == "a":
            raise ValueError("strange")
        published.append(name)
        return True

    monkeypatch.setattr(publish, "publish_fleet", fails)
    with pytest.raises(RowsFailed, match="publish pool a: ValueError: strange"):
        publish.publish_step()
    assert published == ["b", "c"]


def test_a_pool_that_cannot_be_scaled_leaves_the_others_scaled(pools: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Pool.objects.update(autoscale={"min": 1, "max": 2})
    scaled = []

    def fails(pool: Pool, *_: object) -> None:
        if pool.name == "a":
            raise ValueError("strange")
        scaled.append(pool.name)

    monkeypatch.setattr(autoscaler, "_scale", fails)
    with pytest.raises(RowsFailed, match="pool a: ValueError: strange"):
        autoscaler.scale_step(timezone.now())
    assert sorted(scaled) == ["b", "c"]


def test_a_refused_write_of_nodes_is_logged_once_and_its_recovery_once(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fleet.control.nodes")
    full = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    def refuse(*_: object) -> None:
        raise full

    with monkeypatch.context() as away:
        away.setattr(redis.Redis, "set", refuse)
        for _ in range(5):
            nodes.publish(timezone.now())
    nodes.publish(timezone.now())
    what = "publication of the nodes"
    assert caplog.messages == [f"{what} failed: OutOfMemoryError: {full}", f"{what} works again"]
