"""What a router reports about itself, and what routers tell each other. Pure."""

from msgspec import Struct

from router.contract.redis.codec import Order, RedisValue
from router.contract.redis.published import Split
from router.contract.values.sketch import Sketch

WINDOW_S = 60  # time that a Window covers

Load = tuple[int, int, int]  # requests, new prompt tokens without a first byte, decodes
NO_LOAD: Load = (0, 0, 0)


def added(one: Load, other: Load) -> Load:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class HitShare(Struct, frozen=True, kw_only=True):
    n: int = 0
    sum: float = 0.0  # sum of cached shares 0–1


class Moved(Struct, frozen=True, kw_only=True):
    """KV blocks that offloads moved between two instances."""

    n: int = 0  # offloads
    size: int = 0  # bytes, of the offloads whose size is known


class Window(Struct, frozen=True, kw_only=True):
    """Requests of one class that ended in the last WINDOW_S. Sketches leave out what is unknown."""

    n: int = 0
    started_10s: int = 0  # requests that began in the last 10 s
    ok: int = 0
    error: int = 0
    client_error: int = 0
    refused: int = 0
    cancelled: int = 0
    retries: int = 0
    refusals: dict[str, int] = {}  # by code; "" where an engine refused
    ttft: Sketch = {}  # ms, streamed answers only
    tpot: Sketch = {}  # ms, streamed answers only
    e2e: Sketch = {}  # ms
    new_tokens: Sketch = {}  # as predicted
    hit_percent: Sketch = {}  # predicted cached share of the prompt
    reuse_gap: Sketch = {}  # s since the session's previous request
    hit_share: HitShare = HitShare()
    queued: Sketch = {}  # ms in this router's queue, decided requests
    chosen: dict[str, dict[str, int]] = {}  # rule → instance → decided requests
    moved: dict[str, dict[str, Moved]] = {}  # prefill instance → decode instance → offloads


class ServedPool(Struct, frozen=True, kw_only=True):
    policy: str = ""  # empty: the built-in default
    version: int = 0
    acked_at: float | None = None  # Unix s
    fleet_at: float | None = None  # Unix s, of the weir:fleet value in force
    generation: int = 0  # generation of the rollout in force, acknowledged
    split: Split = ""


class IndexStatus(Struct, frozen=True, kw_only=True):
    """The prefix index of an instance, or of one rank. Token counts are sums over the last n answers, 1,000 at most."""

    index: str  # in force: exact, approximate or none
    why: str = ""  # why no better index is in force
    but_for: str = ""  # kinds that an exact index does not know
    n: int = 0
    predicted: int = 0  # cached tokens
    actual: int = 0  # cached tokens
    error: int = 0  # |predicted - actual|
    refused: dict[str, int] = {}  # reason → number of refused answers, KV event messages or parts
    # While its KV events are followed:
    blocks: tuple[int, int, int] | None = None  # device, host, disk
    age_s: float | None = None  # since it was known to be up to date; None: never
    event_at: float | None = None  # Unix s
    gaps: int | None = None
    replayed: int | None = None  # batches
    purges: int | None = None


class StalledInstance(Struct, frozen=True):
    """One that answers its health page, holds requests and produces no token (router/pool/health/progress.py)."""

    epoch: int
    why: str
    proven: bool = True  # whether its process has ever produced a token


class RouterStatus(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:router:<id>, written by the router each second, expires after 60 s."""

    id: str
    at: float  # Unix s
    started_at: float = 0.0  # Unix s
    life: str = ""  # changes with each start; in the fields of weir:delivery:<id>
    pid: int = 0
    url: str = ""
    pools: dict[str, ServedPool] = {}
    degraded: tuple[str, ...] = ()  # reasons in words
    unreadable: int = 0  # values in Redis
    refused: dict[str, Order] = {}  # order in force by key, where Redis holds an older value
    inflight: dict[str, Load] = {}  # by instance
    ranks: dict[str, Load] = {}  # parts of that load, by data-parallel rank
    classes: dict[str, dict[str, Window]] = {}  # by pool and class
    queued: dict[str, dict[str, int]] = {}  # waiting requests, by pool and class
    indexes: dict[str, IndexStatus] = {}  # by instance, or data-parallel rank
    aliases: dict[str, dict[str, int]] = {}  # by pool and name of the document Models: requests as in a Window
    models: int = 0  # version of the document Models in force; 0: none
    stalled: dict[str, StalledInstance] = {}  # by name; missing from older routers
    producing: dict[str, int] = {}  # name → epoch, if a token came within the last second; missing from older routers


class RouterLoad(RedisValue, tag=1, frozen=True, kw_only=True):
    """Stream weir:loads, field l, beside r (the router's present life): every two seconds, and when it stops."""

    id: str
    gone: bool = False  # True when the router stops
    inflight: dict[str, Load] = {}  # by instance
    ranks: dict[str, Load] = {}  # parts of that load, by data-parallel rank
    pulls: dict[str, int] = {}  # KV pulls under way from an instance or rank; an older router sends none


class RouterLoadChanges(RedisValue, tag=1, frozen=True):
    """Stream weir:loads, field d, beside r: what has changed since the router's previous message, at most 0.2 s late;
    without a change once a second."""

    id: str
    inflight: dict[str, Load] = {}  # by instance; zeros: no load any more
    ranks: dict[str, Load] = {}  # parts of that load, by data-parallel rank
    pulls: dict[str, int] = {}  # by instance or rank; 0: no pull any more


class SentPrompt(Struct, frozen=True, array_like=True):
    pool: str
    instance: str
    epoch: int
    session: str | None
    hashes: bytes  # hashes of the prompt's chunks, 8 bytes each; base64 on the wire
    rank: str = ""  # rank of the instance; empty for a single rank


class SentPrompts(RedisValue, tag=1, frozen=True, kw_only=True):
    """Stream weir:sent, field p, beside r (the router's present life); only while there are several routers."""

    sent: tuple[SentPrompt, ...]
