"""Computations for pages and REST, in processes beside the web process, which keeps serving. One runs at a time for
each user and AT_ONCE in total, at a lower priority than the pages; results are cached. Without an asker, as in a worker
or a command, the function is called in the calling process. The subprocesses import this module, so it must not import
Django.
"""

import contextlib
import hashlib
import pickle
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from fleet.subprocess import InputRefused, SubprocessFailed, run_in_subprocess
from router.contract.values.problem import InvalidInput

AT_ONCE = 2
WAITING = 2  # waiting computations per user in addition to the running one; each occupies a thread
WAIT_S = 20.0
LONGEST_S = 60.0  # limit on a busy machine; limits on inputs bound the work itself
REMEMBERED = 256  # cached answers of some kilobytes each
R = TypeVar("R")

Asker = Callable[[], str]  # id of the user on whose behalf a request is served; called only if needed
ASKER: ContextVar[Asker | None] = ContextVar("asker", default=None)


class Busy(Exception):
    """Too many computations are already running or waiting; the message names the kind and the user."""


class NotComputed(Exception):
    """The process of a computation failed; the message has the reason."""


class ComputingTurns:
    """The running computations, and the number waiting for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._asking: Counter[str] = Counter()

    @contextlib.contextmanager
    def turn(self, user: str) -> Iterator[None]:
        """Wait until the user's earlier computations have ended and there is capacity. Raise Busy."""
        self._enter(user)
        try:
            yield
        finally:
            self._leave(user)

    def _enter(self, user: str) -> None:
        with self._changed:
            if self._asking[user] > WAITING:
                raise Busy(f"you already have {WAITING + 1} computations running or waiting: ask again when they end")
            self._asking[user] += 1
            if not self._changed.wait_for(lambda: self._has_room(user), WAIT_S):
                self._forget(user)
                raise Busy(f"there was no room for another computation within {WAIT_S:g} s: ask again later")
            self._running.add(user)

    def _has_room(self, user: str) -> bool:
        return user not in self._running and len(self._running) < AT_ONCE

    def _leave(self, user: str) -> None:
        with self._changed:
            self._running.discard(user)
            self._forget(user)
            self._changed.notify_all()

    def _forget(self, user: str) -> None:
        self._asking[user] -= 1
        if not self._asking[user]:
            del self._asking[user]


class Remembered:
    """The latest results, by request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def put(self, key: bytes, answer: bytes) -> None:
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()


TURNS, REMEMBERING = ComputingTurns(), Remembered()


@contextlib.contextmanager
def asked_by(asker: Asker) -> Iterator[None]:
    token = ASKER.set(asker)
    try:
        yield
    finally:
        ASKER.reset(token)


def computed(function: Callable[..., R], *given: Any) -> R:
    """Return the value of a function from a module without Django; arguments and value must be picklable. Raise
    Busy, NotComputed, and the function's InvalidInput."""
    key = hashlib.sha256(pickle.dumps((function, given))).digest()
    kept = REMEMBERING.get(key)
    if kept is None:
        kept = _made(key, function, given)
    answer: R = pickle.loads(kept)  # noqa: S301 - made here, by a function of ours
    return answer


def computed_once(function: Callable[..., R], *given: Any) -> R:
    """Like `computed`, but without caching the value, as it is too large."""
    asker = ASKER.get()
    if asker is None:
        return function(*given)
    with TURNS.turn(asker()):
        answer: R = _beside(function, given)
    return answer


def _made(key: bytes, function: Callable[..., Any], given: tuple[Any, ...]) -> bytes:
    asker = ASKER.get()
    if asker is None:
        answer = pickle.dumps(function(*given))
    else:
        with TURNS.turn(asker()):
            answer = REMEMBERING.get(key) or pickle.dumps(_beside(function, given))
    REMEMBERING.put(key, answer)
    return answer


def _beside(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    end = time.monotonic() + LONGEST_S

    def beat() -> None:
        if time.monotonic() > end:
            raise Busy(f"the computation was given up after {LONGEST_S:g} s: try again when the server is less busy")

    try:
        return run_in_subprocess(_call, (function, given), beat, _ignore)
    except InputRefused as error:
        raise InvalidInput(str(error), error.problems) from None
    except SubprocessFailed as error:
        raise NotComputed(f"this could not be computed: {error}") from error


def _call(job: tuple[Callable[..., Any], tuple[Any, ...]], send: Callable[[Any], None]) -> Any:
    function, given = job
    return function(*given)


def _ignore(value: Any) -> None:
    """Ignore values sent before the result, because these computations send none."""
