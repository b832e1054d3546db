"""Prints lines on the operator's terminal: one per event, prefixed with the name of the process. Output that cannot be
written is dropped, because a closed terminal or a full disk must not end the processes.
"""

import contextlib
import sys
from typing import TextIO

from router.contract.values.secret_text import masked

WIDTH = 12


def say(subject: str, text: str) -> None:
    block(f"{subject:<{WIDTH}} {masked(text)}")


def block(text: str) -> None:
    _print(text, sys.stdout)


def complain(text: str) -> None:
    _print(f"weir: {masked(text)}", sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # ValueError if the stream was closed
        print(text, file=stream, flush=True)
