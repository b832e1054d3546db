"""Everything that a router remembers of past requests is limited."""

import pytest

from router.metrics import STORES, stores
from router.pool import affinity
from router.pool.pool import Pool
from router.prefix.chain import SPAN_BYTES, PromptChains


@pytest.fixture
def pool():
    return Pool("chat")


def entries(pool):
    return {name: now for name, (now, _) in stores(pool).items()}


def test_a_new_pool_remembers_nothing_and_every_store_has_a_limit(pool):
    assert entries(pool) == dict.fromkeys(STORES, 0)
    assert all(most > 0 for _, most in stores(pool).values())


def test_each_store_counts_its_entries(pool):
    pool.affinity.bind("a", "one", 1.0, 60)
    pool.affinity.session_of_chain([7])
    pool.chains.hashes(bytes(2 * SPAN_BYTES))
    pool.index.insert("one", 1, [1, 2, 3])
    pool.index.insert("two", 1, [1, 2])
    assert entries(pool) == {"sessions": 1, "conversations": 1, "spans": 2, "chunks": 5, "stretches": 2}


def test_no_store_grows_beyond_its_limit(pool, monkeypatch):
    monkeypatch.setattr(affinity, "KEPT", 10)
    pool.chains = PromptChains(spans=10)
    pool.index.max_chunks = pool.index.max_stretches = 10
    for number in range(1, 100):
        pool.affinity.bind(str(number), "one", float(number), 60)
        pool.affinity.session_of_chain([number])
        pool.chains.hashes(number.to_bytes(4) * (SPAN_BYTES // 4))
        pool.index.insert("one", 1, [number])
    assert all(0 < now <= most == 10 for now, most in stores(pool).values())
