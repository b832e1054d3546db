"""Published values of Tutti by the twin's engine, event by event: figure 13, LooGLE, and the rates of figure 8.

    .venv/bin/python -m bench.tiers

About a minute of CPU. Tests hold the table in docs/twin.md to it.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from fleet.engine.tiers.devices import DRAM, SSD, SSD_TUTTI
from fleet.systems.tiers import events
from fleet.systems.tiers.events import Runs
from fleet.systems.tiers.load import LEVAL, LOOGLE

K = 1024
TITLES = {
    "ssd-gds": "LMCache-GDS",
    "dram": "LMCache-DRAM",
    "ssd-tutti": "Tutti",
}
RATES = Runs(seeds=3, warm=1_500, measured=1_000)
LOOGLE_RUNS = Runs(seeds=3, warm=1_000, measured=600)
HEADER = ("value", "published", "event by event", "error", "fitted")


def rows() -> Iterator[tuple[str, ...]]:
    yield from crossovers()
    yield from loogle()
    yield from capacities()


def _row(name: str, published: float, ours: float, unit: str, *, fitted: bool = False) -> tuple[str, ...]:
    error = f"{(ours - published) / published:+.0%}"
    return name, f"{published:g} {unit}", f"{ours:.3g} {unit}", error, "yes" if fitted else ""


def crossovers() -> Iterator[tuple[str, ...]]:
    by_layers = replace(SSD, mode="layers", object_s=SSD.object_s * 3.4 / 3.3)  # its rate in figure 11
    for title, device, published, fitted in (
        ("LMCache-SSD", by_layers, 50, False),
        ("LMCache-DRAM by layers", DRAM, 97.9, True),
        ("Tutti", SSD_TUTTI, 98.3, True),
    ):
        ours = events.crossover(device, 32 * K) * 100
        yield _row(f"Figure 13: crossover of 32K, {title}", published, ours, "%", fitted=fitted)
    bubble = events.bubble_s(SSD_TUTTI, 30 * K, 32 * K) * 1e3
    yield _row("Figure 13: bubble of Tutti, 32K, 93.75 % cached", 6, bubble, "ms")
    left = (16 * K, 8 * K, 4 * K, 2 * K, K, 512, 256)
    mean = fmean(events.bubble_s(SSD_TUTTI, 32 * K - new, 32 * K) for new in left) * 1e3
    yield _row("Figure 13: bubble of Tutti, mean over 50 to 100 % cached", 25, mean, "ms")


def loogle() -> Iterator[tuple[str, ...]]:
    ttft_s = {tier: events.ttft_s(tier, LOOGLE, 0.6, LOOGLE_RUNS) for tier in ("ssd-gds", "dram", "ssd-tutti")}
    for tier, published in (("ssd-gds", 2.63), ("dram", 14.7)):
        ours = ttft_s[tier] / ttft_s["ssd-tutti"]
        name = f"LooGLE, 0.6 requests/s: TTFT of {TITLES[tier]} over Tutti"
        yield _row(name, published, ours, "×", fitted=tier == "ssd-gds")


def capacities() -> Iterator[tuple[str, ...]]:
    for tier, published, highest in (("dram", 1.0, 2.0), ("ssd-gds", 0.75, 1.5), ("ssd-tutti", 1.5, 4.0)):
        ours = events.capacity(tier, LEVAL, 1.0, highest, RATES)
        least = ", published: at least" if tier == "ssd-tutti" else ""
        yield _row(f"Figure 8: requests/s with a mean TTFT up to 1 s, {TITLES[tier]}{least}", published, ours, "1/s")


def main() -> None:
    print(f"| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|", flush=True)
    for row in rows():
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
