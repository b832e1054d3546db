"""Tiers and documents for tests."""

from dataclasses import replace
from typing import Any

from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.devices import DEVICES, TierDevice
from fleet.engine.tiers.model import TierModel, TiersModel
from fleet.engine.tiers.sizes import layout_of

LAYOUT = layout_of(profile())
BLOCK_BYTES = LAYOUT.bytes_per_token * 16


def tiers(*names: str, blocks: float = 10_000, always: bool = True, **given: Any) -> TiersModel:
    """Make tiers of `blocks` blocks of 16 tokens each, with the given load time."""
    models = tuple(TierModel(DEVICES[name], blocks * BLOCK_BYTES) for name in names)
    return TiersModel(layout=LAYOUT, tiers=models, always_load=always, **given)


def with_device(model: TiersModel, number: int, **changes: Any) -> TiersModel:
    device: TierDevice = replace(model.tiers[number].device, **changes)
    changed = replace(model.tiers[number], device=device)
    return replace(model, tiers=(*model.tiers[:number], changed, *model.tiers[number + 1 :]))


def document(name: str, prompt: int, output: int = 1, *, of: str) -> EngineRequest:
    """Make a question about a document: equal names of documents mean equal prompts, except for the last block."""
    shared = prompt // 16 - 1
    chain = [hash((of, at)) if at < shared else hash((name, at)) for at in range((prompt + output) // 16)]
    return EngineRequest(name, prompt, output, chain)
