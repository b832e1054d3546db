"""A second process beside the one that computes, where there is a second processor."""

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

LOOK_S = 0.1
V = TypeVar("V")
GONE = (EOFError, ConnectionError)  # the other end of the pipe

callers: list[Connection] = []  # in a process that only computes (fleet/subprocess.py): the pipe to its caller


def beside(values: Callable[[], Iterator[V]], waiting: Callable[[], None]) -> Iterator[V]:
    """The values, one after the other. In a process that only computes, another one finds them from this call on, and
    `waiting` is called while the next is not there yet; elsewhere each is found when it is asked for.

    Raises RuntimeError with the text of an error there, EOFError when it was killed.
    """
    if not callers or len(os.sched_getaffinity(0)) < 2:
        return values()
    ours, theirs = Pipe(duplex=False)
    # A fork: this process has one thread, and what the values need is not sent.
    get_context("fork").Process(target=find, args=(values, theirs), daemon=True).start()
    theirs.close()
    return _found(ours, waiting)


def find(values: Callable[[], Iterator[V]], pipe: Connection) -> None:
    """Runs in the other process."""
    for caller in callers:
        caller.close()  # who waits for it sees the end of this process's parent
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
