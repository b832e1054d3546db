"""One request in the engine, and its progress."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fleet.engine.tiers.choice import BlockLoads
    from fleet.engine.tiers.engine_tiers import Prefetch
import sys
from dataclasses import dataclass


class CachedFrom(NamedTuple):
    """Cached tokens of a prompt, by location."""

    device: int = 0
    host: int = 0
    disk: int = 0
    pulled: int = 0  # from another instance, or a shared store


NOTHING_CACHED = CachedFrom()


class EngineRequest:
    """A request that the scheduler advances in place.

    `chain`: hashes of all full blocks of prompt and answer; a simulated answer is known in advance.
    """

    __slots__ = (
        "arrived_s",
        "awaits_prefill",
        "blocks",
        "cached_tokens",
        "chain",
        "computed",
        "content",
        "finished_s",
        "first_token_s",
        "generated",
        "held",
        "id",
        "interruptions",
        "last_token_s",
        "load",
        "load_s",
        "output_tokens",
        "owner",
        "preemptions",
        "prefetch",
        "prompt_tokens",
        "pull_tokens",
        "pulled_tokens",
        "ready_s",
        "scheduled_s",
        "second_token_s",
        "stored",
        "tier_tokens",
        "written",
    )

    def __init__(
        self,
        id: str,
        prompt_tokens: int,
        output_tokens: int,
        chain: Sequence[int],
        *,
        content: object = None,
        owner: Any = None,
        held: bool = False,
        pull_tokens: int = 0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.chain = chain
        self.content = content  # included in KV events
        self.owner = owner  # the caller's reference, unused by the engine
        self.held = held  # True: its blocks stay until `Engine.release_held`, so that another engine can pull them
        self.pull_tokens = pull_tokens  # prompt tokens whose KV is available elsewhere
        self.awaits_prefill = False  # True until `Engine.prefilled`: another engine is computing its prompt
        self.pulled_tokens = 0  # pulled tokens that have arrived; locally cached tokens are not requested
        self.computed = 0  # tokens whose KV is in blocks
        self.generated = 0
        self.cached_tokens = 0  # prompt tokens that were in the prefix cache at first admission, or pulled
        self.blocks: list[int] = []
        self.stored = 0  # full blocks already in the prefix cache
        self.preemptions = 0
        self.interruptions = 0  # steps with another request's prefill between two of its tokens
        # Used with tiers below HBM.
        self.load: BlockLoads | None = None  # loads for the step in which it joins
        self.load_s = 0.0  # duration of its reads, which may overlap with computing
        self.prefetch: Prefetch | None = None
        self.tier_tokens: tuple[int, ...] = ()  # prompt tokens loaded at first admission, by tier
        self.written = 0  # leading blocks that need not be written any more
        # Virtual seconds; NaN: not yet.
        self.arrived_s = self.ready_s = self.scheduled_s = math.nan
        self.first_token_s = self.second_token_s = self.last_token_s = math.nan
        self.finished_s = math.nan

    def cached_from(self, media: Sequence[str]) -> CachedFrom:
        """Return the cached tokens by location. `media` are the media of the engine's tiers below the GPU."""
        by_medium = {"CPU": 0, "DISK": 0}
        for medium, tokens in zip(media, self.tier_tokens, strict=False):
            by_medium[medium] += tokens
        device = self.cached_tokens - self.pulled_tokens - sum(by_medium.values())
        return CachedFrom(max(device, 0), by_medium["CPU"], by_medium["DISK"], self.pulled_tokens)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def remaining(self) -> int:
        return self.output_tokens - self.generated

    @property
    def is_over(self) -> bool:
        """Return whether the request has finished or was aborted."""
        return self.finished_s == self.finished_s  # false only for NaN


# Runs of similar decode steps, in closed form


@dataclass(slots=True)  # not frozen, which would take four times as long to create
class DecodeRun:
    """Decode steps of the same batch, each longer than the previous one by one token of context per sequence."""

    steps: int  # number of steps until the first sequence ends
    first_s: float  # duration of the next step
    growth_s: float
    batch: int  # sequences
    context: int  # context in the next step, summed over the sequences

    def after(self, steps: int) -> "DecodeRun":
        first_s, context = self.first_s + steps * self.growth_s, self.context + steps * self.batch
        return DecodeRun(self.steps - steps, first_s, self.growth_s, self.batch, context)


def run_s(steps: int, first_s: float, growth_s: float) -> float:
    """Return the duration of `steps` steps, each `growth_s` longer than the previous one."""
    return steps * first_s + growth_s * steps * (steps - 1) / 2


def steps_within(span_s: float, first_s: float, growth_s: float) -> int:
    """Return the largest number of steps that end within the span."""
    if span_s < first_s:
        return 0
    if span_s == math.inf:
        return sys.maxsize
    if growth_s == 0:
        return int(span_s / first_s)
    slope = first_s - growth_s / 2
    steps = int((math.sqrt(slope * slope + 2 * growth_s * span_s) - slope) / growth_s)
    while run_s(steps + 1, first_s, growth_s) <= span_s:
        steps += 1
    while run_s(steps, first_s, growth_s) > span_s:
        steps -= 1
    return steps
