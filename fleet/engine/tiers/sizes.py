"""Bytes and objects of a prefix's KV, and the memory and drive life that moving it costs."""

import math
from dataclasses import dataclass

from fleet.engine.profiles import Profile
from fleet.engine.tiers.devices import Metadata, TierDevice

DAY_S = 86_400
_PAGE = 65_536  # bytes of the pool that one list of addresses describes
_METADATA_BYTES = {"none": 0, "prp": 4096, "sgl": 16}  # bytes of such a list


@dataclass(frozen=True, slots=True)
class KvLayout:
    """KV of one model in the form in which its tiers store it. Every GPU of an instance moves its share at the same
    time as the others."""

    bytes_per_token: float  # bytes over the whole model
    layers: int
    tp: int = 1  # number of GPUs
    object_tokens: int = 64  # tokens of one stored block, as in the measurements

    def objects(self, tokens: int) -> int:
        """Return the number of objects per GPU: K and V of every block and layer."""
        return math.ceil(tokens / self.object_tokens) * self.layers * 2

    @property
    def object_bytes(self) -> float:
        return self.bytes(self.object_tokens) / self.layers / 2

    def bytes(self, tokens: float) -> float:
        """Return the bytes per GPU."""
        return tokens * self.bytes_per_token / self.tp


def layout_of(profile: Profile, object_tokens: int = 64) -> KvLayout:
    return KvLayout(profile.sizes.kv_bytes_per_token, profile.sizes.layers, profile.tp, object_tokens)


def metadata_bytes(kind: Metadata, pool_bytes: float) -> float:
    """Return the GPU memory for the addresses of a KV pool of this size."""
    return pool_bytes / _PAGE * _METADATA_BYTES[kind]


def staging_tokens(device: TierDevice, layout: KvLayout, free_bytes: float) -> float:
    """Return the longest load whose staging fits into the GPU memory outside the pool; inf if it stages nothing."""
    staged = device.staging_share * layout.bytes(1)
    return free_bytes / staged if staged else math.inf


def drive_writes_per_day(bytes_per_s: float, capacity_bytes: float, amplification: float = 1.0) -> float:
    """Return the number of drive writes per day (DWPD). The drives are rated for one per day over five years."""
    return bytes_per_s * amplification * DAY_S / capacity_bytes
