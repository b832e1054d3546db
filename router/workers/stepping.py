"""Runs a worker's step repeatedly, with the tasks that it starts."""

import asyncio
from collections.abc import Callable, Iterable


async def take_steps(
    every_s: float, step: Callable[[], object], started: Callable[[], Iterable[asyncio.Task[None]]]
) -> None:
    """Run the step until cancelled, then cancel the tasks that it has `started`."""
    try:
        while True:
            step()
            await asyncio.sleep(every_s)
    finally:
        for task in started():
            task.cancel()
