"""The computation in a process of its own: a worker's tasks are threads of one interpreter, and the fleet's must not
wait for seconds of a preview's arithmetic."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

from controlplane.previews.compute import Computed, Job, compute

LOOK_S = 0.25
END_S = 5.0
NICE = 10  # routers and engines on this machine go first
_SPAWN = multiprocessing.get_context("spawn")


class Broken(Exception):
    """The computation ended with an error, which the message names."""


def compute_apart(job: Job, beat: Callable[[int], None]) -> Computed:
    """`beat` is called all the while; what it raises ends the computation. Raises Broken."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    try:
        return _answer(ours, beat)
    except EOFError:
        process.join(END_S)
        raise Broken(f"its process ended with status {process.exitcode}: is there memory enough?") from None
    finally:
        process.kill()
        process.join(END_S)
        ours.close()


def _answer(pipe: Connection, beat: Callable[[int], None]) -> Computed:
    done = 0
    while True:
        beat(done)
        if not pipe.poll(LOOK_S):
            continue
        said = pipe.recv()
        if isinstance(said, Computed):
            return said
        if isinstance(said, str):
            raise Broken(said)
        done = said


def _serve(pipe: Connection, job: Job) -> None:
    """In the process: progress as numbers, then the result, or in words why there is none."""
    os.nice(NICE)
    try:
        answer: Computed | str = compute(job, pipe.send)
    except BrokenPipeError:  # nobody waits any more
        return
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    pipe.send(answer)
