"""The time to load a prefix from a tier, and when to compute it instead. Closed forms, all in seconds.

T_io(c)  = setup + max(objects · control, c · bytes per token / rate)
block    T = T_io + T_c                                               T_c: computing the new tokens after c
layers   T = t_io + (L − 1) · max(t_io, t_c) + t_c + further chunks   t: per layer of the first chunk's pass
async    T = T_c; the request first waits T_io outside the batch
"""

from bisect import bisect_left
from dataclasses import replace
from functools import partial

from fleet.engine.law import Law
from fleet.engine.power import UNKNOWN
from fleet.engine.tiers.devices import NAIVE_SHARE, TierDevice
from fleet.engine.tiers.sizes import KvLayout

CHUNK = 8192  # tokens of a step
ATTENTION = 1.6  # factor on the law's attention over paged prefixes, fitted to figure 11 of Tutti, 3.43 s


def paged(law: Law, attention: float = ATTENTION) -> Law:
    # Measured with prompts that take seconds; it therefore includes the clock of a GPU under full load.
    return replace(law, attention_s_per_pair=law.attention_s_per_pair * attention).drawing(UNKNOWN)


def load_s(device: TierDevice, layout: KvLayout, tokens: int, *, busy: bool = False) -> float:
    """Return T_io of a prefix. `busy`: the sender computes."""
    if tokens <= 0:
        return 0.0
    rate = device.busy_read_bytes_per_s if busy and device.busy_read_bytes_per_s else device.read_bytes_per_s
    setup = device.setup_s + device.layer_setup_s * layout.layers
    return setup + max(layout.objects(tokens) * device.object_s, layout.bytes(tokens) / rate)


def store_s(device: TierDevice, layout: KvLayout, tokens: int) -> float:
    return layout.bytes(tokens) / device.write_bytes_per_s


def lost_to_writes_s(io_s: float, writes_s: float, share: float = NAIVE_SHARE) -> float:
    """Return the time that a load of `io_s` loses to naive writes: at most their remaining time, and at most the cost
    of its reduced speed."""
    return max(0.0, min(writes_s, io_s * (1 / share - 1)))


def effective_bytes_per_s(device: TierDevice, layout: KvLayout, tokens: int) -> float:
    """Return the rate per GPU. It grows with the prefix, because the set-up is spread over more bytes."""
    return layout.bytes(tokens) / load_s(device, layout, tokens)


def bubble_s(io_s: float, compute_s: float, layers: int) -> float:
    """Return the time for which the GPU waits in a layer-wise pass: for the first layer, then for each layer that
    loads more slowly than its predecessor computes."""
    return io_s / layers + (layers - 1) * max(0.0, io_s - compute_s) / layers


def pipeline_s(io_s: float, compute_s: float, layers: int) -> float:
    """Return the time of one layer-wise pass: t_io + (L − 1) · max(t_io, t_c) + t_c."""
    return compute_s + bubble_s(io_s, compute_s, layers)


def exposed_s(device: TierDevice, layers: int, io_s: float, first_s: float, floor_s: float = 0.0) -> float:
    """Return the time that a load of `io_s` adds to computing. `first_s` is the duration of the first chunk's step,
    `floor_s` the shortest time of a layer-wise pass."""
    if not io_s:
        return 0.0
    if device.mode != "layers":
        return io_s
    return pipeline_s(io_s, max(first_s, floor_s), layers) - first_s


def prefill_s(
    law: Law, device: TierDevice, layout: KvLayout, new: int, loaded: int, *, chunk: int = CHUNK, floor_s: float = 0.0
) -> float:
    """Return T for loading `loaded` tokens and then computing `new` tokens, on an idle engine."""
    first_s = law.prefill_s(min(new, chunk), loaded, chunk)
    io_s = load_s(device, layout, loaded)
    return law.prefill_s(new, loaded, chunk) + exposed_s(device, layout.layers, io_s, first_s, floor_s)


def is_worth_loading(
    law: Law, device: TierDevice, layout: KvLayout, new: int, loaded: int, *, chunk: int = CHUNK, floor_s: float = 0.0
) -> bool:
    """Return whether loading the tokens takes less time than computing them."""
    return prefill_s(law, device, layout, new, loaded, chunk=chunk, floor_s=floor_s) < law.prefill_s(
        new + loaded, 0, chunk
    )


def shortest_worth_loading(
    law: Law, device: TierDevice, layout: KvLayout, new: int = 1, *, floor_s: float = 0.0, limit: int = 1 << 20
) -> int | None:
    """Return the shortest run worth loading, in tokens; None if no run up to `limit` is."""
    pays = partial(is_worth_loading, law, device, layout, new, floor_s=floor_s)
    return bisect_left(range(limit), True, 1, key=pays) if pays(limit) else None


def crossover(law: Law, device: TierDevice, layout: KvLayout, prompt: int, *, floor_s: float = 0.0) -> float:
    """Return the cached share of a prompt, 0–1, at which loading takes as long as computing the rest."""
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        new = max(1, round(prompt * (1 - share)))
        compute_s = max(law.prefill_s(new, prompt - new), floor_s)
        low, high = (share, high) if load_s(device, layout, prompt - new) <= compute_s else (low, share)
    return low
