"""Waits for a job in the control plane."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .api import Api, Failed

EVERY_S = 1.0  # interval between polls
DAY_S = 86_400.0


class ProgressLines:
    """Lines of progress: on a terminal at each change, in other outputs only when the state changes."""

    def __init__(self) -> None:
        self._last = ("", "")

    def show(self, state: str, detail: str) -> None:
        now = (state, detail if sys.stdout.isatty() else "")
        if now != self._last:
            self._last = now
            print(state + detail, flush=True)


def has_ended(one: dict[str, Any]) -> bool:
    return one["status"] in ("done", "failed", "cancelled")


def follow(api: Api, path: str, timeout_s: float, words: Callable[[dict[str, Any]], tuple[str, str]]) -> dict[str, Any]:
    """Wait until the job has ended. `words` returns its state and its progress."""
    end, lines = time.monotonic() + timeout_s, ProgressLines()
    while True:
        one: dict[str, Any] = api.get(path)
        lines.show(*words(one))
        if has_ended(one):
            return one
        if time.monotonic() >= end:
            raise Failed(f"not ended after {timeout_s:g} s; it continues")
        time.sleep(EVERY_S)


@contextlib.contextmanager
def cancelled_with_me(api: Api, path: str) -> Iterator[None]:
    """Cancel the job if the pipeline is stopped, so that nothing keeps running."""
    try:
        yield
    except KeyboardInterrupt:
        api.call("POST", path)
        raise Failed("stopped, and cancelled") from None
