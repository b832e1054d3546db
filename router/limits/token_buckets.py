"""Allowances of API keys, borrowed from a bucket that all routers share. Pure. A bucket holds at most one minute's
allowance and refills at limit/60 per second, like OpenAI's. A router borrows a request's need plus BLOCK_S of further
use, which saves most requests a round trip. Borrowed tokens leave the bucket, so all routers together never spend more
than it held. Tokens left over from a request go to the next request, or back to the bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

BLOCK_S = 0.1  # further use that a router borrows in advance
RETRY_S = 0.1  # minimum time between a rejection and the next borrow
MINUTE_S = 60.0


@dataclass(slots=True)
class Allowance:
    """The allowance of one key in one router, in requests or tokens."""

    limit: int  # per minute
    held: float = 0.0  # borrowed but not spent; below 0 after a request that used more than estimated
    left: float = 0.0  # tokens in the shared bucket when it was last asked
    asked_at: float = 0.0  # s, any monotonic clock

    @property
    def rate(self) -> float:
        """Return the rate per second."""
        return self.limit / MINUTE_S

    @property
    def block(self) -> float:
        return max(1.0, self.rate * BLOCK_S)

    def lack(self, amount: float) -> float:
        """Return the minimum to borrow, at most the bucket's capacity."""
        return min(max(0.0, amount - self.held), float(self.limit))

    def owed_s(self, amount: float) -> float:
        """Return the seconds of refill before `amount` can be spent; 0 or less if the amount is held already."""
        return (min(amount, self.limit) - self.held) / self.rate

    def lent(self, granted: float, left: float, now: float) -> None:
        self.held += granted
        self.left, self.asked_at = left, now

    def remaining(self, now: float) -> float:
        """Return this router's estimate of the remaining allowance, between 0 and the limit."""
        refilled = self.left + (now - self.asked_at) * self.rate
        return max(0.0, min(float(self.limit), refilled + self.held))

    def surplus(self) -> float:
        """Return the tokens held beyond the next block."""
        return max(0.0, self.held - self.block)


@dataclass(slots=True)
class Bucket:
    """A bucket of one router alone; it starts full, with this router's share of the limit."""

    level: float
    at: float  # s

    def take(self, needed: float, limit: float, now: float) -> float:
        """Take `needed` (at most `limit`) and return 0, or return the seconds until it is available."""
        self.level = min(limit, self.level + (now - self.at) * limit / MINUTE_S)
        self.at = now
        needed = min(needed, limit)
        if self.level < needed:
            return (needed - self.level) * MINUTE_S / limit
        self.level -= needed
        return 0.0


@dataclass(frozen=True, slots=True)
class TokenRequest:
    kind: str  # "requests" or "tokens"
    limit: int  # per minute
    needed: float
    wanted: float  # at least `needed`; a negative amount returns tokens


@dataclass(frozen=True, slots=True)
class Grant:
    wait_s: float  # above 0: nothing was granted; seconds until it can be
    granted: tuple[float, ...]  # in the order of the requests
    left: tuple[float, ...]


class BucketStore(Protocol):
    """Shared buckets in Redis (sync/token_bucket_store.py), or a standalone router's (standalone/file_source.py)."""

    routers: int  # number of routers that share a limit

    async def borrow(self, key_id: str, token_requests: Sequence[TokenRequest]) -> Grant | None:
        """Borrow; None if the buckets are unreachable."""


def duration(seconds: float) -> bytes:
    """Format a duration as OpenAI does: 12ms, 1.5s, 1m30s."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(round(seconds, 1), 60)
    text = b"%g" % round(rest, 1)
    return b"%dm%bs" % (int(minutes), text) if minutes else b"%bs" % text
