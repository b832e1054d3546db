"""Media that hold KV below HBM: how each moves blocks, and the sources of its numbers. Numbers are from "Tutti: Making
SSD-Backed KV Cache Practical for Long-Context LLM Serving" (arXiv 2605.03375), measured on one H100 with Llama-3-8B and
two D7-PS1010 drives, and from Mooncake. *Fitted* numbers are solved from one figure of that paper.
"""

from dataclasses import dataclass, replace
from typing import Literal

# block: the whole batch waits until the blocks are there; layers: layer l + 1 loads while layer l computes;
# async: the request waits outside the batch
Mode = Literal["block", "layers", "async"]
# naive: a read beside writes is slower; slack: writes wait for time without reads
Contention = Literal["none", "naive", "slack"]
Metadata = Literal["none", "prp", "sgl"]  # list of addresses that the device needs in GPU memory

NAIVE_SHARE = 0.41  # share of its speed that a read retains beside a naive write: 12 of 29 GB/s in figure 6
SLACK_SHARE = 0.5  # assumed share of a decode step in which slack-aware writes run
BACKLOG_SHARE = 0.2  # assumed share of the KV pool that may wait to be written before admission stops
LAYER_PASS_S = 0.217  # shortest time of a layer-wise pass: fitted to figure 13 (Tutti 98.3 %); unexplained by bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class TierDevice:
    name: str
    mode: Mode
    read_bytes_per_s: float
    write_bytes_per_s: float
    setup_s: float = 0.0  # set-up per load
    layer_setup_s: float = 0.0  # set-up per layer of a load
    object_s: float = 0.0  # control time per object: K or V of one block and layer
    busy_read_bytes_per_s: float | None = None  # rate while the sender computes; None: the same
    contention: Contention = "none"
    staging_share: float = 0.0  # share of a load that is staged in GPU memory outside the pool
    io_share: float = 0.0  # share of the GPU's multiprocessors that I/O occupies, 0–1
    metadata: Metadata = "none"
    endurance: bool = False  # True: writes wear it out
    medium: str = "DISK"  # medium's name in KV events


_OBJECT_BYTES = 131_072  # one object of figures 9 and 11: Llama-3-8B, blocks of 64 tokens
DRIVES = 2  # D7-PS1010
DRIVE_BYTES_PER_S = 14.5e9  # read rate of one drive
_PEAK = DRIVES * DRIVE_BYTES_PER_S
_AT_128K = 131_072 * 131_072  # bytes that figure 9 retrieves

DRAM = TierDevice(name="dram", mode="layers", read_bytes_per_s=50e9, write_bytes_per_s=18.4e9, medium="CPU")
# Set-up time required by figure 13's crossover at 97.9 % at the link's rate: 4.15 ms per layer; used only in the
# reproduction. Figures 2 and 11 confirm it; a lower rate instead (19.4 GB/s) would reverse the sign of figure 11. It
# does not come from the medium: on an H200, vLLM's own offloading read 6,000 tokens back in 14 ms
# (docs/findings/gpu.md), whereas this set-up takes 133 ms.
_AT_CROSSOVER = 0.979 * 32_768 * 131_072  # bytes
DRAM_FITTED = replace(DRAM, layer_setup_s=(LAYER_PASS_S - _AT_CROSSOVER / DRAM.read_bytes_per_s) / 32)
SSD = TierDevice(
    name="ssd",
    mode="block",
    read_bytes_per_s=_PEAK,
    write_bytes_per_s=3.4e9,
    object_s=_OBJECT_BYTES / 3.4e9,
    contention="naive",
    endurance=True,
)
SSD_GDS = TierDevice(
    name="ssd-gds",
    mode="block",
    read_bytes_per_s=_PEAK,
    write_bytes_per_s=7e9,
    setup_s=0.40,
    object_s=_OBJECT_BYTES / 11.9e9,
    contention="naive",
    staging_share=0.45,
    endurance=True,
)
SSD_TUTTI = TierDevice(
    name="ssd-tutti",
    mode="layers",
    read_bytes_per_s=_PEAK,
    write_bytes_per_s=10e9,
    layer_setup_s=(_AT_128K / 25.9e9 - _AT_128K / _PEAK) / 32,
    contention="slack",
    metadata="sgl",
    endurance=True,
)
REMOTE = TierDevice(
    name="remote",
    mode="async",
    read_bytes_per_s=9.7e9,
    write_bytes_per_s=9.7e9,
    setup_s=3e-3,
    busy_read_bytes_per_s=3e9,
)


def with_prp(device: TierDevice, object_bytes: float) -> TierDevice:
    """Return the same drives with one command per page of an object instead of one per object, and with enough
    concurrent commands to bring whole objects to the drives' rate."""
    rate = device.read_bytes_per_s * PAGE_BYTES / max(object_bytes, PAGE_BYTES)
    return replace(
        device,
        metadata="prp",
        object_s=max(device.object_s, object_bytes / rate),
        write_bytes_per_s=min(device.write_bytes_per_s, rate),
    )


def on_drives(device: TierDevice, number: int, read_bytes_per_s: float) -> TierDevice:
    """Return the same access to the given number of drives with another rate each, and writes in proportion. Parts
    controlled by the CPU do not benefit from faster drives.
    """
    peak = number * read_bytes_per_s
    writes = SSD_TUTTI.write_bytes_per_s * peak / _PEAK
    bound = min(device.write_bytes_per_s, writes) if device.object_s else writes
    return replace(device, read_bytes_per_s=peak, write_bytes_per_s=bound)


DEVICES = {device.name: device for device in (DRAM, SSD, SSD_GDS, SSD_TUTTI, REMOTE)}

# Time of one NVMe command if commands run one after another, fitted to PRP's 0.29 GB/s in pages of 4 KiB. It predicts
# 9.3 GB/s for SGL, whose command covers an object of 128 KiB; published: 8.9.
COMMAND_S, PAGE_BYTES = 4096 / 0.29e9, 4096

# (device, field): source of its number. All others are defaults.
SOURCES = {
    ("dram", "mode"): "LMCache loads by layers from host memory",
    ("dram", "read_bytes_per_s"): "the link, as published; 56 GB/s were measured on an H200",
    ("dram", "write_bytes_per_s"): "figure 9",
    ("ssd", "mode"): "LMCache loads whole prompts through host memory",
    ("ssd", "read_bytes_per_s"): "figure 6: two D7-PS1010",
    ("ssd", "write_bytes_per_s"): "assumed: the rate of its reads",
    ("ssd", "object_s"): "fitted to figure 11: 7.84 s, which is 3.4 GB/s in objects of 128 KiB",
    ("ssd", "contention"): "figure 6: 12 of 29 GB/s are left beside writes",
    ("ssd-gds", "mode"): "LMCache loads whole prompts",
    ("ssd-gds", "read_bytes_per_s"): "figure 6: two D7-PS1010",
    ("ssd-gds", "write_bytes_per_s"): "figure 9",
    ("ssd-gds", "setup_s"): "fitted to figure 8: mean TTFT of 3.9 s",
    ("ssd-gds", "object_s"): "figure 9: 11.9 GB/s in objects of 128 KiB",
    ("ssd-gds", "contention"): "figure 6: 12 of 29 GB/s are left beside writes",
    ("ssd-gds", "staging_share"): "fitted: out of memory at 512K and 640K tokens of GLM-4-9B-1M",
    ("ssd-tutti", "mode"): "the GPU loads layer by layer",
    ("ssd-tutti", "read_bytes_per_s"): "figure 6: two D7-PS1010",
    ("ssd-tutti", "write_bytes_per_s"): "figure 9",
    ("ssd-tutti", "layer_setup_s"): "fitted to figure 9: 25.9 GB/s at 128K tokens",
    ("ssd-tutti", "contention"): "a slack-aware scheduler; its table is not published",
    ("ssd-tutti", "metadata"): "15 MiB for a pool of 60 GiB, where PRP lists take 3.75 GiB",
    ("remote", "mode"): "as in vLLM's connector of the Mooncake store",
    ("remote", "read_bytes_per_s"): "Mooncake over RDMA, sender idle",
    ("remote", "write_bytes_per_s"): "assumed: the rate of its reads",
    ("remote", "setup_s"): "assumed",
    ("remote", "busy_read_bytes_per_s"): "Mooncake over RDMA, sender computing",
}
