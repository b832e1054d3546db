"""Many deadlines share one timer."""

import asyncio

from router.timers import Deadlines


class Clock:
    """The part of an event loop that deadlines need; time passes only on request."""

    def __init__(self):
        self.now = 0.0
        self.timers = []
        self.soon = []

    def time(self):
        return self.now

    def call_at(self, at, call):
        timer = Timer(at, call)
        self.timers.append(timer)
        return timer

    def call_soon(self, call, *arguments):
        self.soon.append(Timer(0.0, lambda: call(*arguments)))
        return self.soon[-1]

    def busy_to(self, now):
        """Let time pass while the loop is busy, then run what is due."""
        self.now = now
        self.pass_to(now)

    def run_passes(self):
        while self.soon:
            self.soon.pop(0).call()

    def pass_to(self, now):
        while due := [timer for timer in self.timers if not timer.cancelled and timer.at <= now]:
            timer = min(due, key=lambda timer: timer.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = now

    @property
    def pending(self):
        return sum(not timer.cancelled for timer in self.timers)


class Timer:
    def __init__(self, at, call):
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self):
        self.cancelled = True


def made():
    clock, expired = Clock(), []
    return clock, Deadlines(clock, expired.append), expired


def test_a_deadline_that_is_not_stopped_expires_once():
    clock, deadlines, expired = made()
    deadlines.start("a", 5)
    clock.pass_to(4.9)
    assert expired == []
    clock.pass_to(20)
    assert expired == ["a"]


def test_a_stopped_deadline_does_not_expire():
    clock, deadlines, expired = made()
    deadlines.start("a", 5)
    deadlines.stop("a")
    deadlines.stop("never started")
    clock.pass_to(20)
    assert (expired, len(deadlines), clock.pending) == ([], 0, 0)


def test_starting_a_deadline_again_restarts_its_time():
    clock, deadlines, expired = made()
    deadlines.start("a", 5)
    clock.pass_to(4)
    deadlines.start("a", 5)
    clock.pass_to(8)
    assert expired == []
    clock.pass_to(9.1)
    assert expired == ["a"]


def test_a_shorter_limit_is_kept_beside_longer_ones_and_there_is_one_timer():
    clock, deadlines, expired = made()
    for number in range(1000):
        deadlines.start(number, 60)
    deadlines.start("short", 1)
    assert clock.pending == 1
    clock.pass_to(1.1)
    assert expired == ["short"]
    clock.pass_to(61)
    assert len(expired) == 1001


def test_an_expired_item_may_start_another_deadline():
    clock, expired = Clock(), []
    deadlines = Deadlines(clock, lambda item: (expired.append(item), item == "a" and deadlines.start("b", 1.0)))
    deadlines.start("a", 1.0)
    clock.pass_to(1.0)
    assert (expired, clock.pending) == (["a"], 1)
    clock.pass_to(3.0)
    assert (expired, clock.pending) == (["a", "b"], 0)


async def test_deadlines_run_on_a_real_loop():
    over = asyncio.Event()
    deadlines = Deadlines(asyncio.get_running_loop(), lambda item: over.set())
    deadlines.start("a", 0.01)
    async with asyncio.timeout(20):
        await over.wait()


def test_a_stop_while_the_loop_was_busy_counts_as_in_time():
    clock, deadlines, expired = made()
    deadlines.start("a", 1.0)
    deadlines.start("b", 1.0)
    clock.busy_to(3.0)
    deadlines.stop("a")  # in the first iteration after it
    clock.run_passes()
    assert expired == ["b"]


def test_a_deadline_that_starts_while_a_late_check_is_due_has_its_full_time():
    clock, deadlines, expired = made()
    deadlines.start("a", 1.0)
    clock.busy_to(3.0)
    deadlines.start("b", 1.0)
    clock.run_passes()
    assert expired == ["a"]
    clock.pass_to(4.1)
    assert expired == ["a", "b"]
