"""How many entries each store of past requests holds, and its limit: this bounds the memory of a long-lived router."""

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
