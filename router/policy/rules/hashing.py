"""Rendezvous hashing: when an instance leaves, 1/n of the keys move, and routers agree without sharing state."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import nsmallest

from router.policy.fleet import FleetColumns
from router.policy.types import InstanceState

MASK = (1 << 64) - 1
SPREAD = 0xBF58476D1CE4E5B9


def rendezvous(key: int, instances: FleetColumns) -> list[int]:
    """Return 64-bit hashes of (key, id) pairs; the instance with the lowest hash is the key's home. An xor of two
    hashes alone would rank the ids alike for many keys; as both hash well, one multiplication as in splitmix64 is
    enough."""
    key = folded(key)
    return [(key ^ name) * SPREAD & MASK for name in instances.column(_folded_id)]


def nearest(key: int, names: Sequence[int], most: int) -> list[int]:
    """Return the positions of the folded ids with the lowest hashes."""
    key = folded(key)
    positions = {(key ^ name) * SPREAD & MASK: position for position, name in enumerate(names)}
    return [positions[one] for one in nsmallest(most, positions)]


def _folded_id(instance: InstanceState) -> int:
    return folded_id(instance.id)


def folded_id(name: str) -> int:
    return folded(hash_of(name))


def folded(value: int) -> int:
    return value ^ (value >> 32)


@lru_cache(maxsize=4096)
def hash_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
