"""Cost of each question on an engine with one tier below HBM: where its document is held, loading, computing.
Caches hold whole documents, except for documents larger than the cache, and drop the least recently used. A tier is
written through: it gets every document as soon as it is computed. All of this follows from the order of the questions,
so it is the same at any rate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fleet.engine.law import API_S, Law
from fleet.engine.tiers.cache import TierCache
from fleet.engine.tiers.devices import LAYER_PASS_S, TierDevice
from fleet.engine.tiers.loading import CHUNK, bubble_s, exposed_s, is_worth_loading, load_s
from fleet.engine.tiers.sizes import KvLayout
from fleet.systems.tiers.load import Question

TOKENIZE_S = 1.1e-6  # tokenisation per prompt token


@dataclass(frozen=True, slots=True)
class TieredEngine:
    law: Law  # law with attention over paged prefixes
    layout: KvLayout
    hbm_tokens: float
    floor_s: float = LAYER_PASS_S  # least time of a layer-wise pass
    api_s: float = API_S
    tokenize_s: float = TOKENIZE_S
    picks_faster: bool = False  # True: load only what could not be computed faster; LMCache loads whatever it has


@dataclass(frozen=True, slots=True)
class TierCapacity:
    """A medium below HBM with its capacity; without a device, HBM alone."""

    device: TierDevice | None = None
    tokens: float = 0.0


class PrefillJob(NamedTuple):
    """A prefill on an idle engine."""

    prompt: int
    new: int  # computed tokens
    near: int  # tokens from HBM
    far: int  # tokens from the tier
    compute_s: float
    exposed_s: float  # part of the load that adds to computing
    load_s: float
    bubble_s: float  # time for which the GPU waits
    slack_s: float  # slack of a layer-wise load: time in which the drives are free while the GPU computes

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.exposed_s


def jobs(engine: TieredEngine, tier: TierCapacity, asked: Iterable[Question], question_tokens: int) -> list[PrefillJob]:
    hbm, below = (TierCache(tokens, high=1.0, low=1.0) for tokens in (engine.hbm_tokens, tier.tokens))
    known: dict[tuple[int, int, int], PrefillJob] = {}  # jobs by shape, as several questions are asked about a document
    made = []
    for each in asked:
        near = each.tokens if each.document in hbm else 0
        far = each.tokens if not near and each.document in below else 0
        key = each.tokens, near, far
        if key not in known:
            known[key] = job(engine, tier.device, each.tokens + question_tokens, near, far)
        made.append(known[key])
        for cache in (hbm, below):
            cache.put([each.document], each.tokens)
            cache.evict()
    return made


def job(engine: TieredEngine, device: TierDevice | None, prompt: int, near: int, far: int) -> PrefillJob:
    """Return the prefill. `near` tokens of the prompt are in HBM, `far` in the tier."""
    law, layout = engine.law, engine.layout
    if device is not None and engine.picks_faster and far:
        new = prompt - near - far
        far = far if is_worth_loading(law, device, layout, new, far, floor_s=engine.floor_s) else 0
    new = prompt - near - far
    slower = 1 / (1 - device.io_share) if device is not None else 1.0  # at most: as if all of a pass were arithmetic
    compute_s = law.prefill_s(new, near + far, CHUNK) * slower
    if device is None or not far:
        return PrefillJob(prompt, new, near, 0, compute_s, 0.0, 0.0, 0.0, compute_s)
    io_s = load_s(device, layout, far)
    first_s = compute_s if new <= CHUNK else law.prefill_s(CHUNK, near + far, CHUNK) * slower
    added_s = exposed_s(device, layout.layers, io_s, first_s, engine.floor_s)
    if device.mode != "layers":
        return PrefillJob(prompt, new, near, far, compute_s, added_s, io_s, io_s, compute_s)
    pass_s = max(first_s, engine.floor_s)
    bubble = bubble_s(io_s, pass_s, layout.layers)
    return PrefillJob(
        prompt, new, near, far, compute_s, added_s, io_s, bubble, max(0.0, pass_s - io_s) + compute_s - first_s
    )
