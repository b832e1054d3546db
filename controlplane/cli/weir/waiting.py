"""Waiting for something that runs at the control plane."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any

from .api import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .api import Api

ENDED = ("done", "failed", "cancelled")
EVERY_S = 1.0  # between two looks at something that runs
DAY_S = 86_400.0


def follow(api: Api, path: str, timeout_s: float, line: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Wait until it has ended; prints a line at each change."""
    end, shown = time.monotonic() + timeout_s, ""
    while True:
        one: dict[str, Any] = api.get(path)
        if line(one) != shown:
            shown = line(one)
            print(shown, flush=True)
        if one["status"] in ENDED:
            return one
        if time.monotonic() >= end:
            raise Failed(f"not ended after {timeout_s:g} s; it goes on")
        time.sleep(EVERY_S)


@contextlib.contextmanager
def cancelled_with_me(api: Api, path: str) -> Iterator[None]:
    """A pipeline that is stopped leaves nothing that runs."""
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        api.call("POST", path)
        raise Failed("stopped, and cancelled") from None
    finally:
        signal.signal(signal.SIGTERM, before)
