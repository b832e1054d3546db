"""Tests of the values in Redis and of all their structs."""

import importlib
import pkgutil
from collections.abc import Iterator

from router.contract import redis as values
from router.contract.redis.codec import RedisValue


def every_kind() -> dict[str, type[RedisValue]]:
    """Return every struct by name, after importing all modules, as earlier tests may have imported only some."""
    for module in pkgutil.iter_modules(values.__path__, f"{values.__name__}."):
        importlib.import_module(module.name)
    kinds = [kind for kind in _below(RedisValue) if kind.__module__.startswith(values.__name__)]
    return {kind.__name__: kind for kind in kinds if not kind.__subclasses__()}


def _below(kind: type[RedisValue]) -> Iterator[type[RedisValue]]:
    for below in kind.__subclasses__():
        yield below
        yield from _below(below)
