"""Many rows in one step: what goes wrong with one is told at the end, and keeps none of the others from its turn."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import redis
from django.db import InterfaceError, OperationalError

log = logging.getLogger(__name__)
NAMED = 3  # failures in the message; each is logged by itself, unless it comes from outside
OUTSIDE = (redis.RedisError, OperationalError, InterfaceError, OSError)  # one cause for many rows: no traceback helps

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
