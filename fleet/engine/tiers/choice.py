"""Decides how much of a prompt is worth loading from the tiers rather than computing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.engine.law import Law
from fleet.engine.tiers.devices import TierDevice
from fleet.engine.tiers.loading import load_s, pipeline_s
from fleet.engine.tiers.model import TiersModel

Run = tuple[int, int]  # (tier number, count) of consecutive blocks of a chain on one tier


@dataclass(slots=True)
class BlockLoads:
    """The blocks that a request loads, by tier."""

    tokens: list[int]
    hashes: list[list[int]]
    io_s: list[float]  # seconds of reads by tier, excluding the prefetched part


def lengthened_s(devices: Sequence[TierDevice], io_s: Sequence[float], law_s: float, model: TiersModel) -> float:
    """Return the duration of a step of `law_s` with these loads: block loads precede the step, layer-wise loads
    overlap with it."""
    blocks = sum(io for device, io in zip(devices, io_s, strict=True) if device.mode != "layers")
    layers = sum(io for device, io in zip(devices, io_s, strict=True) if device.mode == "layers")
    if not layers:
        return blocks + law_s
    return blocks + pipeline_s(layers, max(law_s, model.floor_s), model.layout.layers)


def best_cut(
    runs: Sequence[Run],
    model: TiersModel,
    law: Law,
    *,
    block_size: int,
    before: int,
    upto: int,
    chunk: int,
    hidden_s: Sequence[float],
) -> int:
    """Return how many of the runs to load for the earliest first token of a request that is alone in the engine.
    `before`: tokens in HBM; `upto`: tokens of the prompt; `hidden_s`: seconds of a load that have already been done, by
    tier."""
    if model.always_load:
        return len(runs)
    devices = [tier.device for tier in model.tiers]
    tokens, cut = [0] * len(devices), before
    best, least_s = 0, law.prefill_s(upto - before, before, chunk)
    for count, (tier, blocks) in enumerate(runs, start=1):
        tokens[tier] += blocks * block_size
        cut += blocks * block_size
        io_s = [
            max(0.0, load_s(device, model.layout, own) - hidden)
            for device, own, hidden in zip(devices, tokens, hidden_s, strict=True)
        ]
        first_s = law.prefill_s(min(upto - cut, chunk), cut, chunk)
        whole_s = law.prefill_s(upto - cut, cut, chunk) - first_s + lengthened_s(devices, io_s, first_s, model)
        if whole_s < least_s:
            best, least_s = count, whole_s
    return best
