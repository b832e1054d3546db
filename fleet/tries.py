"""What goes wrong with one row of a step is told at the end, and keeps none of the others from its turn;
what goes wrong every second is told once a minute.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import redis
from django.db import InterfaceError, OperationalError

log = logging.getLogger(__name__)
NAMED = 3  # failures in the message; each is logged by itself, unless it comes from outside
OUTSIDE = (redis.RedisError, OperationalError, InterfaceError, OSError)  # one cause for many rows: no traceback helps

LOGGED_AGAIN_S = 60.0

Try = Callable[[object], AbstractContextManager[None]]


def is_outside(error: Exception) -> bool:
    """Whether a store, the disk or the network failed, and not our code."""
    if isinstance(error, RowsFailed):
        return all(map(is_outside, error.errors.values()))
    return isinstance(error, OUTSIDE)


class RowsFailed(Exception):
    """The message names the rows that failed, and why; `errors` by their names."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        super().__init__(_described(errors))
        self.errors = errors


@contextmanager
def log_failure(name: object) -> Iterator[None]:
    """A row of a reading that goes on without it."""
    try:
        yield
    except OUTSIDE as error:
        log.warning("%s: %s: %s", name, type(error).__name__, error)
    except Exception:
        log.exception("%s", name)


@contextmanager
def tries() -> Iterator[Try]:
    """`with tries() as row:`, and around what is done for each one `with row(name):`. RowsFailed at the end."""
    failed: dict[str, Exception] = {}

    @contextmanager
    def row(name: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not is_outside(error):
                log.exception("%s", name)
            failed[str(name)] = error

    yield row
    if failed:
        raise RowsFailed(failed)


def _described(failed: dict[str, Exception]) -> str:
    found = [f"{name}: {type(error).__name__}: {error}" for name, error in failed.items()]
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more


def text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


@dataclass(frozen=True, slots=True)
class _Failed:
    text: str
    at: float


class Failures:
    """What fails may fail every second: each reason is logged once, and again when it has lasted for LOGGED_AGAIN_S."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._latest: dict[str, _Failed] = {}

    def failed(self, name: str, error: Exception) -> None:
        text, now = text_of(error), self._clock()
        before = self._latest.get(name)
        if before is not None and before.text == text and now - before.at < LOGGED_AGAIN_S:
            return
        self._latest[name] = _Failed(text, now)
        if is_outside(error):
            self._log.warning("%s failed: %s", name, text)
        else:
            self._log.warning("%s failed", name, exc_info=error)

    def works(self, name: str) -> None:
        if self._latest.pop(name, None) is not None:
            self._log.info("%s works again", name)
