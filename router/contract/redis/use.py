"""Use by API key, as routers count it and the control plane stores it (docs/use.md). Pure."""

from typing import Annotated

from msgspec import Meta, Struct

from router.contract.pools import is_ephemeral
from router.contract.redis.codec import RedisValue
from router.contract.redis.published import Count

HOUR_S = 3600
EXPERIMENTS = "(experiments)"  # stands for all ephemeral pools; a pool's name cannot have brackets
OTHER = "(other)"  # stands for the keys of all requests beyond MOST_ROWS
MOST_ROWS = 5_000  # rows of one router in one hour, about 0.5 MB
KEPT_HOURS = 168  # hours that a router keeps until they are confirmed

Hour = Annotated[int, Meta(ge=0, le=50_000_000)]  # Unix time / 3600


class SavingLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: str
    version: int
    before: int  # previous live version
    pool: str  # pool that the preview simulated
    preview: int
    requests: int  # requests that both versions answered in the preview
    at: float  # Unix s, end of the preview
    gpu_s: float  # saving per request; negative if the new version computes more
    dollars: float | None = None  # saving per request; None without GPU prices
    low: float | None = None  # lower end of the 95 % interval as a share of `gpu_s`; unknown from an older writer
    high: float | None = None


class SavingLines(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:savings, written by Celery, expires: policies whose live version was previewed."""

    lines: tuple[SavingLine, ...] = ()


class UseCounts(Struct, frozen=True, array_like=True):
    """Counts of one hour; each only grows. Add new fields at the end, with a default."""

    requests: Count = 0  # all requests that ended
    refused: Count = 0
    failed: Count = 0
    cancelled: Count = 0
    input_tokens: Count = 0  # cached tokens included
    cached_tokens: Count = 0
    output_tokens: Count = 0
    estimated: Count = 0  # requests whose tokens are estimated because the engine reported no usage
    gpu_us: Count = 0  # GPU-microseconds
    micro_dollars: Count = 0  # cost at the prices of that time
    audio_ms: Count = 0  # duration of transcribed audio, as reported by the engine
    images: Count = 0  # images generated for answered requests
    client_errors: Count = 0  # requests with a client error; older routers count them as `refused` or `failed`


class UseRow(Struct, frozen=True, array_like=True):
    key: str  # id; empty: no key
    name: str  # name that the key had at the time
    pool: str  # empty: refused before the pool was known
    model: str
    counts: UseCounts


class UseHour(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:use:<router.life>, a field per hour, rewritten whole every second, so that writing twice counts once."""

    hour: Hour
    written: Count  # 1, 2, 3, …: readers accept only a greater number
    at: float  # Unix s
    rows: tuple[UseRow, ...]


def pool_in_use(pool: str) -> str:
    """Return the name under which a pool's use is stored: thousands of ephemeral pools would fill the tables."""
    return EXPERIMENTS if is_ephemeral(pool) else pool
