"""The computation in a process of its own: a worker's tasks are threads of one interpreter, and the fleet's must not
wait for seconds of a preview's arithmetic."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from controlplane.previews.analysis.compute import Computed, PreviewInputs, compute

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.25
END_S = 5.0
NICE = 10  # routers and engines on this machine go first
GONE = (EOFError, ConnectionError)  # whoever is at the other end


class Broken(Exception):
    """The computation ended with an error, which the message names."""


def compute_apart(job: PreviewInputs, beat: Callable[[int], None]) -> Computed:
    """`beat` is called all the while; what it raises ends the computation. Raises Broken."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            argv = (sys.executable, "-m", "controlplane.previews.subprocess", str(theirs.fileno()))
            process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        try:
            ours.send(job)
            return _answer(ours, beat)
        except GONE:
            raise Broken(f"its process ended with status {process.wait(END_S)}: is there memory enough?") from None
        finally:
            process.kill()
            process.wait(END_S)


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


def serve(pipe: Connection) -> None:
    """In the process: progress as numbers, then the result, or in words why there is none."""
    os.nice(NICE)
    with contextlib.suppress(*GONE):
        pipe.send(_result(pipe))


def _result(pipe: Connection) -> Computed | str:
    try:
        return compute(pipe.recv(), pipe.send)
    except GONE:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
