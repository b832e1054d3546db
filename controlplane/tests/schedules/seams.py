"""Turns the external effects of the code under test into seams: Redis commands, statements and transactions. A
transaction is one seam, before it begins: the database guarantees what happens inside, and on SQLite an actor that
stopped there would hold the lock for which all others wait. The end of the transaction is the next seam. If the
schedule cuts a database statement, its lock could not be acquired.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from django.db import OperationalError, connections, transaction
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline, PubSub

from controlplane.tests.schedules.scheduler import Order, at, at_async, here
from router.contract.redis import redis_keys

touched: set[str] = set()  # "database", "Redis", "router": what has changed since the last check
acknowledged: list[bytes] = []  # by routers since then

READING = ("GET", "MGET", "SMEMBERS", "TYPE", "HGETALL", "ZRANGEBYSCORE", "XREVRANGE", "SUBSCRIBE", "PUBLISH")


def _broken() -> Exception:
    return redis.ConnectionError("the schedule cut the connection")


@contextmanager
def instrumented() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner in (redis.Redis, PubSub):
            patch.setattr(owner, "execute_command", _command(owner.execute_command))
        patch.setattr(redis.asyncio.Redis, "execute_command", _async_command(redis.asyncio.Redis.execute_command))
        patch.setattr(Pipeline, "execute", _pipeline(Pipeline.execute))
        patch.setattr(AsyncPipeline, "execute", _async_pipeline(AsyncPipeline.execute))
        patch.setattr(transaction.Atomic, "__enter__", _begin(transaction.Atomic.__enter__))
        yield


def _command(real: Any) -> Any:
    def execute(client: Any, *args: Any, **options: Any) -> Any:
        writes = args[0] not in READING

        def effect() -> Any:
            touched.update({"Redis"} if writes else ())
            return real(client, *args, **options)

        return at(f"Redis {_words(args)}", writes, effect, _broken)

    return execute


def _async_command(real: Any) -> Any:
    async def execute(client: Any, *args: Any, **options: Any) -> Any:
        async def effect() -> Any:
            touched.add("router")
            if args[:2] == ("PUBLISH", redis_keys.ACKS):
                acknowledged.append(args[2])
            return await real(client, *args, **options)

        return await at_async(f"Redis {_words(args)}", True, effect, _broken)

    return execute


def _pipeline(real: Any) -> Any:
    def execute(pipe: Any, *args: Any, **options: Any) -> Any:
        commands = list(pipe.command_stack)
        writes = any(command[0][0] not in READING for command in commands)

        def effect() -> Any:
            touched.update({"Redis"} if writes else ())
            pipe.command_stack = list(commands)
            return real(pipe, *args, **options)

        return at(_of_all(commands), writes, effect, _broken)

    return execute


def _async_pipeline(real: Any) -> Any:
    async def execute(pipe: Any, *args: Any, **options: Any) -> Any:
        commands = list(pipe.command_stack)

        async def effect() -> Any:
            touched.add("router")
            pipe.command_stack = list(commands)
            return await real(pipe, *args, **options)

        return await at_async(_of_all(commands), True, effect, _broken)

    return execute


def _words(args: tuple[Any, ...]) -> str:
    return " ".join(str(word)[:40] for word in args[:2])


def _of_all(commands: list[Any]) -> str:
    return "Redis " + ", ".join(_words(tuple(each[0])) for each in commands[:4])


def _begin(real: Any) -> Any:
    def enter(atomic: Any) -> Any:
        if here.actor is not None and not transaction.get_connection(atomic.using).in_atomic_block:
            stop("a transaction", True)
            touched.add("database")
        return real(atomic)

    return enter


def statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    """Wrap the statements of a connection; one outside a transaction counts as its own transaction."""
    writes = not sql.startswith(("SELECT", "BEGIN"))
    if here.actor is not None and not context["connection"].in_atomic_block and not sql.startswith("BEGIN"):
        stop(sql[:60], writes)
    touched.update({"database"} if writes else ())
    return execute(sql, params, many, context)


def stop(seam: str, writes: bool) -> None:
    assert here.actor is not None
    if here.actor.stop_at(seam, writes) in (Order.CUT_BEFORE, Order.CUT_AFTER):
        raise OperationalError("database is locked")


def watch_statements() -> None:
    """Watch the statements of this thread's connection, unless they are watched already."""
    connection = connections["default"]
    if statement not in connection.execute_wrappers:
        connection.execute_wrappers.append(statement)
