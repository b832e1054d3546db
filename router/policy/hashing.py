"""Rendezvous hashing: of n instances one that leaves moves 1/n of the keys, and routers that share nothing agree."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

MASK = (1 << 64) - 1


def rendezvous(key: int, names: Iterable[str]) -> list[int]:
    """64-bit hashes of (key, name); the least is the key's home. An xor of two hashes alone would rank the names alike
    for many keys; one multiplication as in splitmix64 is enough, since both are good hashes before."""
    mixed = []
    for name in names:
        both = key ^ hash_of(name)
        mixed.append((both ^ (both >> 32)) * 0xBF58476D1CE4E5B9 & MASK)
    return mixed


@lru_cache(maxsize=4096)
def hash_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
