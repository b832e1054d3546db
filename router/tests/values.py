"""Values in Redis as plain dictionaries, as other releases may write them and tests read them."""

import json
from typing import Any

import redis
from msgspec import convert

from router.contract.redis.receipt import Receipt


def stored(value: dict[str, Any]) -> str:
    return json.dumps({"schema": 1, **value}, separators=(",", ":"), allow_nan=False)


def stored_receipt(value: dict[str, Any]) -> str:
    return stored({"schema": Receipt.__struct_config__.tag, **value})


def loaded(raw: bytes | str | None) -> dict[str, Any] | None:
    value = None if raw is None else json.loads(raw)
    return value if isinstance(value, dict) else None


def everything(client: "redis.Redis") -> dict[str, str]:
    """Return each key with its value, uncompressed instead of as a DUMP."""
    readers: dict[bytes, Any] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"stream": client.xrange,
        b"zset": lambda name: client.zrange(name, 0, -1),
        b"list": lambda name: client.lrange(name, 0, -1),
    }
    return {name.decode(errors="replace"): repr(readers[client.type(name)](name)) for name in client.keys("*")}


def receipt_of(value: dict[str, Any]) -> Receipt:
    """Return the receipt as a router of this release writes it."""
    return convert({"request_id": "r", "at": 0.0, "schema": Receipt.__struct_config__.tag, **value}, Receipt)
