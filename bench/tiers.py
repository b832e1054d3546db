"""Published values of Tutti by the twin's engine, event by event: figures 8 and 13, and LooGLE.

    .venv/bin/python -m bench.tiers

About three minutes of CPU. It writes docs/findings/tables/tutti-played.csv, which tests hold to it.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from statistics import fmean, median

from bench import sheets, tier_events
from bench.tier_events import PlayedRuns
from fleet.counted import percent
from fleet.engine.tiers.devices import DRAM_FITTED, SSD, SSD_TUTTI, TierDevice
from fleet.systems.basis import Basis
from fleet.systems.tiers.benchmarks import LEVAL_DOCUMENTS
from fleet.systems.tiers.load import LEVAL, LOOGLE, QuestionLoad
from fleet.systems.tiers.published import AT_LEAST, FITTED_TTFT, HITS, LOOGLE_HITS, RATES, TITLES, TTFT_S

K = 1024
FIGURE_8_RATE = 1.5  # requests/s
FIGURE_8_RUNS = PlayedRuns(seeds=9, warm=1_500, measured=2_000)
RATE_RUNS = PlayedRuns(seeds=3, warm=1_500, measured=1_000)
LOOGLE_RATE = 0.6
LOOGLE_RUNS = PlayedRuns(seeds=9, warm=1_000, measured=600)
ITL_RUNS = PlayedRuns(seeds=3, warm=500, measured=1_000)
ITL_BELOW = {"dram": 22.0, "ssd-gds": 24.4}  # %
# Answers of the first length are assumed; the second one is chosen for both published values.
ANSWERS, FITTED_ANSWER, SEQUENCES = (64, 740), 740, 64
HEADER = ("value", "published", "event by event", "error", "basis")


def rows() -> Iterator[tuple[str, ...]]:
    yield from crossovers()
    yield from loogle()
    yield from figure_8()
    yield from capacities()
    yield from gaps()


def _row(name: str, published: float, ours: float, unit: str, basis: Basis = "predicted") -> tuple[str, ...]:
    error = percent((ours - published) / published, "+.0f")
    return name, f"{published:g} {unit}", f"{ours:.3g} {unit}", error, basis


def crossovers() -> Iterator[tuple[str, ...]]:
    by_layers = replace(SSD, mode="layers", object_s=SSD.object_s * 3.4 / 3.3)  # rate of figure 11
    rows: tuple[tuple[str, TierDevice, float, Basis], ...] = (
        ("LMCache-SSD", by_layers, 50, "predicted"),
        ("LMCache-DRAM by layers", DRAM_FITTED, 97.9, "fitted"),
        ("Tutti", SSD_TUTTI, 98.3, "fitted"),
    )
    for title, device, published, basis in rows:
        ours = tier_events.crossover(device, 32 * K) * 100
        yield _row(f"Figure 13: crossover of 32K, {title}", published, ours, "%", basis)
    bubble = tier_events.bubble_s(SSD_TUTTI, 30 * K, 32 * K) * 1e3
    yield _row("Figure 13: bubble of Tutti, 32K, 93.75 % cached", 6, bubble, "ms")
    left = (16 * K, 8 * K, 4 * K, 2 * K, K, 512, 256)
    mean = fmean(tier_events.bubble_s(SSD_TUTTI, 32 * K - new, 32 * K) for new in left) * 1e3
    yield _row("Figure 13: bubble of Tutti, mean over 50 to 100 % cached", 25, mean, "ms")


def loogle(played: Collection[str] = ("ssd-gds", "dram", "ssd-tutti")) -> Iterator[tuple[str, ...]]:
    """Yield the ratios to Tutti's time; Tutti is among those that are played."""
    runs = {tier: _runs(tier, LOOGLE, LOOGLE_RATE, LOOGLE_RUNS) for tier in played}
    ttft_s = {tier: median(one for one, _ in found) for tier, found in runs.items()}
    ratios = {"ssd-gds": 2.63, "dram": 14.7}
    for tier, published in ((tier, ratios[tier]) for tier in played if tier in ratios):
        ours = ttft_s[tier] / ttft_s["ssd-tutti"]
        name = f"LooGLE, {LOOGLE_RATE} requests/s: TTFT of {TITLES[tier]} over Tutti"
        yield _row(name, published, ours, "×", "fitted" if tier == "ssd-gds" else "predicted")
    for tier in (each for each in played if each in LOOGLE_HITS):
        yield _row(f"LooGLE: hits, {TITLES[tier]}", LOOGLE_HITS[tier], _hits(runs[tier]), "%", "fitted")


def figure_8(played: Collection[str] = tuple(TTFT_S)) -> Iterator[tuple[str, ...]]:
    """Yield medians of the runs: single ones differ by half."""
    runs = {tier: _runs(tier, LEVAL, FIGURE_8_RATE, FIGURE_8_RUNS) for tier in played}
    for tier, published in ((tier, TTFT_S[tier]) for tier in played):
        ours = median(ttft_s for ttft_s, _ in runs[tier])
        basis: Basis = "fitted" if tier in FITTED_TTFT else "predicted"
        yield _row(f"Figure 8, 1.5 requests/s: mean TTFT, {TITLES[tier]}", published, ours, "s", basis)
    for tier, published in ((tier, HITS[tier]) for tier in played if tier in HITS):
        yield _row(f"Table 1: hits, {TITLES[tier]}", published, _hits(runs[tier]), "%", "fitted")


def _runs(tier: str, load: QuestionLoad, rate: float, runs: PlayedRuns) -> list[tuple[float, float]]:
    return [tier_events.played(tier, load, rate, seed, runs) for seed in range(runs.seeds)]


def _hits(runs: list[tuple[float, float]]) -> float:
    return 100 * median(cached for _, cached in runs)


HIGHEST = {"dram": 2.0, "ssd-gds": 1.5, "ssd-tutti": 4.0}  # requests/s at which the search for the rate ends


def capacities(played: Collection[str] = tuple(HIGHEST)) -> Iterator[tuple[str, ...]]:
    for tier, highest in ((tier, HIGHEST[tier]) for tier in played):
        ours = tier_events.capacity(tier, LEVAL, 1.0, highest, RATE_RUNS)
        least = f", {AT_LEAST}" if tier == "ssd-tutti" else ""
        yield _row(f"Figure 8: requests/s with a mean TTFT up to 1 s, {TITLES[tier]}{least}", RATES[tier], ours, "1/s")


def gaps() -> Iterator[tuple[str, ...]]:
    """Yield the ITL with L-Eval's own documents: the publication names neither the length of its answers nor the
    batch."""
    for tokens in ANSWERS:
        itl_s = {
            tier: tier_events.itl_s(tier, LEVAL_DOCUMENTS, FIGURE_8_RATE, ITL_RUNS, output=tokens, sequences=SEQUENCES)
            for tier in ("ssd-tutti", *ITL_BELOW)
        }
        for tier, published in ITL_BELOW.items():
            load = f"L-Eval's own documents, {FIGURE_8_RATE} requests/s"
            name = f"{load}: ITL of Tutti below {TITLES[tier]}, answers of {tokens} tokens"
            basis: Basis = "fitted" if tokens == FITTED_ANSWER else "predicted"
            yield _row(name, published, 100 * (1 - itl_s["ssd-tutti"] / itl_s[tier]), "%", basis)


def main() -> None:
    table: list[tuple[str, ...]] = [HEADER]
    for row in rows():
        table.append(row)
        print(f"| {' | '.join(row)} |", flush=True)
    sheets.save("tutti-played", table)


if __name__ == "__main__":
    main()
