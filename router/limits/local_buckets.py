"""Token buckets of API keys in a standalone router."""

import asyncio
from collections.abc import Iterable, Sequence

from router.limits.token_buckets import MINUTE_S, Bucket, Grant, TokenRequest


class LocalBuckets:
    """Grants like the shared buckets (sync/token_bucket_store.py): all kinds or none; a negative amount gives back."""

    routers = 1

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, Bucket]] = {}  # by key id and kind

    def keep_only(self, key_ids: Iterable[str]) -> None:
        """Drop the buckets of removed keys; a key added again starts with a full bucket."""
        known = set(key_ids)
        self._buckets = {key_id: buckets for key_id, buckets in self._buckets.items() if key_id in known}

    async def borrow(self, key_id: str, token_requests: Sequence[TokenRequest]) -> Grant | None:
        return self.lend(key_id, token_requests, asyncio.get_running_loop().time())

    def lend(self, key_id: str, token_requests: Sequence[TokenRequest], now: float) -> Grant:
        """Grant or refuse the requests. `now`: s, any monotonic clock."""
        kept = self._buckets.setdefault(key_id, {})
        buckets = [
            kept.setdefault(token_request.kind, Bucket(token_request.limit, now)) for token_request in token_requests
        ]
        waits = [
            _wait_s(bucket, token_request, now) for bucket, token_request in zip(buckets, token_requests, strict=True)
        ]
        wait = max(waits, default=0.0)
        granted = [0.0 if wait else min(w.wanted, b.level) for b, w in zip(buckets, token_requests, strict=True)]
        for bucket, token_request, amount in zip(buckets, token_requests, granted, strict=True):
            bucket.level = min(token_request.limit, bucket.level - amount)
        return Grant(wait, tuple(granted), tuple(bucket.level for bucket in buckets))


def _wait_s(bucket: Bucket, token_request: TokenRequest, now: float) -> float:
    """Refill up to `now`; return the seconds until the bucket holds the needed amount, or 0."""
    bucket.take(0.0, token_request.limit, now)
    return max(0.0, token_request.needed - bucket.level) * MINUTE_S / token_request.limit
