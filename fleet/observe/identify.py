"""Identifies an engine, started by another system, by its own answers, any of which may be missing. Only its
own address is asked: redirects are not followed, and each connection is subject to the address policy.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from fleet.kinds.external import ExternalSpec, event_address, host_of
from fleet.kinds.servers import AUTO, SERVERS, Server
from fleet.observe.lacking import half_of, is_uncached, lacking
from router.contract.metrics.metrics_page import LARGEST as METRICS_LARGEST
from router.contract.net.engine_key import line_if_any, refusal
from router.contract.net.engine_tls import PLAIN, EngineTls, engine_tls
from router.contract.net.probe import NotTrusted, ProbeError, Prober, Slow
from router.contract.redis.published import MOST_RANKS

MODELS = "/v1/models"
ASK_S = 1.0  # time limit per page
LARGEST = 1024 * 1024  # bytes of a JSON answer
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}  # value of `owned_by` in /v1/models → server
_TOPIC = 256  # characters
_PLAIN = re.compile(r"[\w.+-]{1,100}")


@dataclass(frozen=True, slots=True)
class Identified:
    server: Server
    version: str = ""  # empty if it names none
    models: tuple[str, ...] = ()
    events: str = ""  # like Wire.events; empty: it publishes no KV events, or they are not wanted
    lacks: tuple[str, ...] = ()  # options for an exact index that the engine lacks
    ranks: int = 1  # data-parallel ranks behind it, as it reports
    uncached: bool = False  # True if it reuses no prefix
    half: str = ""  # the only part of requests that it computes, prefill or decode; empty: both


class AnswersLate(Exception):
    """The only page that identifies the engine timed out, as SGLang's does during a long prompt."""


class NotLetIn(Exception):
    """A key or a certificate is missing, or one side does not accept it; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class AskedEngine:
    """Asks an engine page by page, with the key and the certificates named by its pool."""

    prober: Prober
    url: str
    key: str = ""  # key reference
    tls: EngineTls = PLAIN

    async def page(self, path: str, largest: int, *, tells_all: bool = False) -> tuple[int, bytes] | None:
        """Return a page. `tells_all` means that nothing is known without the page, so that AnswersLate is raised if it
        is late.
        """
        url = self.url + path
        try:
            return await self.prober.get(url, ASK_S, largest, line_if_any(self.key), self.tls)
        except NotTrusted as error:
            raise NotLetIn(str(error)) from None
        except ProbeError as error:
            if tells_all and isinstance(error, Slow):
                raise AnswersLate(f"{error}: its server and options are not known until it answers") from None
            return None
        finally:
            self.prober.forget(url)  # this address is asked only once


async def identify(prober: Prober, url: str, spec: ExternalSpec) -> Identified | None:
    """Identify the engine; None if the address does not answer like an OpenAI server. Raise NotLetIn or AnswersLate."""
    asked = AskedEngine(prober, url, spec.engine_key or "", engine_tls(spec.tls))
    listed = await _json(asked, MODELS)
    if listed is None:
        return None
    models = tuple(str(one["id"])[:200] for one in _entries(listed) if "id" in one)[:1000]
    server = SERVERS[spec.server] if spec.server != AUTO else await _server(asked, listed)
    about = await _json(asked, server.version_path, tells_all=server.tells_options) if server.version_path else None
    version = about.get("version") if isinstance(about, Mapping) else None
    shown = version if isinstance(version, str) and _PLAIN.fullmatch(version) else ""
    events, ranks = await _events(asked, spec, about)
    said = bool(events or spec.kv_endpoint) or spec.kv_events is not None
    other = ranks if ranks != spec.data_parallel_size else 0
    page = await _page(asked, server.metrics_path, METRICS_LARGEST) if server.scrape.cache_config else None
    uncached = is_uncached(server.name, about, page)
    lacks = lacking(server.name, about, events=said, ranks=other, uncached=uncached)
    return Identified(server, shown, models, events, lacks, ranks, uncached, half_of(server.name, about))


async def _server(asked: AskedEngine, listed: Any) -> Server:
    owner = next((str(one.get("owned_by")) for one in _entries(listed)), "")
    if owner in _OWNERS:
        return SERVERS[_OWNERS[owner]]
    marked = [server for server in SERVERS.values() if server.mark]
    paths = list(dict.fromkeys(server.metrics_path for server in marked))
    pages = await asyncio.gather(*(_page(asked, path, METRICS_LARGEST) for path in paths))
    by_path = dict(zip(paths, pages, strict=True))
    for server in marked:
        page = by_path[server.metrics_path]
        if page is not None and (page.startswith(server.mark) or b"\n" + server.mark in page):
            return server
    info = await _json(asked, SERVERS["sglang"].version_path)  # metrics are off unless an option enables them
    return SERVERS["sglang" if isinstance(info, Mapping) and "version" in info else "openai"]


async def _events(asked: AskedEngine, spec: ExternalSpec, about: Any) -> tuple[str, int]:
    """Return where the engine's KV events can be followed, unless the options already name it, and
    its number of ranks.
    """
    if spec.kv_events is not None or spec.kv_endpoint is not None:
        return "", spec.data_parallel_size
    sources = await _json(asked, "/kv_event_sources")
    listed = list(sources.values()) if isinstance(sources, dict) else sources
    if isinstance(listed, list) and any(isinstance(one, Mapping) and "endpoint" in one for one in listed):
        return asked.url, min(len(listed), MOST_RANKS)
    events = about.get("kv_events") if isinstance(about, Mapping) else None
    if not isinstance(events, Mapping):
        return "", spec.data_parallel_size
    ranks = events.get("dp_size", 1)
    is_number = isinstance(ranks, int) and not isinstance(ranks, bool) and 1 <= ranks <= MOST_RANKS
    return sglang_events(events, asked.url, spec.data_parallel_size), ranks if is_number else spec.data_parallel_size


def sglang_events(events: Mapping[str, Any], url: str, ranks: int) -> str:
    """Return the addresses from the engine's /server_info (SGLang 0.5.23), which has one port per rank, counted from a
    base. Empty if the engine does not have `ranks` ranks.
    """
    port, replay, topic = events.get("endpoint_port_base"), events.get("replay_endpoint_port_base"), events.get("topic")
    if events.get("publisher") != "zmq" or not _is_port(port) or events.get("dp_size", 1) != ranks:
        return ""
    host = host_of(url)
    back = f"tcp://{host}:{replay}" if _is_port(replay) else None
    return event_address(f"tcp://{host}:{port}", back, host, topic[:_TOPIC] if isinstance(topic, str) else "")


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def _entries(listed: Any) -> list[Mapping[str, Any]]:
    data = listed.get("data") if isinstance(listed, Mapping) else None
    return [one for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []


async def _json(asked: AskedEngine, path: str, *, tells_all: bool = False) -> Any:
    page = await _page(asked, path, LARGEST, tells_all=tells_all)
    try:
        return orjson.loads(page) if page is not None else None
    except orjson.JSONDecodeError:
        return None


async def _page(asked: AskedEngine, path: str, largest: int, *, tells_all: bool = False) -> bytes | None:
    """Return a page; None without an answer. For the page of models, which every engine has, raise NotLetIn."""
    status, body = await asked.page(path, largest, tells_all=tells_all) or (0, b"")
    if path == MODELS and (why := refusal(status, path, asked.key)):
        raise NotLetIn(why)
    return body if status == 200 else None
