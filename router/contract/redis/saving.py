"""Savings of a policy's live version over the one before it, by the preview that it was published from."""

from msgspec import Struct

from router.contract.redis.codec import RedisValue


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
