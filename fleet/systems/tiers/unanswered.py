"""Questions that the publication leaves open, in closed form: the time for profiling and for events, reductions over
the drives' link, drives of another node. Pure."""

from dataclasses import replace

from fleet.engine.law import Law
from fleet.engine.tiers.devices import REMOTE, SSD, SSD_TUTTI, TierDevice
from fleet.engine.tiers.loading import CHUNK
from fleet.engine.tiers.sizes import KvLayout

PROFILED = (512, 1_024, 2_048, 4_096, CHUNK)  # tokens; inputs in the table of slack
LINK_BYTES_PER_S = 55e9  # one GPU's link to the host and to drives, one way: measured on an H200


def profiling_s(law: Law, longest: int) -> float:
    """Return the time of one pass for each input in the table of slack, after each prefix of whole chunks up to the
    longest prompt. It grows with the square of the longest prompt."""
    return sum(law.prefill_s(new, prefix) for prefix in range(0, longest, CHUNK) for new in PROFILED)


def events_share(law: Law, layers: int, event_s: float) -> float:
    """Return the share of one sequence's decode step, 0–1, taken by events before and after each layer's writes."""
    return 2 * layers * event_s / law.step_s(1, 0, 0, 1)


def reduced_bytes(hidden: int, tp: int, tokens: int) -> float:
    """Return the bytes that a GPU sends in a layer of tensor parallel: two 16-bit all-reduces, each in a ring."""
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
