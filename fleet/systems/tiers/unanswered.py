"""Questions that the publication leaves open, as closed forms: time of profiling and of events, reduces on the link of
the drives, drives of another node. Pure."""

from dataclasses import replace

from fleet.engine.law import Law
from fleet.engine.tiers.devices import REMOTE, SSD, SSD_TUTTI, TierDevice
from fleet.engine.tiers.loading import CHUNK
from fleet.engine.tiers.sizes import KvLayout

PROFILED = (512, 1_024, 2_048, 4_096, CHUNK)  # inputs of the table of slack, tokens
LINK_BYTES_PER_S = 55e9  # one GPU's link to the host and to drives, one way: measured on an H200


def profiling_s(law: Law, longest: int) -> float:
    """Return the time of one pass for each input of the table of slack, after each prefix of whole chunks up to the
    longest prompt; it grows with the square of that."""
    return sum(law.prefill_s(new, prefix) for prefix in range(0, longest, CHUNK) for new in PROFILED)


def events_share(law: Law, layers: int, event_s: float) -> float:
    """Return the share of one sequence's decode step, 0–1, that events before and after each layer's writes take."""
    return 2 * layers * event_s / law.step_s(1, 0, 0, 1)


def reduced_bytes(hidden: int, tp: int, tokens: int) -> float:
    """Return the bytes that a GPU sends in a layer of tensor parallel: two all-reduces in 16 bits, each in a ring."""
    return 2 * 2 * (tp - 1) / tp * hidden * 2 * tokens


def of_another_node(layout: KvLayout) -> dict[str, TierDevice]:
    """Return another node's drives by who controls the reads: its CPU, which copies each object through host memory
    and then sends it, as published; or GPUs, which only the network slows down."""
    network = REMOTE.read_bytes_per_s
    sent_s = layout.object_bytes / network
    return {
        "Another node's drives, by its CPU": replace(SSD, object_s=SSD.object_s + sent_s),
        "Another node's drives, by GPUs": replace(SSD_TUTTI, read_bytes_per_s=network),
    }
