"""Settings that trade throughput (TPS/GPU) against the speed for one user (TPS/user) [N]."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Knob:
    setting: str  # of TensorRT-LLM
    tps_gpu: str  # value that favours TPS/GPU
    tps_user: str
    why: str


KNOBS = (
    Knob("max_num_tokens", "higher", "lower", "A larger iteration also widens the window that hides DWDP's copy."),
    Knob("max_batch_size", "higher", "lower", "More sequences share a step; each waits for it longer."),
    Knob(
        "capacity_scheduler_policy",
        "MAX_UTILIZATION",
        "GUARANTEED_NO_EVICT",
        "The first admits more than fits and may evict; the second reserves all that a request can need.",
    ),
    Knob("enable_chunked_prefill", "off", "on", "Chunks let decodes through; they narrow DWDP's window."),
    Knob("free_gpu_memory_fraction", "higher", "lower", "More KV cache holds more sequences."),
    Knob("context GPUs", "fewer", "more", "The strongest: DWDP serves the same users with fewer, and TTFT rises."),
    Knob("speculative_config", "off", "on", "Pays at low load; under load, rejected tokens cost throughput."),
)
