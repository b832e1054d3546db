"""Disaggregated inference on Neuron in closed form: the rate of each side, their balance, and the prefill stall.
Source of the rules: the guide to disaggregated inference on Neuron (NxD Inference). The engine simulates the same rules
event by event (fleet/engine/neuron_batches.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from fleet.engine.law import Law, chunk_pairs, law_of
from fleet.engine.profiles import FITS, MEMORY_USED, PEAKS, Peak, profile
from fleet.engine.profiles import MODELS as MODEL_SIZES

# One chip: dense BF16 arithmetic, bandwidth and size of memory, as AWS publishes them. No step was measured.
CHIPS = {"trn1": Peak(190e12, 0.82e12, 32e9), "trn2": Peak(667e12, 2.9e12, 96e9)}
DEVICES = (*CHIPS, *PEAKS)
FITTED_ON = "h100_sxm"
MODELS = tuple(sorted({model for gpu, model, _ in FITS if gpu == FITTED_ON}))
MOST_OF_A_SIDE = 6  # most workers on one side of a ratio


def device_law(device: str, model: str, tensor_parallel: int) -> Law:
    """Return the law of one worker, with the model's efficiencies on H100 for the closest number of GPUs.
    Normalization and gating run in parallel with the matrix products, on other units of a Neuron core.
    """
    numbers = (tp for gpu, of, tp in FITS if (gpu, of) == (FITTED_ON, model))
    fitted = profile(FITTED_ON, model, min(numbers, key=lambda tp: abs(tp - tensor_parallel)))
    sizes = replace(fitted.sizes, norm_bytes=0.0, divided_bytes=0.0) if device in CHIPS else fitted.sizes
    return law_of(replace(fitted, sizes=sizes, peak=(CHIPS | PEAKS)[device], tp=tensor_parallel))


def kv_copies(model: str, tensor_parallel: int) -> float:
    """Return how many devices of a worker hold the same KV; tensor parallelism beyond the number of its KV heads
    repeats them."""
    sizes = MODEL_SIZES[model]
    kv_heads = sizes.kv_bytes_per_token / (4 * sizes.layers * sizes.head_dim)  # K and V in bfloat16
    return max(1.0, tensor_parallel / kv_heads)


def kv_tokens(device: str, model: str, tensor_parallel: int) -> float:
    """Return the KV tokens that one worker holds beside its weights, counting each token once; 0 if the weights do
    not fit."""
    sizes = MODEL_SIZES[model]
    weights = sizes.weight_bytes + sizes.embedding_bytes
    free = tensor_parallel * (CHIPS | PEAKS)[device].memory * MEMORY_USED - weights
    return max(0.0, free) / (sizes.kv_bytes_per_token * kv_copies(model, tensor_parallel))


@dataclass(frozen=True, slots=True)
class Workload:
    prompt_tokens: int
    output_tokens: int


def prefill_s(law: Law, work: Workload) -> float:
    """Return T_pf, the time of a whole prompt in one step."""
    return law.step_s(work.prompt_tokens, chunk_pairs(work.prompt_tokens, 0), 0, 0)


def step_s(law: Law, batch: int, work: Workload) -> float:
    """Return the ITL of a batch whose answers are half written."""
    context = batch * (work.prompt_tokens + work.output_tokens / 2)
    return law.step_s(batch, 0.0, round(context), batch)


def prefill_rate(law: Law, work: Workload) -> float:
    """Return μ_p = 1/T_pf, prompts per second."""
    return 1 / prefill_s(law, work)


def decode_rate(law: Law, batch: int, work: Workload) -> float:
    """Return μ_d = B_d/(osl · ITL), answers per second."""
    return batch / (work.output_tokens * step_s(law, batch, work))


@dataclass(frozen=True, slots=True)
class Balance:
    """A balance of x prefill workers and y decode workers, with the throughput min(x·μ_p, y·μ_d)."""

    prefill_rate: float  # μ_p, prompts per second of one worker
    decode_rate: float  # μ_d, answers per second of one worker
    prefills: int  # x
    decodes: int  # y

    @property
    def rate(self) -> float:
        return min(self.prefills * self.prefill_rate, self.decodes * self.decode_rate)

    @property
    def slower(self) -> str:
        return "prefill" if self.prefills * self.prefill_rate < self.decodes * self.decode_rate else "decode"

    @property
    def idle_share(self) -> float:
        """Return the idle share of the faster side at that rate, 0–1."""
        return 1 - self.rate / max(self.prefills * self.prefill_rate, self.decodes * self.decode_rate)

    def split(self, accelerators: int, each_prefill: int = 1, each_decode: int = 1) -> "Balance | None":
        """Return the split of these accelerators with the highest rate, on a tie the smallest; None if there are too
        few."""
        return max(self.splits(accelerators, each_prefill, each_decode), key=lambda one: one.rate, default=None)

    def splits(self, accelerators: int, each_prefill: int = 1, each_decode: int = 1) -> "Iterator[Balance]":
        for prefills in range(1, (accelerators - each_decode) // each_prefill + 1):
            yield replace(self, prefills=prefills, decodes=(accelerators - prefills * each_prefill) // each_decode)


def balanced(prefill_rate: float, decode_rate: float) -> Balance:
    """Return x : y = μ_d : μ_p in small numbers: 4/s against 2/s gives 1P2D."""
    slow, fast = sorted((prefill_rate, decode_rate))
    few, many = 1, round(fast / slow)
    if many < MOST_OF_A_SIDE:
        few, many = Fraction(slow / fast).limit_denominator(MOST_OF_A_SIDE).as_integer_ratio()
    prefills, decodes = (few, many) if decode_rate < prefill_rate else (many, few)
    return Balance(prefill_rate, decode_rate, prefills, decodes)


@dataclass(frozen=True, slots=True)
class Stall:
    """Prefill stall in continuous batching of B equal answers: during an answer, each of the other slots is refilled
    once."""

    interruptions: int  # number per answer
    itl_s: float  # mean ITL
    longest_s: float  # longest gap between two tokens


def prefill_stall(law: Law, batch: int, work: Workload) -> Stall:
    """Return ITL = step + (B−1)·T_pf/osl, and its maximum, step + T_pf. Disaggregated, both are the step, for any B."""
    step, prefill = step_s(law, batch, work), prefill_s(law, work)
    return Stall(batch - 1, step + (batch - 1) * prefill / work.output_tokens, step + prefill)


def largest_batch(itl_s: float, law: Law, work: Workload, most: int, *, disaggregated: bool) -> int:
    """Return the largest batch whose mean ITL stays within the limit; 0 if there is none."""
    found = 0
    for batch in range(1, most + 1):
        mean = step_s(law, batch, work) if disaggregated else prefill_stall(law, batch, work).itl_s
        found = batch if mean <= itl_s else found
    return found


def held_rate(batch: int, transfer_s: float, slot_wait_s: float) -> float:
    """Return λ, the highest rate at which the slots of a prefill worker with this batch never run out: λ·(T_x + slot
    wait) ≤ B_p − 1.
    """
    return (batch - 1) / (transfer_s + slot_wait_s)
