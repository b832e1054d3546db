"""Says the requests by names of the document Models, in a line for Live and the wall. Pure."""

from collections import Counter
from collections.abc import Iterable

from controlplane.common.figures import significant
from router.contract.redis.router_status import WINDOW_S, RouterStatus

MOST = 5  # names shown; the others are counted


def in_words(pool: str, routers: Iterable[RouterStatus]) -> str:
    """Say the requests per second of each name that the pool serves, the most requested first; empty without any."""
    counts: Counter[str] = Counter()
    for router in routers:
        counts.update(router.aliases.get(pool, {}))
    parts = [f"{name} {significant(count / WINDOW_S)} requests/s" for name, count in counts.most_common(MOST)]
    if len(counts) > MOST:
        rest = sum(counts.values()) - sum(count for _, count in counts.most_common(MOST))
        parts.append(f"{len(counts) - MOST} others {significant(rest / WINDOW_S)} requests/s")
    return ", ".join(parts)
