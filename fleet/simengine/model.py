"""What a simulated engine computes with: its arguments as values of the engine model, which the twin takes as well."""

from dataclasses import dataclass

from fleet.engine.law import Law, law_of
from fleet.engine.profiles import kv_blocks, profile
from fleet.engine.scheduler import Limits
from fleet.simengine.arguments import Arguments


@dataclass(frozen=True, slots=True)
class SimModel:
    law: Law
    kv_blocks: int
    limits: Limits
    window: int  # tokens of prompt and answer at most
    kv_bytes_per_token: float


def model_of(arguments: Arguments) -> SimModel:
    """Raises UnknownProfile."""
    served = profile(arguments.gpu, arguments.model_profile, arguments.tp)
    size = arguments.block_size
    blocks = arguments.kv_blocks or kv_blocks(served, size)
    limits = Limits(size, arguments.max_num_seqs, arguments.max_num_batched_tokens)
    window = min(arguments.max_model_len, blocks * size)  # one request must always fit
    return SimModel(law_of(served), blocks, limits, window, served.sizes.kv_bytes_per_token)
