"""The price of a token in each pool, for dollar budgets that have no price yet. It is the mean cost of the pool's
requests in this router over all periods. Before the first request has ended, it is the list price of the most expensive
instance at the rate of a single stream.
"""

from router.contract.redis.budgets import MICRO
from router.pool.pool import Pool

ALONE_TOKENS_PER_S = 50.0  # rate of one stream; shared instances are cheaper
REMEMBERED_TOKENS = 10_000_000.0  # after this many tokens, earlier tokens count half
MOST_POOLS = 1_000  # pools; ephemeral pools of experiments would otherwise accumulate


class PoolPrices:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # dollars and tokens by pool

    def saw(self, pool: str, tokens: float, dollars: float) -> None:
        """Add the cost of a finished request."""
        if tokens <= 0:
            return
        had_dollars, had_tokens = self._seen.pop(pool, (0.0, 0.0))
        kept = 0.5 if had_tokens > REMEMBERED_TOKENS else 1.0
        self._seen[pool] = kept * had_dollars + dollars, kept * had_tokens + tokens
        if len(self._seen) > MOST_POOLS:
            del self._seen[next(iter(self._seen))]

    def of(self, pool: Pool) -> float:
        """Return the price in micro-dollars per token."""
        if pool.name in self._seen:
            dollars, tokens = self._seen[pool.name]
            return dollars / tokens * MICRO
        clocks = (endpoint.gpu_clock for endpoint in pool.endpoints.values())
        return max((clock.gpus * clock.dollars_per_s for clock in clocks), default=0.0) / ALONE_TOKENS_PER_S * MICRO
