"""Rendezvous hashing: of n instances one that leaves moves 1/n of the keys, and routers that share nothing agree."""

from functools import lru_cache
from hashlib import blake2b

from router.policy.fleet import FleetColumns
from router.policy.types import InstanceState

MASK = (1 << 64) - 1


def rendezvous(key: int, instances: FleetColumns) -> list[int]:
    """64-bit hashes of (key, id); the least is the key's home. An xor of two hashes alone would rank the ids alike for
    many keys; one multiplication as in splitmix64 is enough, since both are good hashes before."""
    folded = key ^ (key >> 32)
    return [(folded ^ name) * 0xBF58476D1CE4E5B9 & MASK for name in instances.column(_folded_id)]


def _folded_id(instance: InstanceState) -> int:
    name = hash_of(instance.id)
    return name ^ (name >> 32)


@lru_cache(maxsize=4096)
def hash_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
