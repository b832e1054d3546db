"""What an API key may still use: borrowed from a bucket that all routers share, spent here. Pure.

A bucket holds a minute's worth at most and fills at limit/60 a second, as OpenAI's does. A router borrows from it what
a request needs, and what it will need in the next BLOCK_S besides, so that most requests ask nobody. What is borrowed
is gone from the bucket: routers together never spend more than it held. What a request turns out not to have used is
spent by the next one, and given back when there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

BLOCK_S = 0.1  # how far ahead a router borrows
RETRY_S = 0.1  # after a refusal the bucket is not asked again for so long at least
MINUTE_S = 60.0


@dataclass(slots=True)
class Budget:
    """Requests or tokens of one key in one router."""

    limit: int  # per minute
    held: float = 0.0  # borrowed and not spent; below 0 after a request that used more than was thought
    left: float = 0.0  # in the shared bucket when it was last asked
    asked_at: float = 0.0  # s, any clock that only goes forward

    @property
    def rate(self) -> float:
        """Per second."""
        return self.limit / MINUTE_S

    @property
    def block(self) -> float:
        return max(1.0, self.rate * BLOCK_S)

    def lack(self, amount: float) -> float:
        """What has to be borrowed at least; no more than a bucket can ever hold."""
        return min(max(0.0, amount - self.held), float(self.limit))

    def owed_s(self, amount: float) -> float:
        """How long the bucket has to fill before that much could be spent; 0 or less when it is held."""
        return (min(amount, self.limit) - self.held) / self.rate

    def lent(self, granted: float, left: float, now: float) -> None:
        self.held += granted
        self.left, self.asked_at = left, now

    def remaining(self, now: float) -> float:
        """As far as this router knows; never below 0 nor above the limit."""
        refilled = self.left + (now - self.asked_at) * self.rate
        return max(0.0, min(float(self.limit), refilled + self.held))

    def surplus(self) -> float:
        """What is held beyond what may be needed soon."""
        return max(0.0, self.held - self.block)


@dataclass(slots=True)
class Bucket:
    """One router's own, while nobody shares one: it begins full, with this router's part of the limit."""

    level: float
    at: float  # s

    def take(self, needed: float, limit: float, now: float) -> float:
        """How long to wait for `needed` (at most `limit`), in s; 0: it has been taken."""
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
    wanted: float  # at least `needed`; negative gives back


@dataclass(frozen=True, slots=True)
class Grant:
    wait_s: float  # above 0: nothing was lent, and so long it takes until it can be
    granted: tuple[float, ...]  # in the order of the wishes
    left: tuple[float, ...]


class BucketStore(Protocol):
    """Whoever has the buckets: Redis for all routers (lender.py), or a router that is alone (own_buckets.py)."""

    routers: int  # who share a limit

    async def borrow(self, key_id: str, token_requests: Sequence[TokenRequest]) -> Grant | None:
        """None when the buckets cannot be reached."""


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 12ms, 1.5s, 1m30s."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(round(seconds, 1), 60)
    text = b"%g" % round(rest, 1)
    return b"%dm%bs" % (int(minutes), text) if minutes else b"%bs" % text
