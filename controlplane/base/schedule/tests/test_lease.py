"""One worker leads; a worker that has lost the lease writes nothing."""

import os
import subprocess
import sys

import pytest
from django.db import IntegrityError, connection, transaction

from controlplane.base.schedule.lease import HELD_S, SILENT_S, Leadership, LeaseLost, limit_idle_transactions
from controlplane.base.schedule.models import Lease
from fleet.jobs import process_identity
from fleet.models import Node


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def first(db: None, clock: Clock) -> Leadership:
    leader = Leadership("control@a", clock=clock)
    leader.step()
    return leader


@pytest.fixture
def second(first: Leadership, clock: Clock) -> Leadership:
    return Leadership("control@b", clock=clock)


def holder() -> tuple[str, int]:
    row = Lease.objects.get()
    return row.holder, row.token


def silent_for(seconds: float, clock: Clock, waiting: Leadership) -> None:
    """Leave the lease unrenewed for that long."""
    waiting.step()
    clock.now += seconds
    waiting.step()


def test_the_first_worker_leads_at_once(first: Leadership) -> None:
    assert first.holds()
    assert holder() == ("control@a", 1)


def test_a_second_worker_waits_while_the_first_renews(first: Leadership, second: Leadership, clock: Clock) -> None:
    for _ in range(30):
        first.step()
        second.step()
        clock.now += 1.0
    assert (first.holds(), second.holds()) == (True, False)


def test_a_silent_holder_is_replaced_and_notices_when_it_wakes_up(
    first: Leadership, second: Leadership, clock: Clock
) -> None:
    silent_for(SILENT_S, clock, second)
    assert (first.holds(), second.holds()) == (False, True)
    assert holder() == ("control@b", 2)
    first.step()
    assert not first.holds()
    assert holder() == ("control@b", 2)


def test_a_holder_stops_before_another_can_take_over(first: Leadership, second: Leadership, clock: Clock) -> None:
    assert HELD_S < SILENT_S
    silent_for(HELD_S, clock, second)
    assert (first.holds(), second.holds()) == (False, False)
    first.step()
    assert first.holds()


def test_a_lease_that_was_given_back_is_taken_at_the_next_poll(first: Leadership, second: Leadership) -> None:
    first.release()
    second.step()
    assert (first.holds(), second.holds()) == (False, True)


def test_the_lease_of_a_process_that_is_gone_is_taken_at_the_next_poll(first: Leadership, second: Leadership) -> None:
    code = "import runpy; print(runpy.run_path('fleet/jobs/process_identity.py')['own']())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    Lease.objects.update(process=ended)
    second.step()
    assert second.holds()


def test_of_two_workers_that_see_the_same_silence_only_one_leads(first: Leadership, clock: Clock) -> None:
    waiting = [Leadership(f"control@{name}", clock=clock) for name in "bcd"]
    for each in waiting:
        each.step()
    clock.now += SILENT_S
    for each in waiting:
        each.step()
    assert [each.holds() for each in waiting] == [True, False, False]


def test_a_step_that_continues_after_a_takeover_writes_nothing(first: Leadership) -> None:
    with first.fenced():
        Node.objects.create(name="before")
        Lease.objects.filter(token=1).update(token=2, holder="control@b")
        with pytest.raises(LeaseLost), transaction.atomic():
            Node.objects.create(name="after")
    assert not first.holds()
    assert list(Node.objects.values_list("name", flat=True)) == ["before"]


@pytest.mark.django_db(transaction=True)
def test_a_write_outside_a_transaction_is_fenced_too_and_keeps_its_key() -> None:
    leader = Leadership("control@a")
    leader.step()
    with leader.fenced():
        made = Node.objects.create(name="n")
        assert Node.objects.get(pk=made.pk).name == "n"
        assert Node.objects.filter(name="n").update(cordoned=True) == 1
        with pytest.raises(IntegrityError):
            Node.objects.create(name="n")
        assert Node.objects.filter(name="n").delete()[0] == 1
    Lease.objects.update(token=2, holder="control@b")
    with pytest.raises(LeaseLost), leader.fenced():
        Node.objects.create(name="late")
    assert not Node.objects.exists()
    Node.objects.create(name="outside the step")


def test_a_process_that_slept_reads_nothing_more_in_its_step(first: Leadership, clock: Clock) -> None:
    with first.fenced():
        clock.now += HELD_S
        with pytest.raises(LeaseLost):
            Node.objects.count()


def test_a_process_counts_as_gone_only_where_its_host_can_be_asked() -> None:
    own = process_identity.own()
    space, pid, started = own.split("/")
    assert int(pid) == os.getpid()
    assert not process_identity.is_gone(own)
    assert process_identity.is_gone(f"{space}/{pid}/{int(started) + 1}")
    assert not process_identity.is_gone(f"elsewhere/{pid}/{int(started) + 1}")
    assert not process_identity.is_gone("")


def test_a_transaction_of_a_stopped_worker_is_ended_by_the_server(db: None) -> None:
    limit_idle_transactions(connection)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == ("4s",)
            cursor.execute("SET idle_in_transaction_session_timeout = 0")
