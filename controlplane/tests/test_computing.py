"""Computations run outside the web process, one at a time for each user, and their results are cached."""

import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controlplane.common import computing
from controlplane.common.computing import Busy, ComputingTurns, NotComputed, asked_by, computed
from controlplane.evidence.systems.registry import SYSTEMS
from controlplane.evidence.traces.types import BadTrace
from fleet.tests.test_beside import refusing
from router.contract.values.problem import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
SHARED = "import sys; {}; print([name for name in sys.modules if name.split('.')[0] == 'django'])"


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    computing.REMEMBERING.clear()
    yield
    computing.REMEMBERING.clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The record of what was computed; each call returns its number."""
    made: list[Any] = []

    def beside(function: Any, given: Any) -> int:
        made.append(given)
        return len(made)

    monkeypatch.setattr(computing, "_beside", beside)
    return made


class Held:
    """Users that occupy their turn until released."""

    def __init__(self, turns: ComputingTurns, *users: str) -> None:
        self.turns, self.users = turns, users
        self.go, self.pool = threading.Event(), ThreadPoolExecutor(8)
        self.order: list[str] = []

    def __enter__(self) -> "Held":
        for user in self.users:
            self.ask(user)
        while len(self.order) < len(self.users):
            time.sleep(0.001)
        return self

    def ask(self, user: str) -> Any:
        def hold() -> None:
            with self.turns.turn(user):
                self.order.append(user)
                self.go.wait(30)

        return self.pool.submit(hold)

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.pool.shutdown()


def test_a_user_computes_one_thing_at_a_time_and_leaves_room_for_another() -> None:
    turns = ComputingTurns()
    with Held(turns, "vera") as held:
        second = held.ask("vera")
        with turns.turn("otto"):
            assert held.order == ["vera"]
        assert not second.done()
    assert held.order == ["vera", "vera"]


def test_a_users_fourth_waiting_computation_is_refused_at_once() -> None:
    turns = ComputingTurns()
    with Held(turns, "vera") as held:
        waiting = [held.ask("vera") for _ in range(computing.WAITING)]
        while turns._asking["vera"] <= computing.WAITING:
            time.sleep(0.001)
        with pytest.raises(Busy, match="you already have 3 computations running or waiting"), turns.turn("vera"):
            pass
    assert all(each.result() is None for each in waiting)
    assert not turns._asking
    with turns.turn("vera"):
        pass


def test_without_room_in_time_a_computation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ComputingTurns()
    with Held(turns, *(f"user {n}" for n in range(computing.AT_ONCE))):
        monkeypatch.setattr(computing, "WAIT_S", 0.01)
        with pytest.raises(Busy, match=r"no room for another computation within 0\.01 s"), turns.turn("vera"):
            pass
    assert not turns._asking


def test_the_same_question_is_computed_once_and_its_result_belongs_to_the_user(calls: list[Any]) -> None:
    with asked_by(lambda: "vera"):
        assert [computed(sorted, [2, 1]), computed(sorted, [2, 1]), computed(sorted, [3])] == [1, 1, 2]
    assert calls == [([2, 1],), ([3],)]


def test_two_users_with_the_same_question_wait_for_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    start, made = threading.Barrier(2, timeout=30), list[str]()
    real = computing.TURNS.turn

    def turn(user: str) -> Any:
        start.wait()
        return real("both")

    monkeypatch.setattr(computing.TURNS, "turn", turn)
    monkeypatch.setattr(computing, "_beside", lambda function, given: made.append("once") or function(*given))

    def ask(user: str) -> list[int]:
        with asked_by(lambda: user):
            return computed(sorted, [2, 1])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, ["vera", "otto"])) == [[1, 2], [1, 2]]
    assert made == ["once"]


def test_the_oldest_results_are_dropped_from_the_cache(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "REMEMBERED", 2)
    with asked_by(lambda: "vera"):
        for number in (1, 2, 1, 3, 1, 2):
            computed(abs, number)
    assert calls == [(1,), (2,), (3,), (2,)]


def test_a_worker_without_a_user_computes_in_its_own_process(calls: list[Any]) -> None:
    assert computed(sorted, [2, 1]) == [1, 2]
    assert calls == []


def test_a_computation_for_someone_runs_in_another_process_at_a_lower_priority() -> None:
    with asked_by(lambda: "vera"):
        assert computed(os.getpid) != os.getpid()
        assert computed(os.nice, 0) > os.nice(0)


def test_a_failed_computation_is_not_cached() -> None:
    with asked_by(lambda: "vera"):
        for _ in range(2):
            with pytest.raises(NotComputed, match="this could not be computed: ValueError: math domain error"):
                computed(math.sqrt, -1)


def test_input_refused_in_the_other_process_is_refused_here() -> None:
    with asked_by(lambda: "vera"), pytest.raises(InvalidInput, match=r"^12 fleets"):
        computed(refusing, None, abs)


def test_a_computation_that_never_ends_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "LONGEST_S", 0.0)
    with asked_by(lambda: "vera"), pytest.raises(Busy, match="given up after 0 s"):
        computed(time.sleep, 60)


def test_computations_outside_the_web_process_need_no_django() -> None:
    names = {system.compute.__module__ for system in SYSTEMS.values() if system.beside}
    names |= {system.figures.__module__ for system in SYSTEMS.values() if system.slug != "offload"}
    names |= {
        "controlplane.evidence.traces.summary",
        "controlplane.evidence.systems.offload_trace",
        "controlplane.common.computing",
    }
    names.add("controlplane.evidence.experiments.results.statistics.comparison")
    code = SHARED.format(f"import {', '.join(sorted(names))}")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_error_of_a_trace_is_passed_completely_from_another_process() -> None:
    error = BadTrace(4, "input_length", "x" * 100, "a whole number")
    again = pickle.loads(pickle.dumps(error))
    assert (again.path, again.value, again.allowed) == (error.path, error.value, error.allowed)
    assert str(again) == str(error)
