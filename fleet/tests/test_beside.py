"""Values computed by a second process alongside the first."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from fleet.beside import beside
from fleet.subprocess import SubprocessFailed, run_in_subprocess
from router.contract.values.problem import InvalidInput

needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing runs beside")


def two_processes(job: float, send: Callable[[str], None]) -> tuple[list[int], list[int]]:
    """Return (the process that computed each value, this process); each value takes `job` seconds."""

    def found() -> Iterator[int]:
        for _ in range(2):
            time.sleep(job)
            yield os.getpid()

    values = beside(found, lambda: send("waiting"))
    return [next(values), next(values)], [os.getpid()]


def failing(job: None, send: Callable[[object], None]) -> None:
    def found() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    values = beside(found, lambda: None)
    next(values)
    next(values)


def refusing(job: None, send: Callable[[object], None]) -> None:
    raise InvalidInput("12 fleets (at most 9)")


def killed(job: None, send: Callable[[object], None]) -> None:
    def found() -> Iterator[int]:
        os.kill(os.getpid(), 9)
        yield 1

    next(beside(found, lambda: None))


@needs_two
def test_a_subprocess_computes_beside_a_second_process_and_reports_that_it_waits() -> None:
    said: list[str] = []
    there, here = run_in_subprocess(two_processes, 0.3, lambda: None, said.append)
    assert len({*there}) == 1
    assert {*there}.isdisjoint([*here, os.getpid()])
    assert "waiting" in said


def test_modules_that_moved_are_imported_from_here_on_request() -> None:
    there, here = two_processes(0.0, lambda said: None)
    assert {*there} == {*here}


@needs_two
def test_an_error_in_the_second_process_and_its_end_are_reported() -> None:
    with pytest.raises(SubprocessFailed, match="RuntimeError: ValueError: no second one"):
        run_in_subprocess(failing, None, lambda: None, lambda sent: None)
    with pytest.raises(SubprocessFailed, match=r"^12 fleets"):
        run_in_subprocess(refusing, None, lambda: None, lambda sent: None)
    with pytest.raises(SubprocessFailed, match="is there enough memory"):
        run_in_subprocess(killed, None, lambda: None, lambda sent: None)
