"""Ready-made plans for a draft, from the shortest to the most careful; each is a card of the form. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from controlplane.traffic.deliveries.plan.reader import HOUR
from controlplane.traffic.deliveries.plan.types import Canary, ComparisonGuard, Full, Guard, Plan, Shadow
from controlplane.traffic.deliveries.timing.durations import words

STANDARD = "standard"
STRICTER = 0.5  # factor on the limits of the standard guards


@dataclass(frozen=True, slots=True)
class Preset:
    key: str  # value of ?plan=
    title: str
    about: str
    plan: Plan

    @property
    def takes(self) -> str:
        """Return the shortest duration as text."""
        return words(self.plan.least_s)

    @property
    def shares(self) -> str:
        """Return the shares of the plan's canaries: 5 %, 25 %."""
        return ", ".join(f"{100 * step.share:g} %" for step in self.plan.steps if isinstance(step, Canary))


def presets(standard: Plan, short: Plan | None) -> Iterator[Preset]:
    """Yield the presets. `short` adds a plan that is offered only for simulated engines."""
    if short is not None:
        yield Preset("short", "Short", "Wide limits, for simulated engines: nothing can break.", short)
    yield Preset(STANDARD, "Standard", "Asks a person before everybody gets it.", standard)
    day = (Shadow(1.0, 600), Canary(0.05, HOUR, 4 * HOUR), Canary(0.25, 2 * HOUR, 6 * HOUR))
    half = Canary(0.5, 3 * HOUR, 9 * HOUR)
    about = "Sees the hours of a working day, and goes live by itself."
    yield Preset("day", "A day", about, replace(standard, steps=(*day, half, Full(HOUR))))
    slow = (Shadow(1.0, 1800), Canary(0.01, HOUR, 6 * HOUR), Canary(0.05, 2 * HOUR, 12 * HOUR))
    last = Canary(0.25, 4 * HOUR, 24 * HOUR, "ask")
    guards = tuple(_stricter(guard) for guard in standard.guards)
    about = "Begins with one request in a hundred, under half the limits; asks a person."
    yield Preset("careful", "Careful", about, replace(standard, steps=(*slow, last, Full(2 * HOUR)), guards=guards))


def _stricter(guard: Guard) -> Guard:
    if not isinstance(guard, ComparisonGuard):
        return guard
    fine = None if guard.fine is None else STRICTER * guard.fine
    return replace(guard, worse=STRICTER * guard.worse, fine=fine)


def chosen(offered: Sequence[Preset], key: str) -> Preset:
    """Return the named preset, or the standard plan."""
    by_key: Mapping[str, Preset] = {preset.key: preset for preset in offered}
    return by_key.get(key, by_key[STANDARD])
