"""A process that produces values beside the computing process, if there is a second processor."""

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

LOOK_S = 0.1
V = TypeVar("V")
GONE = (EOFError, ConnectionError)  # the other end of the pipe has closed

callers: list[Connection] = []  # in a computing subprocess (fleet/subprocess.py): the pipe to its caller


def beside(values: Callable[[], Iterator[V]], waiting: Callable[[], None]) -> Iterator[V]:
    """Yield the values in order. In a computing subprocess, a forked process produces them from this call on, and
    `waiting` is called repeatedly until the next one arrives; elsewhere each value is produced on demand. Raise
    RuntimeError with the text of an error in the forked process, EOFError if it was killed.
    """
    if not callers or len(os.sched_getaffinity(0)) < 2:
        return values()
    ours, theirs = Pipe(duplex=False)
    # A fork is safe with a single thread, and avoids pickling the inputs.
    get_context("fork").Process(target=find, args=(values, theirs), daemon=True).start()
    theirs.close()
    return _found(ours, waiting)


def find(values: Callable[[], Iterator[V]], pipe: Connection) -> None:
    """Send the values from the forked process."""
    for caller in callers:
        caller.close()  # closed here, so that the caller notices when the parent ends
    with contextlib.suppress(*GONE):
        try:
            for value in values():
                pipe.send(("value", value))
        except GONE:
            raise
        except Exception as error:
            pipe.send(("error", f"{type(error).__name__}: {error}"))


def _found(pipe: Connection, waiting: Callable[[], None]) -> Iterator[Any]:
    while True:
        while not pipe.poll(LOOK_S):
            waiting()
        kind, said = pipe.recv()
        if kind == "error":
            raise RuntimeError(said)
        yield said
