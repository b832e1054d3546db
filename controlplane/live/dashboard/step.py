"""Claims each second, reads the live state, builds one frame, and publishes it to the viewers. The control worker calls
this, or a web process if no worker builds frames. The first to claim a second builds its frame.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx
import orjson
import redis
from msgspec import structs

from controlplane.base.schedule import reports
from controlplane.common.database_trouble import says_read_only
from controlplane.live.dashboard import history, kept_row
from controlplane.live.dashboard.frame import ticker, types
from controlplane.live.dashboard.frame.build import SCHEMA, FrameInputs, build_frame
from controlplane.live.dashboard.frame.types import Frame, HistoryRow, RouterAnswer
from fleet.events import EVENTS_KEPT
from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedTransport
from router.contract.pools import is_ephemeral
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryLine, DeliveryLines
from router.contract.redis.fleet_status import FleetEvent, NodesValue, ScalingAdvice
from router.contract.redis.published import FleetValue, PolicyValue
from router.contract.redis.router_status import RouterStatus
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import ROUTER_GONE_S, WORKER_DOWN_S
from router.contract.redis.use import SavingLines

CLAIM_TTL_S = 5
OWN_FRAME_AFTER_S = 1.5  # after this long without a frame from the control worker, a web process builds frames
ROWS_PER_POINT = 2  # rows read at most for a point of a chart, which shows the last of them
THINNED_MS = 3_000  # interval of the rows read: Redis skips the others, which make up most of 28 MB per hour
FINE_S = 3600  # time for which one row per second is kept
ROUTERS_REMEMBERED_S = 60  # how long a missing router continues to be shown

# Returns the newest row of each interval of ARGV[4] ms, newest first, without the field ARGV[5]
_ONE_OF_EACH_SLOT = """
local found, slot, last = {}, tonumber(ARGV[4]), ARGV[3]
for at = tonumber(ARGV[2]), tonumber(ARGV[1]) + 1, -slot do
  local before = string.format('%.0f', at - slot)
  local row = redis.call('XREVRANGE', KEYS[1], last, '(' .. before, 'COUNT', 1)[1]
  last = before
  if row then
    local fields = {}
    for i = 1, #row[2], 2 do
      if row[2][i] ~= ARGV[5] then fields[#fields + 1], fields[#fields + 2] = row[2][i], row[2][i + 1] end
    end
    found[#found + 1] = fields
  end
end
return found
"""


# Asks whether routers that no longer report still answer, because Redis or a busy machine may delay their reports
ANSWER_S = 0.5
ASKED = 4  # routers asked at most, those with the latest reports first


def router_answers(now: float, routers: Iterable[RouterStatus]) -> list[RouterAnswer]:
    """Ask routers for an answer; empty while one of them reports, because then none is asked. Blocks for at most
    `ANSWER_S`."""
    latest = sorted(routers, key=lambda router: -router.at)[:ASKED]
    if not latest or now - latest[0].at <= ROUTER_GONE_S:
        return []
    return asyncio.run(_answers([router.url for router in latest]))


async def _answers(urls: Iterable[str]) -> list[RouterAnswer]:
    return list(await asyncio.gather(*map(_answer, urls)))


async def _answer(url: str) -> RouterAnswer:
    """Ask one router. Any status counts as an answer; a router that cannot serve reports the reason itself."""
    try:
        async with asyncio.timeout(ANSWER_S), httpx.AsyncClient(transport=PinnedTransport(ENGINES)) as client:
            await client.get(f"{url}/healthz")
    except (TimeoutError, httpx.TimeoutException):
        return "no answer"
    except (httpx.HTTPError, httpx.InvalidURL):
        return "refused"
    return "answered"


def step(client: redis.Redis, now: float, built_by: str) -> bytes | None:
    """Return the frame's JSON; None if another process builds frames or has claimed this second."""
    if built_by == "web" and _worker_builds(client, now):
        return None
    if built_by == "worker":
        client.set(redis_keys.FRAMES_CONTROL_AT, now)
    if not client.set(redis_keys.frame_claim_key(math.floor(now)), built_by, nx=True, ex=CLAIM_TTL_S):
        return None
    inputs, previous = read(client, now)
    frame = build_frame(now, inputs, previous, built_by)
    text = encode(frame)
    publish(client, frame, text, coarse=previous is None or _begins_coarse(previous["at"], now))
    for event in ticker.events(now, frame, previous):
        entry: Any = {"e": codec.encode(event)}
        client.xadd(redis_keys.EVENTS, entry, maxlen=EVENTS_KEPT, approximate=True)
    return text


def _begins_coarse(before: float, now: float) -> bool:
    return before // history.COARSE_S != now // history.COARSE_S


def _worker_builds(client: redis.Redis, now: float) -> bool:
    at = client.get(redis_keys.FRAMES_CONTROL_AT)
    return at is not None and now - float(at) < OWN_FRAME_AFTER_S


def encode(frame: Frame) -> bytes:
    """Encode a frame; orjson writes NaN and infinity as null, which stands for unknown."""
    return orjson.dumps(types.folded(frame))


def publish(client: redis.Redis, frame: Frame, text: bytes, *, coarse: bool = False) -> None:
    """Publish a frame. With `coarse`, also store the row for the longest range."""
    row: Any = kept_row.pack(history.row(frame))
    with client.pipeline(transaction=False) as pipe:
        pipe.set(redis_keys.FRAMES_LATEST, text)
        pipe.set(redis_keys.FRAMES_CARRIED, orjson.dumps(types.carried(frame)))
        pipe.xadd(redis_keys.FRAMES, row, maxlen=redis_keys.FRAMES_KEPT, approximate=True)
        if coarse:
            pipe.xadd(redis_keys.FRAMES_COARSE, row, maxlen=redis_keys.FRAMES_COARSE_KEPT, approximate=True)
        pipe.publish(redis_keys.FRAME, text)
        pipe.execute()


def loads(raw: bytes | None) -> Frame | None:
    """Return the published frame; None if there is none with this schema."""
    published = None if raw is None else orjson.loads(raw)
    return types.unfolded(published) if published is not None and published["schema"] == SCHEMA else None


def latest(client: redis.Redis) -> Frame | None:
    raw: Any = client.get(redis_keys.FRAMES_LATEST)
    return loads(raw)


def current(client: redis.Redis, now: float) -> Frame | None:
    """Return the newest frame, or build one here if there is no recent one."""
    frame = latest(client)
    if frame is not None and now - frame["at"] <= OWN_FRAME_AFTER_S:
        return frame
    built = step(client, now, "web")
    if built is not None:
        return loads(built)
    # Another process is building this second's frame. If that is the very first frame and not there yet, build one for
    # this caller.
    return latest(client) or _unpublished(client, now)


def _unpublished(client: redis.Redis, now: float) -> Frame | None:
    inputs, previous = read(client, now)
    return loads(encode(build_frame(now, inputs, previous, "web")))


def rows(
    client: redis.Redis, now: float, seconds: int, end: float | None = None, *, loads: bool = False
) -> list[HistoryRow]:
    """Return the stored rows of the `seconds` before `end` (None: now), oldest first; for a long range, only as many
    as charts show. `loads` adds the fields that only the charts of an instance, a pool and a node show."""
    until = now if end is None else end
    stream = redis_keys.FRAMES if until - seconds >= now - FINE_S else redis_keys.FRAMES_COARSE
    begin_ms, end_ms, newest = int((until - seconds) * 1000), int(until * 1000), "+" if end is None else int(end * 1000)
    answer: Any
    slot_ms = seconds * 1000 // (history.POINTS * ROWS_PER_POINT)
    if slot_ms >= THINNED_MS:
        skipped = "" if loads else kept_row.LOADS
        answer = client.eval(_ONE_OF_EACH_SLOT, 1, stream, begin_ms, end_ms, newest, slot_ms, skipped)
        entries: list[Any] = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in reversed(answer)]
    else:
        answer = client.xrange(stream, begin_ms, newest)
        entries = [fields for _, fields in answer]
        every = max(1, math.ceil(len(entries) / (history.POINTS * ROWS_PER_POINT)))
        entries = entries[::-every][::-1]
    found = (kept_row.unpack(fields, loads=loads) for fields in entries)
    return [row for row in found if row is not None]


class LiveReader:
    """Reads values and counts those that cannot be read."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.unreadable = 0

    def decode(self, kind: type[codec.Value], raw: bytes | None) -> codec.Value | None:
        value = codec.decode(kind, raw)
        self.unreadable += raw is not None and value is None
        return value

    def values(
        self, kind: type[codec.Value], key_of: Callable[[str], str], names: Sequence[str]
    ) -> dict[str, codec.Value]:
        """Return readable values by name."""
        raws: Any = self._client.mget([key_of(name) for name in names]) if names else ()
        decoded = ((name, self.decode(kind, raw)) for name, raw in zip(names, raws, strict=True))
        return {name: value for name, value in decoded if value is not None}


def read(client: redis.Redis, now: float) -> tuple[FrameInputs, Frame | None]:
    """Return (the inputs of a frame, the previous frame)."""
    reader = LiveReader(client)
    with client.pipeline(transaction=False) as pipe:
        pipe.smembers(redis_keys.POOLS)
        pipe.zrangebyscore(redis_keys.ROUTERS, now - ROUTERS_REMEMBERED_S, "+inf")
        pipe.mget(redis_keys.FRAMES_LATEST, redis_keys.FRAMES_CARRIED)
        pipe.get(redis_keys.FRAMES_CONTROL_AT)
        pipe.get(redis_keys.NODES)
        pipe.get(redis_keys.DELIVERIES)
        pipe.get(redis_keys.SAVINGS)
        pipe.xrevrange(redis_keys.EVENTS, count=ticker.READ)
        pipe.hgetall(redis_keys.STEPS)
        raw_pools, raw_routers, raw_previous, control_at, *raw_lists, raw_events, raw_steps = pipe.execute()
    pools = sorted(map(bytes.decode, raw_pools))
    fleets = reader.values(FleetValue, redis_keys.fleet_key, pools)
    lasting = [fleet for pool, fleet in fleets.items() if not is_ephemeral(pool)]
    instances = [instance.id for fleet in lasting for instance in fleet.instances]
    routers = reader.values(RouterStatus, redis_keys.router_key, list(map(bytes.decode, raw_routers)))
    decode: Any = reader.decode
    nodes, deliveries, savings = map(decode, (NodesValue, DeliveryLines, SavingLines), raw_lists)
    events = (codec.decode(FleetEvent, fields.get(b"e")) for _, fields in raw_events)
    steps = reports.decoded(raw_steps)
    inputs = FrameInputs(
        fleets=fleets,
        samples=reader.values(InstanceSample, redis_keys.instance_key, instances),
        routers=routers,
        router_answers=router_answers(now, routers.values()),
        scaling=reader.values(ScalingAdvice, redis_keys.scaling_key, pools),
        deliveries=_said(now, deliveries) if deliveries is not None else (),
        savings=savings.lines if savings is not None else (),
        policies=reader.values(PolicyValue, redis_keys.policy_key, pools),
        events=[event for event in events if event is not None],
        nodes=nodes.nodes if nodes is not None else (),
        control_at=float(control_at) if control_at else None,
        steps=steps,
        read_only=reports.LEASE in steps and says_read_only(steps[reports.LEASE].error),
        unreadable=reader.unreadable,
    )
    return inputs, _previous(*raw_previous)


def _said(now: float, said: DeliveryLines) -> tuple[DeliveryLine, ...]:
    """Return the delivery lines, without the time of the next event if the judge is silent."""
    if now - said.at <= WORKER_DOWN_S:
        return said.lines
    return tuple(structs.replace(line, next_at=None) for line in said.lines)


def _previous(raw: bytes | None, raw_carried: bytes | None) -> Frame | None:
    frame = loads(raw)
    kept = None if raw_carried is None else orjson.loads(raw_carried)
    return frame and types.with_carried(frame, kept)
