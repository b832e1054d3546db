"""Reports by a router about itself, and messages between routers. Pure."""

from msgspec import Struct

from router.contract.redis.codec import Order, RedisValue
from router.contract.redis.published import Split
from router.contract.values.sketch import Sketch

WINDOW_S = 60  # time span of a Window

Load = tuple[int, int, int]  # requests, new prompt tokens before the first byte, decodes
NO_LOAD: Load = (0, 0, 0)


def added(one: Load, other: Load) -> Load:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class HitShare(Struct, frozen=True, kw_only=True):
    n: int = 0
    sum: float = 0.0  # sum of cached shares 0–1


class Moved(Struct, frozen=True, kw_only=True):
    """KV blocks that offloads moved from one instance to another."""

    n: int = 0  # offloads
    size: int = 0  # bytes moved, if the size is known


class Window(Struct, frozen=True, kw_only=True):
    """Requests of one class that ended in the last WINDOW_S. Sketches leave out unknown values."""

    n: int = 0
    started_10s: int = 0  # requests that began in the last 10 s
    ok: int = 0
    error: int = 0
    client_error: int = 0
    refused: int = 0
    cancelled: int = 0
    retries: int = 0
    refusals: dict[str, int] = {}  # by code; "" if an engine refused
    ttft: Sketch = {}  # ms, streamed answers only
    tpot: Sketch = {}  # ms, streamed answers only
    e2e: Sketch = {}  # ms
    new_tokens: Sketch = {}  # as predicted
    hit_percent: Sketch = {}  # predicted cached share of the prompt
    reuse_gap: Sketch = {}  # s since the session's previous request
    hit_share: HitShare = HitShare()
    queued: Sketch = {}  # ms in this router's queue, of decided requests
    chosen: dict[str, dict[str, int]] = {}  # rule → instance → decided requests
    moved: dict[str, dict[str, Moved]] = {}  # prefill instance → decode instance → offloads


class ServedPool(Struct, frozen=True, kw_only=True):
    policy: str = ""  # empty: the built-in default
    version: int = 0
    acked_at: float | None = None  # Unix s
    fleet_at: float | None = None  # Unix s, write time of the weir:fleet value in use
    generation: int = 0  # generation of the rollout in use, acknowledged
    split: Split = ""


class IndexStatus(Struct, frozen=True, kw_only=True):
    """The prefix index of an instance or rank. Token counts are sums over the last n answers, at most 1,000."""

    index: str  # index in use: exact, approximate or none
    why: str = ""  # why the index in use is not the exact one
    but_for: str = ""  # kinds of layers that the exact index does not cover
    n: int = 0
    predicted: int = 0  # cached tokens
    actual: int = 0  # cached tokens
    error: int = 0  # |predicted - actual|
    refused: dict[str, int] = {}  # reason → number of refused answers, KV event messages or parts
    # While its KV events are consumed:
    blocks: tuple[int, int, int] | None = None  # device, host, disk
    age_s: float | None = None  # time since the index was last known to be up to date; None: never
    event_at: float | None = None  # Unix s
    gaps: int | None = None
    replayed: int | None = None  # batches
    purges: int | None = None


class StalledInstance(Struct, frozen=True):
    """An instance that answers its health page, holds requests and produces no token (router/pool/health/progress)."""

    epoch: int
    why: str
    proven: bool = True  # whether its process has ever produced a token


class RouterStatus(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:router:<id>, written by the router every second, expires after 60 s."""

    id: str
    at: float  # Unix s
    started_at: float = 0.0  # Unix s
    life: str = ""  # id of this start of the router; part of the fields of weir:delivery:<id>
    pid: int = 0
    url: str = ""
    pools: dict[str, ServedPool] = {}
    degraded: tuple[str, ...] = ()  # reasons, as text
    unreadable: int = 0  # number of values in Redis that the router cannot read
    refused: dict[str, Order] = {}  # by key: the order in use, while Redis holds an older value
    inflight: dict[str, Load] = {}  # by instance
    ranks: dict[str, Load] = {}  # the part of that load on each data-parallel rank
    classes: dict[str, dict[str, Window]] = {}  # by pool and class
    queued: dict[str, dict[str, int]] = {}  # waiting requests, by pool and class
    indexes: dict[str, IndexStatus] = {}  # by instance or data-parallel rank
    aliases: dict[str, dict[str, int]] = {}  # by pool and name in the document Models: requests as in a Window
    models: int = 0  # version of the document Models in use; 0: none
    stalled: dict[str, StalledInstance] = {}  # by name; missing from older routers
    producing: dict[
        str, int
    ] = {}  # epoch by name of instances that produced a token within the last second; missing from older routers


class RouterLoad(RedisValue, tag=1, frozen=True, kw_only=True):
    """Stream weir:loads, field l, beside r (the router's current incarnation): every two seconds, and when it stops."""

    id: str
    gone: bool = False  # True when the router stops
    inflight: dict[str, Load] = {}  # by instance
    ranks: dict[str, Load] = {}  # the part of that load on each data-parallel rank
    pulls: dict[str, int] = {}  # KV pulls in progress from an instance or rank; not sent by older routers


class RouterLoadChanges(RedisValue, tag=1, frozen=True):
    """Stream weir:loads, field d, beside r: changes since the router's previous message, at most 0.2 s after they
    occur; sent once a second if nothing changes."""

    id: str
    inflight: dict[str, Load] = {}  # by instance; zeros: no longer any load
    ranks: dict[str, Load] = {}  # the part of that load on each data-parallel rank
    pulls: dict[str, int] = {}  # by instance or rank; 0: no pull any longer


class SentPrompt(Struct, frozen=True, array_like=True):
    pool: str
    instance: str
    epoch: int
    session: str | None
    hashes: bytes  # hashes of the prompt's chunks, 8 bytes each; base64 in JSON
    rank: str = ""  # rank of the instance; empty for a single rank


class SentPrompts(RedisValue, tag=1, frozen=True, kw_only=True):
    """Stream weir:sent, field p, beside r (the router's current incarnation); only while there are several routers."""

    sent: tuple[SentPrompt, ...]
