"""How `up` sees that a process serves: one function for each way."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import redis.asyncio

from controlplane.up import CannotStart
from controlplane.up.child import Child
from router import wire

Check = Callable[[str, str, int | None], Awaitable[bool]]

LIMIT_S = 60.0
STEP_S = 0.05


async def redis_answers(target: str, redis_url: str, pid: int | None) -> bool:
    client = redis.asyncio.Redis.from_url(redis_url, socket_connect_timeout=1, socket_timeout=1)
    try:
        return bool(await client.ping())
    except redis.RedisError:
        return False
    finally:
        await client.aclose()


async def http_answers(target: str, redis_url: str, pid: int | None) -> bool:
    """Any answer counts: a router without a fleet serves, and says 503."""
    parts = urlsplit(target)
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
                return (await reader.readline()).startswith(b"HTTP/")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def worker_answers(target: str, redis_url: str, pid: int | None) -> bool:
    client = redis.asyncio.Redis.from_url(redis_url, socket_connect_timeout=1, socket_timeout=1)
    try:
        value = wire.decode(await client.get(wire.worker_key(target)))
        return value is not None and value.get("pid") == pid
    except redis.RedisError:
        return False
    finally:
        await client.aclose()


async def runs(target: str, redis_url: str, pid: int | None) -> bool:
    return pid is not None


CHECKS: dict[str, Check] = {
    "redis": redis_answers,
    "http": http_answers,
    "worker": worker_answers,
    "running": runs,
}


async def wait(child: Child, redis_url: str, limit_s: float = LIMIT_S) -> None:
    """Return when `child` serves; CannotStart when it ends first or does not serve within `limit_s`."""
    end = asyncio.ensure_future(child.ended())
    serves = asyncio.ensure_future(_serves(child, redis_url))
    try:
        await asyncio.wait({end, serves}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            raise CannotStart(
                f"{child.process.name} ended with status {end.result()}: {child.last_line()} (log: {child.log})"
            )
        if not serves.done():
            raise CannotStart(f"{child.process.name} does not answer after {limit_s:g} s (log: {child.log})")
    finally:
        for task in (end, serves):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _serves(child: Child, redis_url: str) -> None:
    check = CHECKS[child.process.ready.by]
    while not await check(child.process.ready.target, redis_url, child.pid):  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(STEP_S)
