"""How many bytes and objects the KV of a prefix is, and what moving it costs in memory and in drive life."""

import math
from dataclasses import dataclass

from fleet.engine.profiles import Profile
from fleet.engine.tiers.devices import Metadata, TierDevice

DAY_S = 86_400
_PAGE = 65_536  # bytes of pool that one list of addresses describes
_METADATA_BYTES = {"none": 0, "prp": 4096, "sgl": 16}  # per such page


@dataclass(frozen=True, slots=True)
class KvLayout:
    """KV of one model as its tiers store it. Every GPU of an instance moves its own share, at the same time."""

    bytes_per_token: float  # whole model
    layers: int
    tp: int = 1  # GPUs
    object_tokens: int = 64  # tokens of one stored block: as in the measurements

    def objects(self, tokens: int) -> int:
        """K and V of every block and layer, per GPU."""
        return math.ceil(tokens / self.object_tokens) * self.layers * 2

    @property
    def object_bytes(self) -> float:
        return self.bytes(self.object_tokens) / self.layers / 2

    def bytes(self, tokens: float) -> float:
        """Per GPU."""
        return tokens * self.bytes_per_token / self.tp


def layout_of(profile: Profile, object_tokens: int = 64) -> KvLayout:
    return KvLayout(profile.sizes.kv_bytes_per_token, profile.sizes.layers, profile.tp, object_tokens)


def metadata_bytes(kind: Metadata, pool_bytes: float) -> float:
    """GPU memory for the addresses of a KV pool of that size."""
    return pool_bytes / _PAGE * _METADATA_BYTES[kind]


def staging_tokens(device: TierDevice, layout: KvLayout, free_bytes: float) -> float:
    """The longest load whose staging fits into the GPU memory outside the pool; inf: it stages nothing."""
    staged = device.staging_share * layout.bytes(1)
    return free_bytes / staged if staged else math.inf


def drive_writes_per_day(bytes_per_s: float, capacity_bytes: float, amplification: float = 1.0) -> float:
    """DWPD: how often a day the drives are written over. Rated life: 1 for five years."""
    return bytes_per_s * amplification * DAY_S / capacity_bytes
