"""How many entries each store of past requests holds, and its limit: this bounds the memory of a long-lived router."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from router.pool import affinity
from router.pool.pool import Pool

STORES = ("sessions", "conversations", "spans", "chunks", "stretches")


def stores(pool: Pool) -> dict[str, tuple[int, int]]:
    """Name → (entries now, entries at most), as docs/router.md describes them."""
    index, chains, sessions = pool.index, pool.chains, pool.affinity
    counts = (
        (len(sessions), affinity.KEPT),
        (sessions.unnamed, affinity.KEPT),
        (len(chains), chains.kept),
        (index.copies, index.max_chunks),
        (index.stretches, index.max_stretches),
    )
    return dict(zip(STORES, counts, strict=True))


def metrics(pools: Iterable[Pool]) -> Iterator[Metric]:
    labels = ("pool", "store")
    kept = GaugeMetricFamily("weir_router_kept_entries", "Entries kept of past requests", labels=labels)
    limit = GaugeMetricFamily("weir_router_kept_entries_limit", "Limit of the entries kept", labels=labels)
    for pool in pools:
        for name, (entries, most) in stores(pool).items():
            kept.add_metric((pool.name, name), entries)
            limit.add_metric((pool.name, name), most)
    yield from (kept, limit)
