"""The computation in a separate process: the tasks of a worker are threads of one interpreter, and those of the
fleet must not wait for seconds of arithmetic."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from controlplane.previews.analysis.compute import Computed, FirstAnswer, PreviewInputs, compute

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.25
END_S = 5.0
NICE = 10  # routers and engines on this machine go first
GONE = (EOFError, ConnectionError)  # the other end of the pipe


class SubprocessFailed(Exception):
    """The message names the error."""


def compute_in_subprocess(
    job: PreviewInputs, beat: Callable[[int], None], on_first: Callable[[FirstAnswer], None] = lambda _: None
) -> Computed:
    """`beat` is called with the requests done; exceptions of both end the computation. Raises SubprocessFailed."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            argv = (sys.executable, "-m", "controlplane.previews.subprocess", str(theirs.fileno()))
            process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        try:
            ours.send(job)
            return _answer(ours, beat, on_first)
        except GONE:
            raise SubprocessFailed(
                f"its process ended with status {process.wait(END_S)}: is there enough memory?"
            ) from None
        finally:
            process.kill()
            process.wait(END_S)


def _answer(pipe: Connection, beat: Callable[[int], None], on_first: Callable[[FirstAnswer], None]) -> Computed:
    done = 0
    while True:
        beat(done)
        if not pipe.poll(LOOK_S):
            continue
        said = pipe.recv()
        if isinstance(said, Computed):
            return said
        if isinstance(said, str):
            raise SubprocessFailed(said)
        if isinstance(said, FirstAnswer):
            on_first(said)
        else:
            done = said


def serve(pipe: Connection) -> None:
    """Runs in the process. Sends progress as numbers and the first answer, then the result or the text of an error."""
    os.nice(NICE)
    with contextlib.suppress(*GONE):
        pipe.send(_result(pipe))


def _result(pipe: Connection) -> Computed | str:
    try:
        return compute(pipe.recv(), pipe.send, pipe.send)
    except GONE:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
