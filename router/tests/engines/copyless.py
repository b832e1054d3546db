"""A CPU worker of vLLM that does not copy recurrent states between blocks, because CPUs lack the kernel for it. Its
answers are meaningless, but the scheduler alone decides what is cached and what is hit.
"""

from typing import Any

from vllm.v1.worker import mamba_utils
from vllm.v1.worker.cpu_worker import CPUWorker


class NoKernel:
    def __getitem__(self, grid: object) -> Any:
        return lambda *given, **named: None


class CopylessWorker(CPUWorker):
    def __init__(self, *given: Any, **named: Any) -> None:
        for name in ("precopy_mamba_align_fused_kernel", "postprocess_mamba_fused_kernel"):
            setattr(mamba_utils, name, NoKernel())
        super().__init__(*given, **named)
