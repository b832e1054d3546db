"""Chooses a preview's traffic: the named trace, or else the newest recorded traffic, or else the built-in trace."""

import hashlib
from dataclasses import dataclass

import redis

from controlplane.common.computing import computed_once
from controlplane.evidence.previews.analysis.compute import part as part_of
from controlplane.evidence.previews.analysis.compute import read_part
from controlplane.evidence.previews.analysis.trust import LEAST_REQUESTS
from controlplane.evidence.traces import generated, library, recorded_traffic
from controlplane.evidence.traces.types import BadTrace, LoadedTrace
from router.contract.values.json_value import JsonObject

BUILT_IN = "agentic-demo"
LARGE = 1 << 20  # bytes of a file that would take too long to read for a page


@dataclass(frozen=True, slots=True)
class TrafficPart:
    """The requests of a trace that a preview plays."""

    name: str
    source: str  # built-in, upload, folder or recorded
    requests: int  # requests of the whole trace
    trace: LoadedTrace
    until: str = ""  # newest entry of recorded traffic, by which the same part can be found again

    @property
    def content(self) -> str:
        """Return a hash of the requests."""
        return hashlib.sha256(repr(self.trace.requests).encode()).hexdigest()

    def facts(self) -> JsonObject:
        """Return the facts that are stored; TrafficFacts reads them."""
        times = [request.measured.at for request in self.trace.requests if request.measured is not None]
        return {
            "source": self.source,
            "requests": self.requests,
            "played": len(self.trace.requests),
            "first_at": min(times, default=None),
            "last_at": max(times, default=None),
            "until": self.until,
        }


def recorded_counts() -> dict[str, int]:
    """Return recorded requests by pool; empty while Redis is unreachable."""
    try:
        return {pool: recording.requests for pool, recording in recorded_traffic.recorded().items()}
    except redis.RedisError:
        return {}


def choose(pool: str, count: int, seed: int) -> TrafficPart:
    """Return the traffic to use if no trace is named."""
    try:
        part = take(f"{library.RECORDED}{pool}", count, seed)
    except (library.NoSuchTrace, BadTrace):
        return take(BUILT_IN, count, seed)
    return part if len(part.trace.requests) >= min(count, LEAST_REQUESTS) else take(BUILT_IN, count, seed)


def take(name: str, count: int, seed: int, until: str = "") -> TrafficPart:
    """Return at most `count` requests: the newest of a recording, or the first of any other trace. Raise
    NoSuchTrace, BadTrace."""
    if name.startswith(library.RECORDED):
        return _take_recorded(name, count, seed, until)
    if name in generated.BUILT_IN:
        trace = generated.BUILT_IN[name]()
        return TrafficPart(name, "built-in", len(trace.requests), part_of(trace, count))
    source = library.entry(name).source
    return TrafficPart(name, source, *_read(library.content(name), count, seed))


def _read(data: bytes, count: int, seed: int) -> tuple[int, LoadedTrace]:
    """Return (number of requests in the file, the part of them); a large file is read beside the web process. Raise
    BadTrace, Busy."""
    found = read_part(data, count, seed) if len(data) <= LARGE else computed_once(read_part, data, count, seed)
    if isinstance(found, BadTrace):
        raise found
    return found


def _take_recorded(name: str, count: int, seed: int, until: str) -> TrafficPart:
    pool = name.removeprefix(library.RECORDED)
    try:
        lines, newest = recorded_traffic.newest_of(pool, count, until)
    except redis.RedisError as error:
        raise library.NoSuchTrace(f"{name}: recorded traffic is in Redis, which does not answer ({error})") from None
    if not lines:
        raise library.NoSuchTrace(f"{name}: the routers have recorded no request of pool {pool}")
    _, trace = _read(b"\n".join(lines), count, seed)
    return TrafficPart(name, "recorded", recorded_counts().get(pool, len(lines)), trace, newest)
