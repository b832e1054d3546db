"""A wait continues while its mark changes, reports at intervals, and ends when nothing changes."""

import pytest

from controlplane.base.process.patience import Endless, Patience, Stands


def looks(patience, marks):
    """Poll once a second; return the seconds at which the wait was reported."""
    return [now for now, mark in enumerate(marks) if patience.look(mark, now)]


def test_a_wait_whose_mark_changes_continues_past_the_idle_limit_and_is_reported_every_15_s():
    assert looks(Patience(0, idle_s=10), range(61)) == [15, 30, 45, 60]


def test_a_mark_that_changes_just_within_the_idle_limit_continues_the_wait():
    assert looks(Patience(0, idle_s=10), [now // 9 for now in range(100)]) == [15, 30, 45, 60, 75, 90]


def test_a_mark_that_does_not_change_ends_the_wait():
    patience = Patience(0, idle_s=10)
    looks(patience, range(5))
    assert not patience.look(4, 13.9)
    with pytest.raises(Stands, match="no progress for 10 s"):
        patience.look(4, 14)


def test_a_wait_ends_even_if_its_mark_changes_forever():
    patience = Patience(0, idle_s=10, longest_s=100)
    with pytest.raises(Endless, match="not done after 100 s"):
        looks(patience, range(200))
