"""Runs a computation in a separate process: a worker's tasks are threads of one interpreter, and tasks of the fleet
must not wait for seconds of arithmetic."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from fleet import beside
from router.compiled import CompiledCopy
from router.contract.values.problem import InvalidInput, Problem, shown

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 0.25
END_S = 5.0
NICE = 10  # routers and engines on this machine have priority
COLLECTED_EVERY = 50_000  # objects allocated between collections: a simulation makes millions with few cycles
J = TypeVar("J")  # type of a job
S = TypeVar("S")  # type of a value sent before the result
R = TypeVar("R")  # type of the result
GONE = (EOFError, ConnectionError)  # the other end of the pipe has closed


class SubprocessFailed(Exception):
    """The computation failed; the message is that of the refused input, or names the error."""


class InputRefused(SubprocessFailed):
    """The computation refused its input, with these problems."""

    def __init__(self, message: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(message)
        self.problems = problems


def run_in_subprocess(
    function: Callable[[J, Callable[[S], None]], R],
    job: J,
    beat: Callable[[], None],
    take: Callable[[S], None],
    *,
    compiled: Sequence[CompiledCopy] = (),
) -> R:
    """Call `function`, from a module without Django, with the job and a function that sends values to `take`.
    `compiled` holds copies to use where they are valid. `beat` is called often; an exception in `beat` or `take` ends
    the computation. Raise SubprocessFailed.
    """
    ours, theirs = Pipe()
    with ours:
        with theirs:
            argv = (sys.executable, "-m", "fleet.subprocess", str(theirs.fileno()))
            process = subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), process_group=0
            )
        try:
            ours.send(tuple(compiled))
            ours.send((function, job))
            result: R = _answer(ours, beat, take)
            return result
        except GONE:
            raise SubprocessFailed(
                f"its process ended with status {process.wait(END_S)}: is there enough memory?"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also kills processes that it has started
            process.wait(END_S)


def _answer(pipe: Connection, beat: Callable[[], None], take: Callable[[S], None]) -> Any:
    while True:
        beat()
        if not pipe.poll(LOOK_S):
            continue
        kind, said = pipe.recv()
        if kind == "result":
            return said
        if kind == "refused":
            raise InputRefused(*said)
        if kind == "error":
            raise SubprocessFailed(said)
        take(said)


def serve(pipe: Connection) -> None:
    """Serve one job in the subprocess. Send (kind, value) pairs: the function's values, then its result or the text
    of an error."""
    os.nice(NICE)
    gc.set_threshold(COLLECTED_EVERY)
    with contextlib.suppress(*GONE):
        pipe.send(_result(pipe))


def _result(pipe: Connection) -> tuple[str, object]:
    try:
        for copy in pipe.recv():
            copy.use()  # before the function's modules are imported
        function, job = pipe.recv()
        return "result", function(job, lambda value: pipe.send(("sent", value)))
    except GONE:
        raise
    except InvalidInput as error:
        return "refused", (str(error), tuple(replace(each, value=shown(each.value)) for each in error.problems))
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    caller = Connection(int(sys.argv[1]))
    beside.callers.append(caller)
    serve(caller)
