"""Checks whether a process serves, with one function per kind of process, and waits until it does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import redis

from controlplane.base.process.patience import OutOfPatience, Patience
from controlplane.doors.up import CannotStart
from controlplane.doors.up.child import Child
from controlplane.doors.up.console import say
from fleet.node import process
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import WorkerPresence

Check = Callable[[str, str, int | None], Awaitable[bool]]

STEP_S = 0.02
LEAST_CPU_S = 0.1  # less CPU time does not count as progress, because an idle event loop also uses some


def _ask(redis_url: str, question: Callable[[redis.Redis], Any]) -> Any:
    """Query Redis over a new connection; None if it does not answer."""
    client = redis.Redis.from_url(redis_url, socket_connect_timeout=1, socket_timeout=1)
    try:
        return question(client)
    except redis.RedisError:
        return None
    finally:
        client.close()


async def redis_answers(target: str, redis_url: str, pid: int | None) -> bool:
    return bool(await asyncio.to_thread(_ask, redis_url, lambda client: client.ping()))


async def http_answers(target: str, redis_url: str, pid: int | None) -> bool:
    """Return whether anything answers, with any status: a router without a fleet serves and answers 503."""
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
    raw = await asyncio.to_thread(_ask, redis_url, lambda client: client.get(redis_keys.worker_key(target)))
    value = codec.decode(WorkerPresence, raw)
    return value is not None and value.pid == pid


async def runs(target: str, redis_url: str, pid: int | None) -> bool:
    return pid is not None


CHECKS: dict[str, Check] = {
    "redis": redis_answers,
    "http": http_answers,
    "worker": worker_answers,
    "running": runs,
}


def mark(child: Child) -> tuple[int, int]:
    """Return a mark of the process's progress: its CPU time and the size of its log."""
    try:
        written = child.log.stat().st_size
    except OSError:
        written = 0
    return int(process.cpu_s(child.pid or 0) / LEAST_CPU_S), written


async def wait(child: Child, redis_url: str, patience: Patience | None = None) -> None:
    """Wait until `child` serves. Raise CannotStart if it ends first, or makes no progress for long."""
    serves, patience = CHECKS[child.process.ready.by], patience or Patience(time.monotonic())
    while True:
        if child.pid is None:
            raise CannotStart(
                f"{child.process.name} ended with status {child.status}: {child.last_line()} (log: {child.log})"
            )
        if await serves(child.process.ready.target, redis_url, child.pid):
            return
        _go_on(child, patience)
        await asyncio.sleep(STEP_S)


def _go_on(child: Child, patience: Patience) -> None:
    moved = mark(child)
    try:
        is_news = patience.look(moved, time.monotonic())
    except OutOfPatience as error:
        raise CannotStart(f"{child.process.name} does not answer: {error} (log: {child.log})") from None
    if is_news:
        used = f"{moved[0] * LEAST_CPU_S:.1f} s of CPU time used"
        say(child.process.name, f"still starts after {child.ran_s:.0f} s, {used}: {child.last_line()[:160]}")
