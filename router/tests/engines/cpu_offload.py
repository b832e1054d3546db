"""vLLM's tiers of memory and files without a GPU: only the worker that copies blocks is replaced.

vLLM's worker copies them by CUDA. Named as `spec_module_path`, this one copies them itself; .engines/bin/python reads
it.
"""

from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    def __init__(self, caches: Any, region: Any) -> None:
        """Accept chunks of one block each."""
        self.groups = caches.group_data_refs
        self.device = [each.tensor for each in caches.tensors]
        self.host = [region.create_next_worker_view(each.page_size_bytes) for each in caches.tensors]
        self.region = region
        self.done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self.copy(job_id, src_spec, (self.device, src_spec.block_ids), (self.host, dst_spec.block_ids))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self.copy(job_id, dst_spec, (self.host, src_spec.block_ids), (self.device, dst_spec.block_ids))

    def copy(self, job_id: int, places: Any, source: Sequence[Any], target: Sequence[Any]) -> bool:
        at = copied = 0
        for refs, size in zip(self.groups, places.group_sizes, strict=True):
            pairs = list(zip(source[1][at : at + size], target[1][at : at + size], strict=True))
            at += size
            for ref in refs:
                for block, other in pairs:
                    page = ref.page_size_bytes
                    target[0][ref.tensor_idx][other, :page] = source[0][ref.tensor_idx][block, :page]
                    copied += page
        self.done.append(TransferResult(job_id, True, copied, 1e-3))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self.done = self.done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Do nothing, because a copy has ended before it is reported."""

    def shutdown(self) -> None:
        self.region.cleanup()


class CopyingSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyingWorker(kv_caches, region)
        return self._worker
