"""Wait in an admission queue with a future, as the router does."""

import asyncio


async def wait(queue, entry, limit=1000, capacity=False):
    """Return when there may be capacity."""
    woken = asyncio.get_running_loop().create_future()
    queue.join(entry, limit, lambda: woken.done() or woken.set_result(None), capacity)
    try:
        await woken
    except asyncio.CancelledError:
        queue.give_up(entry)
        raise
    queue.resume(entry)
