"""The loop of plays: values in the requested order, whichever process played them."""

import os

import pytest

from controlplane.evidence.twin.plays import lanes, played
from fleet.subprocess import SubprocessFailed, run_in_subprocess


def squares(job, _send):
    return list(played(range(job[0]), lambda number: number**2, at_once=job[1]))


def processes(job, _send):
    first, second = lanes([0, 1, 2, 3, 4], lambda number: [(number, os.getpid())], job)
    return [next(first) for _ in range(3)], [next(second) for _ in range(2)]


def refused(job, _send):
    return list(played([1, 0], lambda number: job // number, at_once=2))


def ignore(*_):
    pass


@pytest.mark.parametrize("at_once", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_values_are_in_the_order_of_the_plays(count, at_once):
    assert run_in_subprocess(squares, (count, at_once), ignore, ignore) == squares((count, at_once), ignore)
    assert squares((count, at_once), ignore) == [number**2 for number in range(count)]


def test_each_lane_is_played_in_its_own_process():
    first, second = run_in_subprocess(processes, 2, ignore, ignore)
    assert ([number for number, _ in first], [number for number, _ in second]) == ([0, 2, 4], [1, 3])
    assert len({pid for _, pid in first} | {pid for _, pid in second}) == min(2, len(os.sched_getaffinity(0)))


def test_an_error_in_the_second_process_ends_the_computation_with_its_text():
    with pytest.raises(SubprocessFailed, match="ZeroDivisionError"):
        run_in_subprocess(refused, 1, ignore, ignore)
