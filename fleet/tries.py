"""Isolates the rows of a step from each other's failures, which are reported together at the end. A failure that
repeats every second is logged once a minute."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import redis
from django.db import InterfaceError, OperationalError

log = logging.getLogger(__name__)


class StepOver(Exception):
    """The step must not continue: the remaining rows are skipped."""


NAMED = 3  # number of failures in the message; each is also logged, unless its cause is outside
OUTSIDE = (
    redis.RedisError,
    OperationalError,
    InterfaceError,
    OSError,
    StepOver,
)  # one cause affects many rows, so no traceback

LOGGED_AGAIN_S = 60.0

Try = Callable[[object], AbstractContextManager[None]]


def is_outside(error: Exception) -> bool:
    """Return whether a store, the disk or the network failed, rather than Weir's code."""
    if isinstance(error, RowsFailed):
        return all(map(is_outside, error.errors.values()))
    return isinstance(error, OUTSIDE)


class RowsFailed(Exception):
    """Rows failed; the message names them and why. `errors` holds the errors by row."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        super().__init__(_described(errors))
        self.errors = errors


@contextmanager
def log_failure(name: object) -> Iterator[None]:
    """Log an exception in the block and carry on."""
    try:
        yield
    except StepOver:
        raise
    except OUTSIDE as error:
        log.warning("%s: %s: %s", name, type(error).__name__, error)
    except Exception:
        log.exception("%s", name)


@contextmanager
def tries() -> Iterator[Try]:
    """Process rows: write `with tries() as row:`, and do the work on each row in `with row(name):`. Raise RowsFailed at
    the end.
    """
    failed: dict[str, Exception] = {}

    @contextmanager
    def row(name: object) -> Iterator[None]:
        try:
            yield
        except StepOver:
            raise
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
    """A log of repeated failures: each reason is logged once, and again after it has lasted for LOGGED_AGAIN_S."""

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
