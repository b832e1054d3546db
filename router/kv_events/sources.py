"""The sources of an engine's KV events, from `GET /kv_event_sources` or the fleet document.

The response is a list of sources, one per data-parallel rank, or a map by rank.
"""

import re
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import orjson

from router.contract.net.addresses import ENGINES
from router.contract.net.engine_tls import PLAIN, EngineTls
from router.contract.net.outgoing import resolve
from router.contract.values.json_value import JsonObject
from router.upstream.errors import UpstreamError
from router.upstream.fetch import get

_EVERYWHERE = ("*", "0.0.0.0", "[::]", "")  # noqa: S104 - what engines say when they listen on every address

_TCP = re.compile(r"tcp://([\w.*-]{0,253}|\[[0-9a-fA-F:.]{0,45}\]):[0-9]{1,5}", re.ASCII)
_IPC = re.compile(r"ipc:///[ -~]{1,106}")  # the path of a unix socket has at most 107 bytes
_RANK = re.compile(r"[0-9]{1,4}")
LONGEST_TOPIC = 256  # characters
TIMEOUT_S = 5.0  # time limit for the whole response
LONGEST = 1 << 20  # bytes of a response


class NoEvents(Exception):
    """The engine publishes no events that Weir can follow; the message has the reason."""


@dataclass(frozen=True, slots=True)
class KvEventSource:
    endpoint: str
    replay: str | None  # None if missed events cannot be replayed
    topic: str


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One of an instance's data-parallel ranks, and the key for its address."""

    number: int = 0
    position: int = 0  # position among the ranks behind the address
    ranks: int = 1  # number of ranks behind the address
    engine_key: str = ""  # key reference; empty for none
    tls: EngineTls = PLAIN


WHOLE = RankPlace()


async def discover(url: str, place: RankPlace = WHOLE) -> KvEventSource:
    """Find the source. `url` is an engine that answers GET /kv_event_sources, or an address in the form that `given`
    parses. Raise NoEvents."""
    if url.startswith("tcp://"):
        return await _reached(given(url, place), "its address of KV events")
    try:
        status, body = await get(url, "/kv_event_sources", TIMEOUT_S, LONGEST, place.engine_key, place.tls)
    except UpstreamError as error:
        raise NoEvents(f"/kv_event_sources does not answer: {error}") from None
    except TimeoutError:
        raise NoEvents(f"/kv_event_sources does not answer: no whole answer within {TIMEOUT_S:g} s") from None
    if status != 200:
        raise NoEvents(f"it publishes no KV events: /kv_event_sources answered {status}")
    if len(body) > LONGEST:
        raise NoEvents(f"its /kv_event_sources is larger than {LONGEST} bytes")
    return await _reached(parse(body, url, place), "its /kv_event_sources")


async def _reached(found: KvEventSource, what: str) -> KvEventSource:
    try:
        return replace(found, endpoint=await _pinned(found.endpoint), replay=await _pinned(found.replay))
    except OSError as error:
        raise NoEvents(f"{what} cannot be resolved: {error.strerror or error}") from None


def given(address: str, place: RankPlace = WHOLE) -> KvEventSource:
    """Parse a declared source, tcp://HOST:PORT?replay=tcp://HOST:PORT&topic=NAME, which is the first rank's; further
    ranks use the following ports. Raise NoEvents."""
    endpoint, _, query = address.partition("?")
    more = dict(parse_qsl(query, max_num_fields=8))
    for each in (endpoint, more.get("replay", endpoint)):
        if not _TCP.fullmatch(each):
            raise NoEvents(f"its address of KV events is {each[:100]!r}; allowed: tcp://HOST:PORT")
    replay = more.get("replay")
    return KvEventSource(
        _after(endpoint, place.number),
        None if replay is None else _after(replay, place.number),
        more.get("topic", "")[:LONGEST_TOPIC],
    )


def _after(endpoint: str, number: int) -> str:
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + number}"


Endpoint = TypeVar("Endpoint", str, str | None)


async def _pinned(endpoint: Endpoint) -> Endpoint:
    """Replace the host name by its current address; otherwise ZMQ would resolve the name again."""
    if not endpoint or not endpoint.startswith("tcp://"):
        return endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    address, *_ = await resolve(host.strip("[]"), int(port), ENGINES)
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def parse(raw: bytes, url: str, place: RankPlace = WHOLE) -> KvEventSource:
    """Parse a response. `url` is the engine's address, which replaces wildcard addresses. Raise NoEvents."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise NoEvents("its /kv_event_sources is not JSON") from None
    listed = _by_rank(found.get("sources", found) if isinstance(found, dict) else found)
    if not listed:
        raise NoEvents("it publishes no KV events")
    if len(listed) != place.ranks and (place.ranks == 1 or place.number not in listed):
        raise NoEvents(
            f"it has {len(listed)} data-parallel caches behind its address, and data_parallel_size is {place.ranks}"
        )
    number = place.number if place.number in listed else sorted(listed)[place.position]
    return _source(listed[number], urlsplit(url).hostname or "127.0.0.1")


def _by_rank(found: object) -> dict[int, JsonObject]:
    if isinstance(found, dict):
        pairs = list(found.items())
    elif isinstance(found, list):
        pairs = [(_rank_of(one, at), one) for at, one in enumerate(found)]
    else:
        pairs = [("", found)]
    if any(not isinstance(one, dict) or not _RANK.fullmatch(str(rank)) for rank, one in pairs):
        raise NoEvents("its /kv_event_sources lists no sources")
    by_rank = {int(rank): one for rank, one in pairs}
    return by_rank if len(by_rank) == len(pairs) else dict(enumerate(one for _, one in pairs))


def _rank_of(source: object, position: int) -> object:
    return source.get("data_parallel_rank", position) if isinstance(source, dict) else position


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
