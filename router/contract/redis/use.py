"""Use by API keys, as routers count it and the control plane keeps it (docs/use.md). Pure."""

from typing import Annotated

from msgspec import Meta, Struct

from router.contract.pools import is_ephemeral
from router.contract.redis.codec import RedisValue
from router.contract.redis.published import Count

HOUR_S = 3600
EXPERIMENTS = "(experiments)"  # stands for every ephemeral pool: no name of a pool has brackets
OTHER = "(other)"  # key of what came after MOST_ROWS
MOST_ROWS = 5_000  # rows of one router in one hour, about 0.5 MB
KEPT_HOURS = 168  # hours that a router keeps while they are unconfirmed

Hour = Annotated[int, Meta(ge=0, le=50_000_000)]  # Unix time / 3600


class SavingLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: str
    version: int
    before: int  # previous live version
    pool: str  # pool that the preview simulated
    preview: int
    requests: int  # requests that both versions answered in it
    at: float  # Unix s, end of the preview
    gpu_s: float  # per request; negative if it computes more
    dollars: float | None = None  # per request; None without priced GPUs
    low: float | None = None  # share of `gpu_s` at the ends of its 95 % interval; unknown of an older writer
    high: float | None = None


class SavingLines(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:savings, written by Celery, expires: of every policy whose live version was previewed."""

    lines: tuple[SavingLine, ...] = ()


class UseCounts(Struct, frozen=True, array_like=True):
    """Counts of one hour; each only grows. Add new fields at the end, with a default."""

    requests: Count = 0  # every one that ended
    refused: Count = 0
    failed: Count = 0
    cancelled: Count = 0
    input_tokens: Count = 0  # cached ones included
    cached_tokens: Count = 0
    output_tokens: Count = 0
    estimated: Count = 0  # requests whose engine reported no usage: their tokens are estimates
    gpu_us: Count = 0  # GPU-microseconds
    micro_dollars: Count = 0  # at the prices then in force
    audio_ms: Count = 0  # audio in transcriptions, as their engine reports it
    images: Count = 0  # images that answered requests asked for
    client_errors: Count = 0  # requests at fault themselves; older routers count them among `refused` and `failed`


class UseRow(Struct, frozen=True, array_like=True):
    key: str  # id; empty: without a key
    name: str  # name of the key at that time
    pool: str  # empty: refused before its pool was known
    model: str
    counts: UseCounts


class UseHour(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:use:<router.life>, a field per hour: the whole each second, so that writing twice counts once."""

    hour: Hour
    written: Count  # 1, 2, 3, …: a reader takes a greater one only
    at: float  # Unix s
    rows: tuple[UseRow, ...]


def pool_in_use(pool: str) -> str:
    """The name under which a pool's use is kept: thousands of ephemeral pools would fill the tables."""
    return EXPERIMENTS if is_ephemeral(pool) else pool
