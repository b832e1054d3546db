"""The twin's model of KV that is moved between measured engines, or stored below their GPUs. A calibration measures
steps, but not links and drives, so these have published rates. Pure.
"""

from dataclasses import dataclass

from fleet.engine.engine_model import TransferLink, TransferModel
from fleet.engine.tiers.devices import REMOTE
from fleet.engine.tiers.model import TierModel, TiersModel
from fleet.engine.tiers.sizes import KvLayout
from fleet.kinds.kv_size import KvSizes
from router.contract.connectors import NEURON

EFA_BYTES_PER_S = 6.25e9  # share of one chip of trn1.32xlarge: 100 GB/s over 16
STORE_LINK = TransferLink(
    setup_s=REMOTE.setup_s,
    idle_bytes_per_s=REMOTE.read_bytes_per_s,
    busy_bytes_per_s=REMOTE.busy_read_bytes_per_s or REMOTE.read_bytes_per_s,
)


@dataclass(frozen=True, slots=True)
class TwinKv:
    """The way in which the twin moves and keeps the KV of one instance."""

    sizes: KvSizes | None = None  # None if unknown, in which case nothing can be computed from them
    gpus: int = 1
    tiers: tuple[TierModel, ...] = ()  # fastest first
    store_bytes: float = 0.0  # bytes that it contributes to a store shared by all instances
    lend_s: float = 0.0  # as in TransferModel

    def transfers(self, connector: str) -> TransferModel | None:
        if not connector or self.sizes is None:
            return None
        if connector != NEURON:
            return TransferModel(bytes_per_token=self.sizes.bytes_per_token, lend_s=self.lend_s)
        return TransferModel(
            bytes_per_token=self.sizes.bytes_per_token,
            idle_bytes_per_s=EFA_BYTES_PER_S,
            busy_bytes_per_s=EFA_BYTES_PER_S,
            together=True,
        )

    def below(self) -> TiersModel | None:
        """Return the tiers below the GPU. Both LMCache and vLLM load everything that a tier holds."""
        if not self.tiers or self.sizes is None:
            return None
        layout = KvLayout(self.sizes.bytes_per_token, self.sizes.layers, self.gpus)
        return TiersModel(layout=layout, tiers=self.tiers, always_load=True)
