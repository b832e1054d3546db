"""Batches of requests whose cached tokens are known from a record."""

from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Scheduler

KNOWN_HITS = "known_hits"


class KnownHits(Scheduler):
    """Schedules requests with known cached tokens, which are in `content`. They take blocks of their own: a record does
    not show which requests share them."""

    caches_prefixes = False

    def _reserve(self, request: EngineRequest) -> bool:
        if -(-request.tokens // self._size) > self.pool.free:
            return False
        known = request.content if isinstance(request.content, int) else 0
        request.computed = min(known, request.prompt_tokens - 1)
        return True
