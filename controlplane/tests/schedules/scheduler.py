"""Actors in threads. One runs at a time, from one seam to the next, as the schedule says. An actor is a piece of the
real code: a publication, a step of the judge, a router's poll. At each seam (`at`, `at_async`) it stops and hands
control back; `go_on` lets it continue, with an order about the effect that it was about to have. Nothing runs
concurrently, so the same schedule always has the same result.
"""

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

from fleet.tries import RowsFailed


class Order(Enum):
    GO = "goes on"
    CUT_BEFORE = "is cut before"  # the connection breaks before the effect
    CUT_AFTER = "is cut after"  # after the effect, but the answer is lost
    TWICE = "does twice"  # a client that lost the answer tries again
    DIE = "dies before"


class Died(BaseException):
    """The process is gone. No handler of the code under test catches it, and no seam has an effect after it."""


Errors = tuple[type[Exception], ...]
FAR = ("a seam", "to a write", "to its end")  # how far an actor continues; most races are about who writes last


class Actor:
    def __init__(self, name: str, work: Callable[[], object], expected: Errors) -> None:
        self.name = name
        self.seam, self.writes = "its begin", False  # its current seam, and whether its next step writes
        self.ended = self.dead = False
        self.error: Exception | None = None  # the error that ended it
        self._expected = expected
        self._work = work
        self._order = Order.GO
        self._baton, self._returned = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        """Run an actor in a thread of the pool."""
        here.actor = self
        try:
            self.stop_at(self.seam)
            self._work()
        except Died:
            pass
        except Exception as error:
            self.error = error
        finally:
            here.actor = None
            self.ended, self.seam = True, "its end"
            self._returned.release()

    @property
    def failed(self) -> bool:
        return not all(isinstance(error, self._expected) for error in _each(self.error))

    def stop_at(self, seam: str, writes: bool = False) -> Order:
        if not self.dead:
            self.seam, self.writes = seam, writes
            self._returned.release()
            self._baton.acquire()
        if self.dead or self._order is Order.DIE:
            self.dead = True
            raise Died
        return self._order

    def hand(self, order: Order) -> None:
        """Let the actor run to its next seam."""
        self._order = order
        self._baton.release()
        self.wait()

    def wait(self) -> None:
        if not self._returned.acquire(timeout=60):
            raise AssertionError(f"{self.name} came to no seam after {self.seam}: it waits for another actor")


def _each(error: Exception | None) -> list[Exception]:
    """Return the error of an actor; for a step over many rows, those of all rows."""
    if isinstance(error, RowsFailed):
        return list(error.errors.values())
    return [] if error is None else [error]


class _Here(threading.local):
    actor: Actor | None = None


here = _Here()


class Scheduler:
    """`looked` is called each time an actor has stopped."""

    def __init__(self, threads: ThreadPoolExecutor, looked: Callable[[], None]) -> None:
        self._threads = threads
        self._looked = looked
        self.actors: list[Actor] = []
        self.acting: Actor  # the actor that took the last step

    def begin(self, name: str, work: Callable[[], object], expected: Errors = ()) -> Actor:
        """Start an actor; `expected` are the errors with which it may end."""
        actor = Actor(name, work, expected)
        self._threads.submit(actor.run)
        actor.wait()
        self.actors.append(actor)
        return actor

    def go_on(self, actor: Actor, order: Order = Order.GO) -> None:
        self.acting = actor
        actor.hand(order)
        if actor.ended:
            self.actors.remove(actor)
            if actor.failed and actor.error is not None:
                raise actor.error
        self._looked()

    def go(self, actor: Actor, far: str) -> None:
        """Let the actor continue; `far` is one of FAR."""
        while not actor.ended:
            self.go_on(actor)
            if far == "a seam" or (far == "to a write" and actor.writes):
                return

    def kill_all(self) -> None:
        for actor in list(self.actors):
            actor.hand(Order.DIE)
        self.actors.clear()


def at(seam: str, writes: bool, effect: Callable[[], Any], broken: Callable[[], Exception]) -> Any:
    """Apply the effect as the schedule orders. `broken` is raised to the caller when the connection breaks."""
    if here.actor is None:
        return effect()
    order = here.actor.stop_at(seam, writes)
    if order is Order.CUT_BEFORE:
        raise broken()
    if order is Order.TWICE:
        effect()
    answer = effect()
    if order is Order.CUT_AFTER:
        raise broken()
    return answer


async def at_async(
    seam: str, writes: bool, effect: Callable[[], Awaitable[Any]], broken: Callable[[], Exception]
) -> Any:
    """Do the same as `at` in an actor's own event loop."""
    if here.actor is None:
        return await effect()
    order = here.actor.stop_at(seam, writes)
    if order is Order.CUT_BEFORE:
        raise broken()
    if order is Order.TWICE:
        await effect()
    answer = await effect()
    if order is Order.CUT_AFTER:
        raise broken()
    return answer
