"""Batches of requests whose cached tokens are known: recorded ones."""

from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Scheduler

KNOWN_HITS = "known_hits"


class KnownHits(Scheduler):
    """The cached tokens of a request are in `content`. They take blocks of their own: in a record it is not visible
    which requests share them."""

    caches_prefixes = False

    def _reserve(self, request: EngineRequest) -> bool:
        if -(-request.tokens // self._size) > self.pool.free:
            return False
        known = request.content if isinstance(request.content, int) else 0
        request.computed = min(known, request.prompt_tokens - 1)
        return True
