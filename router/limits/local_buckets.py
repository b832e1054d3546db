"""What API keys may still use, of a router that shares their limits with nobody."""

import asyncio
from collections.abc import Iterable, Sequence

from router.limits.token_buckets import MINUTE_S, Bucket, Loan, Wish


class OwnBuckets:
    """Lends as the shared buckets do (lender.py): all kinds or none; a negative want gives back."""

    routers = 1

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, Bucket]] = {}  # by key id and kind

    def keep_only(self, key_ids: Iterable[str]) -> None:
        """A key that is taken away and comes back begins with a full bucket."""
        known = set(key_ids)
        self._buckets = {key_id: buckets for key_id, buckets in self._buckets.items() if key_id in known}

    async def borrow(self, key_id: str, wishes: Sequence[Wish]) -> Loan | None:
        return self.lend(key_id, wishes, asyncio.get_running_loop().time())

    def lend(self, key_id: str, wishes: Sequence[Wish], now: float) -> Loan:
        """`now`: s, of any clock that only goes forward."""
        kept = self._buckets.setdefault(key_id, {})
        buckets = [kept.setdefault(wish.kind, Bucket(wish.limit, now)) for wish in wishes]
        waits = [_wait_s(bucket, wish, now) for bucket, wish in zip(buckets, wishes, strict=True)]
        wait = max(waits, default=0.0)
        granted = [0.0 if wait else min(w.wanted, b.level) for b, w in zip(buckets, wishes, strict=True)]
        for bucket, wish, amount in zip(buckets, wishes, granted, strict=True):
            bucket.level = min(wish.limit, bucket.level - amount)
        return Loan(wait, tuple(granted), tuple(bucket.level for bucket in buckets))


def _wait_s(bucket: Bucket, wish: Wish, now: float) -> float:
    """Filled up to `now`: how long until it holds what is needed; 0 when it does."""
    bucket.take(0.0, wish.limit, now)
    return max(0.0, wish.needed - bucket.level) * MINUTE_S / wish.limit
