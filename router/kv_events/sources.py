"""Asks an engine for its `GET /kv_event_sources`, the addresses of its KV events.

The response is a list of sources, one per data-parallel rank, or a map by rank.
"""

import re
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import orjson

from router.contract.json_value import JsonObject
from router.contract.net.addresses import ENGINES
from router.contract.net.outgoing import resolve
from router.upstream.errors import UpstreamError
from router.upstream.fetch import get

_EVERYWHERE = ("*", "0.0.0.0", "[::]", "")  # noqa: S104 - what engines say when they listen on every address

_TCP = re.compile(r"tcp://([\w.*-]{0,253}|\[[0-9a-fA-F:.]{0,45}\]):[0-9]{1,5}", re.ASCII)
_IPC = re.compile(r"ipc:///[ -~]{1,106}")  # a unix socket's path has room for 107 bytes
LONGEST_TOPIC = 256  # characters
TIMEOUT_S = 5.0  # for the whole response
LONGEST = 1 << 20  # bytes of a response


class NoEvents(Exception):
    """The engine publishes no events that can be followed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class KvEventSource:
    endpoint: str
    replay: str | None  # None: no replay of missed events
    topic: str


async def discover(url: str) -> KvEventSource:
    """Raises NoEvents."""
    try:
        status, body = await get(url, "/kv_event_sources", TIMEOUT_S, LONGEST)
    except UpstreamError as error:
        raise NoEvents(f"/kv_event_sources does not answer: {error}") from None
    except TimeoutError:
        raise NoEvents(f"/kv_event_sources does not answer: no whole answer within {TIMEOUT_S:g} s") from None
    if status != 200:
        raise NoEvents(f"it publishes no KV events: /kv_event_sources answered {status}")
    if len(body) > LONGEST:
        raise NoEvents(f"its /kv_event_sources is larger than {LONGEST} bytes")
    found = parse(body, url)
    try:
        return replace(found, endpoint=await _pinned(found.endpoint), replay=await _pinned(found.replay))
    except OSError as error:
        raise NoEvents(f"its /kv_event_sources leads nowhere: {error.strerror or error}") from None


Endpoint = TypeVar("Endpoint", str, str | None)


async def _pinned(endpoint: Endpoint) -> Endpoint:
    """With the address that its name leads to now: ZMQ would ask again."""
    if not endpoint or not endpoint.startswith("tcp://"):
        return endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    address, *_ = await resolve(host.strip("[]"), int(port), ENGINES)
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def parse(raw: bytes, url: str) -> KvEventSource:
    """`url`: the engine's address, which replaces wildcard addresses in its response. Raises NoEvents."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise NoEvents("its /kv_event_sources is not JSON") from None
    listed = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise NoEvents("its /kv_event_sources lists no sources")
    if not listed:
        raise NoEvents("it publishes no KV events")
    if len(listed) > 1:  # each rank has a separate cache, and the router cannot choose the rank of a request
        raise NoEvents(f"it has {len(listed)} data-parallel caches behind one address")
    return _source(listed[0], urlsplit(url).hostname or "127.0.0.1")


def _source(given: JsonObject, host: str) -> KvEventSource:
    endpoint, replay, topic = given.get("endpoint"), given.get("replay_endpoint"), given.get("topic")
    if given.get("enable_kv_cache_events") is False or given.get("publisher") not in (None, "zmq"):
        raise NoEvents("it publishes no KV events over ZMQ")
    if not isinstance(endpoint, str):
        raise NoEvents("its /kv_event_sources names no endpoint")
    return KvEventSource(
        endpoint=_reachable(endpoint, host),
        replay=_reachable(replay, host) if isinstance(replay, str) and replay else None,
        topic=topic[:LONGEST_TOPIC] if isinstance(topic, str) else "",
    )


def _reachable(endpoint: str, host: str) -> str:
    if _IPC.fullmatch(endpoint):
        return endpoint
    if not _TCP.fullmatch(endpoint):
        raise NoEvents(f"its /kv_event_sources names {endpoint[:100]!r}; allowed: tcp://HOST:PORT and ipc:///PATH")
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    named = f"[{host}]" if ":" in host else host
    return f"tcp://{named if address in _EVERYWHERE else address}:{port}"
