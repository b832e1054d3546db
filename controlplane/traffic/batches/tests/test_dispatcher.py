"""Concurrent batches of many keys, in simulated time."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from controlplane.doors.jobs import expire
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import api_caller
from controlplane.traffic.batches import dispatcher, running, services, store, turns
from controlplane.traffic.batches.dispatcher import Dispatcher
from controlplane.traffic.batches.lines import LineAnswer
from controlplane.traffic.batches.models import Batch
from controlplane.traffic.batches.tests.test_batches import AtOnce, Caller
from controlplane.traffic.batches.tests.test_lines import CHAT, line
from controlplane.traffic.batches.turns import EngineReports
from fleet import jobs
from router.contract.redis.sample import InstanceSample

pytestmark = pytest.mark.django_db
WHOLE = {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 100, "completion_tokens": 200}}
QUOTA = (429, {"error": {"code": "insufficient_quota", "message": "the budget of this key is used up"}})
Answer = tuple[int, Any]


class Routers:
    """Each line takes a second; `answers` returns an answer other than WHOLE at once."""

    def __init__(self) -> None:
        self.urls = ["http://router"]
        self.now = 0.0
        self.answers: Callable[[int, dict[str, Any]], Answer | None] = lambda key, body: None
        self.asked: list[tuple[int, str]] = []
        self.under_way: list[tuple[float, int, Future[LineAnswer]]] = []
        self.most: Counter[int] = Counter()

    def send(self, key_id: int, api_path: str, body: bytes, request_id: str) -> Future[LineAnswer]:
        future: Future[LineAnswer] = Future()
        self.asked.append((key_id, request_id))
        answer = self.answers(key_id, json.loads(body))
        if answer is not None:
            future.set_result(LineAnswer(answer[0], request_id, json.dumps(answer[1]).encode()))
        else:
            self.under_way.append((self.now + 1.0, key_id, future))
            self.most[key_id] = max(self.most[key_id], sum(key == key_id for _, key, _ in self.under_way))
        return future

    def go_on(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)
        due = [one for one in self.under_way if one[0] <= self.now]
        self.under_way = [one for one in self.under_way if one[0] > self.now and not one[2].cancelled()]
        for _, _, future in due:
            if future.set_running_or_notify_cancel():
                future.set_result(LineAnswer(200, "r", json.dumps(WHOLE).encode()))


class Scene:
    """A dispatcher in simulated time; `wall` is the clock of windows, which runs with that of the routers."""

    def __init__(self, wall: time_machine.Traveller) -> None:
        self.routers, self.wall = Routers(), wall
        self.ended: dict[str, float] = {}
        urls = lambda: self.routers.urls  # noqa: E731
        self.dispatcher = Dispatcher(self.routers, AtOnce(), urls, self.idle, lambda: self.routers.now)

    def idle(self) -> EngineReports:
        at = float(int(self.routers.now))  # a new sample each second
        return EngineReports({"pool": [InstanceSample(id="i", epoch=1, at=at, waiting=0.0, kv_usage=0.1)]})

    def play(self, seconds: float = 0.0, until: Callable[[], bool] = lambda: False, *, by: float = 0.5) -> None:
        """Simulate this duration in steps of `by` seconds, or until all lines with a slot or due have ended."""
        end = self.routers.now + (seconds or 10_000)
        while self.routers.now < end and not until():
            goes_on = self.dispatcher.step()
            self.routers.go_on(by)
            self.wall.shift(by)
            if not goes_on and not seconds:
                return

    def end_of(self, *names: str) -> dict[str, float]:
        """Simulate until the batches have ended; return name → time of its end."""
        ends: dict[str, float] = {}

        def all_have_ended() -> bool:
            rows = Batch.objects.filter(name__in=names).exclude(closed_at=None).values_list("name", flat=True)
            for name in rows:
                ends.setdefault(name, self.routers.now)
            return len(ends) == len(names)

        self.play(until=all_have_ended)
        assert all_have_ended()
        return ends


@pytest.fixture
def scene(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(jobs, "send", lambda job: None)
    with time_machine.travel(timezone.now(), tick=False) as wall:
        made = Scene(wall)
        yield made
        made.dispatcher.release()


def lines(number: int, model: str = "m") -> list[bytes]:
    return [line(str(i), body={"model": model}) for i in range(number)]


def shown(caller: Caller, name: str) -> Any:
    return caller.get(f"/v1/batches/{name}")


@pytest.mark.attacks
@pytest.mark.timeout(120)
def test_eighteen_keys_end_as_if_alone_beside_a_stuck_and_a_huge_one(scene: Scene) -> None:
    others = [Caller(f"key-{i}") for i in range(18)]
    first = [caller.batch(*lines(20)) for caller in others]
    alone = scene.end_of(*first)
    began = scene.routers.now
    stuck, huge = Caller("stuck"), Caller("huge")
    scene.routers.answers = lambda key, body: QUOTA if key == stuck.row.pk else None
    names = [stuck.batch(*lines(10)), huge.batch(*lines(1_000)), *(caller.batch(*lines(20)) for caller in others)]
    beside = scene.end_of(*names[2:])
    for early, late in zip(first, names[2:], strict=True):
        assert (beside[late] - began) / alone[early] < 1.1
    assert shown(huge, names[1])["request_counts"]["completed"] >= 20
    assert shown(stuck, names[0])["waiting"]["code"] == "insufficient_quota"


def test_a_batch_that_cannot_send_says_why_retries_and_is_completed(
    scene: Scene, otto: Any, otto_client: Client
) -> None:
    alice, bob = Caller("alice"), Caller("bob")
    used_up = [True]
    scene.routers.answers = lambda key, body: QUOTA if key == alice.row.pk and used_up[0] else None
    stuck, quick = alice.batch(*lines(10)), bob.batch(*lines(3))
    assert shown(alice, stuck)["waiting"] == {
        "code": "turn",
        "message": "it waits for its turn",
        "asked_again_at": None,
    }
    scene.play(5.0)
    assert shown(bob, quick)["status"] == "completed"
    assert shown(bob, quick)["waiting"] is None
    waiting = shown(alice, stuck)["waiting"]
    assert (waiting["code"], waiting["message"]) == ("insufficient_quota", "the budget of this key is used up")
    assert waiting["asked_again_at"] >= shown(alice, stuck)["in_progress_at"]
    assert shown(alice, stuck)["status"] == "in_progress"
    (row,) = [one for one in api_caller(otto).get("/batches").json() if one["name"] == stuck]
    assert (row["waits"], row["asked_again_at"] is not None) == ("the budget of this key is used up", True)
    page = otto_client.get("/batches/").content.decode()
    assert page.count("the budget of this key is used up; next check") == 1
    used_up[0] = False
    scene.end_of(stuck)
    assert shown(alice, stuck)["waiting"] is None
    assert shown(alice, stuck)["request_counts"] == {"total": 10, "completed": 10, "failed": 0}


def test_a_stuck_batch_retries_with_one_line_at_growing_intervals(scene: Scene) -> None:
    alice = Caller("alice")
    scene.routers.answers = lambda key, body: (503, {"error": {"code": "no_instance_ready", "message": "none"}})
    alice.batch(*lines(50))
    scene.play(600.0, by=5.0)
    assert len(scene.routers.asked) < 4 + 6 + 600 / 60 + 1


def test_while_no_router_is_live_nothing_is_sent_and_the_batch_says_so(scene: Scene) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(2))
    scene.routers.urls = []
    scene.play(5.0)
    assert (scene.routers.asked, shown(alice, name)["waiting"]["code"]) == ([], "no_router")
    scene.routers.urls = ["http://router"]
    scene.end_of(name)
    assert shown(alice, name)["status"] == "completed"


def test_a_window_excludes_waiting_for_others_but_includes_waiting_for_its_own_reasons(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PLACES", 1)
    alice, bob = Caller("alice"), Caller("bob")
    first, second = alice.batch(*lines(90), window="1h"), bob.batch(*lines(4), window="1h")
    scene.play(2.0)
    Batch.objects.filter(name=second).update(due_at=timezone.now() - timedelta(hours=3))
    assert shown(bob, second)["expires_at"] - shown(bob, second)["created_at"] in (4 * 3600, 4 * 3600 + 1)
    scene.end_of(first, second)
    row = Batch.objects.get(name=second)
    assert (row.state, row.completed) == ("completed", 4)
    assert 3 * 3600 <= row.waited_s < 3 * 3600 + 60
    assert Batch.objects.get(name=first).waited_s < 5.0
    scene.routers.answers = lambda key, body: QUOTA
    stuck = bob.batch(*lines(4), window="1h")
    scene.play(60.0)
    assert Batch.objects.get(name=stuck).waited_s < 5.0
    Batch.objects.filter(name=stuck).update(created_at=timezone.now() - timedelta(hours=1))
    scene.dispatcher.release()
    Batch.objects.filter(name=stuck).update(due_at=timezone.now())
    scene.end_of(stuck)
    made = shown(bob, stuck)
    assert (made["status"], made["request_counts"]["failed"]) == ("expired", 4)
    assert {one["error"]["code"] for one in bob.content(made["error_file_id"]).values()} == {"batch_expired"}


def test_a_batch_whose_lines_have_no_room_is_not_charged(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher.Turns, "_has_room", lambda self, key, lane: False)
    name = Caller("alice").batch(*lines(4))
    scene.play(60.0, by=2.0)
    assert Batch.objects.get(name=name).waited_s == pytest.approx(60, abs=6)


def test_a_stuck_batch_gives_its_slot_to_a_key_without_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PLACES", 2)
    stuck = [Caller(f"stuck-{i}") for i in range(4)]
    late = Caller("late")
    scene.routers.answers = lambda key, body: None if key == late.row.pk else QUOTA
    waiting = [caller.batch(*lines(3)) for caller in stuck]
    scene.play(5.0)
    name = late.batch(*lines(3))
    scene.end_of(name)
    assert scene.routers.now < 5.0 + 4 * turns.LEAST_S
    assert {Batch.objects.get(name=one).state for one in waiting} == {"in_progress", "validating"} or {
        Batch.objects.get(name=one).state for one in waiting
    } == {"in_progress"}
    asked = {key for key, _ in scene.routers.asked}
    scene.play(60.0)
    assert asked | {key for key, _ in scene.routers.asked} == {caller.row.pk for caller in [*stuck, late]}


def test_many_queued_batches_of_one_key_hide_no_batch_of_another(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = Caller("alice"), Caller("bob")
    for _ in range(6):
        alice.batch(*lines(500))
    late = bob.batch(*lines(3))
    scene.play(0.5)
    names = Batch.objects.filter(status=jobs.RUNNING).values_list("key__name", flat=True)
    assert sorted(names) == ["alice", "alice", "bob"]
    monkeypatch.setattr(services, "MOST_BATCHES", 6)
    file = alice.get("/v1/files")["data"][0]["id"]
    refused = alice.post("/v1/batches", 429, input_file_id=file, endpoint=CHAT, completion_window="24h")
    assert refused["error"]["code"] == "too_many_batches"
    scene.end_of(late)


@pytest.mark.attacks
def test_two_huge_batches_share_one_slot_in_turns(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PLACES", 1)
    monkeypatch.setattr(turns, "TURN_S", 10.0)
    callers = [Caller("alice"), Caller("bob")]
    names = [caller.batch(*lines(1_500)) for caller in callers]
    scene.play(50.0)
    sent = Counter(key for key, _ in scene.routers.asked)
    assert min(sent.values()) > 0.3 * max(sent.values())
    scene.end_of(*names)
    for caller, name in zip(callers, names, strict=True):
        assert shown(caller, name)["request_counts"] == {"total": 1_500, "completed": 1_500, "failed": 0}
    assert len(scene.routers.asked) == 3_000


def test_a_second_worker_neither_sends_nor_takes_the_lines_of_the_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(100))
    scene.play(2.0)
    second = Scene(scene.wall)
    second.play(2.0)
    assert second.routers.asked == []
    started = list[Any]()
    monkeypatch.setattr(running, "sending", started.append)
    Caller("bob").batch(*lines(1))
    with store.alone(store.DISPATCHER):
        running.run_batches()
    assert started == []
    scene.end_of(name)
    assert len(scene.routers.asked) == len(set(scene.routers.asked)) == 101


def test_messages_that_a_worker_did_not_handle_go_to_another_one(scene: Scene) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(100))
    scene.play(3.0)
    scene.dispatcher.release()
    answered = Batch.objects.get(name=name).completed
    assert 0 < answered < 100
    assert Batch.objects.get(name=name).status == jobs.QUEUED
    under_way, sent = len(scene.routers.under_way), len(scene.routers.asked)
    second = Scene(scene.wall)
    second.end_of(name)
    assert shown(alice, name)["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
    assert len(alice.content(shown(alice, name)["output_file_id"])) == 100
    assert len(second.routers.asked) == 100 - sent + under_way


def test_a_batch_declared_lost_is_released_and_only_the_downtime_is_added(scene: Scene) -> None:
    name = Caller("alice").batch(*lines(500))
    scene.play(2.0)
    silent = timezone.now() - timedelta(seconds=90)
    Batch.objects.filter(name=name).update(heartbeat_at=silent)
    expire.step()
    row = Batch.objects.get(name=name)
    assert (row.status, row.due_at) == (jobs.QUEUED, silent)
    before = [future for _, _, future in scene.routers.under_way]
    scene.play(0.5)
    assert before
    assert all(future.cancelled() for future in before)
    scene.end_of(name)
    row.refresh_from_db()
    assert (row.state, row.completed) == ("completed", 500)
    assert 90 <= row.waited_s < 100


def test_an_error_of_one_batch_ends_only_that_batch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = Caller("alice"), Caller("bob")
    bad, good = alice.batch(*lines(50)), bob.batch(*lines(50))
    scene.play(2.0)
    add = store.BatchResults.add

    def full(self: store.BatchResults, path: Path, *given: Any) -> None:
        if bad in str(path):
            raise OSError(28, "No space left on device")
        add(self, path, *given)

    monkeypatch.setattr(store.BatchResults, "add", full)
    scene.play(3.0)
    assert Batch.objects.get(name=bad).cause == "[Errno 28] No space left on device"
    monkeypatch.undo()
    services.close_left()
    scene.end_of(good)
    assert (shown(alice, bad)["status"], shown(bob, good)["request_counts"]["completed"]) == ("failed", 50)


def test_while_the_database_is_unreachable_lines_continue_and_nothing_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(20))
    scene.play(2.0)

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(dispatcher.services, "due", away)
        patched.setattr(jobs, "of_this_start", away)
        patched.setattr(jobs, "end", away)
        scene.play(30.0)
    assert len(scene.routers.asked) == 20
    scene.end_of(name)
    assert shown(alice, name)["request_counts"] == {"total": 20, "completed": 20, "failed": 0}


def test_an_answer_with_an_error_is_a_failed_line(scene: Scene) -> None:
    alice = Caller("alice")
    bodies = {
        "ok": WHOLE,
        "error": {"error": {"message": "EngineCore died", "code": 500}},
        "abort": {"choices": [{"finish_reason": "abort"}], "usage": {"prompt_tokens": 7, "completion_tokens": 9}},
        "mistake": {"error": {"message": "too long", "code": 400}},
    }
    scene.routers.answers = lambda key, body: (200, bodies[body["model"]])
    name = alice.batch(*(line(model, body={"model": model}) for model in bodies))
    scene.end_of(name)
    made = shown(alice, name)
    assert made["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (100, 200)
    assert alice.content(made["output_file_id"]).keys() == {"ok"}
    errors = alice.content(made["error_file_id"])
    assert {key: one["error"]["message"] for key, one in errors.items()} == {
        "error": "EngineCore died",
        "abort": "the engine abandoned the answer: finish_reason abort",
        "mistake": "too long",
    }
    assert {one["error"]["code"] for one in errors.values()} == {"engine_error"}
    assert errors["abort"]["response"]["body"] == bodies["abort"]
    tries = Counter(name for _, name in scene.routers.asked)
    assert sorted(tries.values()) == [1, 1, dispatcher.TRIES, dispatcher.TRIES]


def test_a_cancelled_batch_frees_its_slot_and_its_lines(scene: Scene) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(50))
    scene.play(3.0)
    alice.post(f"/v1/batches/{name}/cancel")
    scene.end_of(name)
    made = shown(alice, name)
    assert made["status"] == "cancelled"
    assert made["request_counts"]["completed"] + made["request_counts"]["failed"] == 50
    assert scene.dispatcher.step() is False


def test_an_api_keys_actions_on_files_and_batches_are_audited(scene: Scene) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(1))
    alice.post(f"/v1/batches/{name}/cancel")
    file = alice.upload(b"x")["id"]
    alice.client.delete(f"/v1/files/{file}")
    rows = AuditEntry.objects.exclude(action="key.create").order_by("pk")
    assert [(row.action, row.subject.split()[0]) for row in rows] == [
        ("file.upload", "file"),
        ("batch.create", "batch"),
        ("batch.cancel", "batch"),
        ("file.upload", "file"),
        ("file.delete", "file"),
    ]
    assert {(row.actor_kind, row.actor_name) for row in rows} == {("token", "API key alice")}
    assert rows[1].after == {
        "endpoint": CHAT,
        "input_file": shown(alice, name)["input_file_id"],
        "completion_window": "24h",
    }


def test_rows_of_an_older_version_are_sent(scene: Scene) -> None:
    alice = Caller("alice")
    name = alice.batch(*lines(2))
    Batch.objects.filter(name=name).update(due_at=None)
    assert shown(alice, name)["expires_at"] == shown(alice, name)["created_at"] + 86_400
    scene.end_of(name)
    assert shown(alice, name)["status"] == "completed"
    assert Batch.objects.get(name=name).waited_s < 5


def test_a_late_batch_is_sent_to_a_worker_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[str]()
    monkeypatch.setattr(jobs, "send", lambda job: sent.append(job.name))
    alice = Caller("alice")
    first, waiting = alice.batch(*lines(1)), alice.batch(*lines(1))
    now = timezone.now()
    services.send_due(now)
    assert sent == []
    Batch.objects.filter(name=waiting).update(due_at=now + timedelta(minutes=1))
    Batch.objects.update(sent_at=now - timedelta(seconds=jobs.SENT_AGAIN_S))
    services.send_due(now)
    services.send_due(now)
    assert sent == [first]
    services.send_due(now + timedelta(minutes=1, seconds=1))
    assert sent == [first, first]
