"""The published values of Tutti beside the model's, each in the publication's own setup. [P n]: figure or table n of
arXiv 2605.03375, through published readings of it; [R]: a review of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from controlplane.evidence.systems.system import Figure
from fleet.engine.law import API_S, Law, law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import COMMAND_S, DRAM, DRAM_FITTED, LAYER_PASS_S, SSD, SSD_GDS, SSD_TUTTI, TierDevice
from fleet.engine.tiers.loading import bubble_s, crossover, effective_bytes_per_s, load_s, paged, pipeline_s, prefill_s
from fleet.engine.tiers.sizes import KvLayout, layout_of, metadata_bytes, staging_tokens
from fleet.systems.basis import Basis
from fleet.systems.prices import Prices
from fleet.systems.tiers.benchmarks import LEVAL_DOCUMENTS, LOOGLE_DOCUMENTS
from fleet.systems.tiers.load import LEVAL, LOOGLE
from fleet.systems.tiers.published import (
    AT_LEAST,
    FITTED_TTFT,
    HITS,
    LOOGLE_HITS,
    MORE_RATE,
    RATES,
    TITLES,
    TTFT_BELOW,
    TTFT_S,
)
from fleet.systems.tiers.serving import TOKENIZE_S, TierCapacity, TieredEngine
from fleet.systems.tiers.study import DRAM_GB, SSD_GB, Runs, Study, cost_of, tiers_of

K, GB = 1024, 1e9
HBM_TOKENS = 0.41e6  # Llama-3-8B on an H100 [P]
PLAIN = law_of(profile())
LAW = paged(PLAIN)
LLAMA = layout_of(profile())
GLM = KvLayout(81_920, 40, 2)  # GLM-4-9B-1M on two GPUs
ENGINE = TieredEngine(LAW, LLAMA, HBM_TOKENS)
TIERS = tiers_of(LLAMA.bytes_per_token)
RATE, LOOGLE_RATE, LIMIT_S = 1.5, 0.6, 1.0
UNFITTED_GDS = replace(SSD_GDS, setup_s=0.0)  # no tier has a value fitted to figure 8
SSD_AT_HALF = replace(SSD, object_s=LLAMA.object_bytes / 2.4e9)  # the rate implied by a crossover at 50 % of 32K

NOTES = (
    "[R] compares “9.4 s” with “DRAM's 1.7 s”. Both are per cent: HBM's bubble on two versions of vLLM [P 2].",
    "[R]'s worked example: a layer of a 64K prefix is 268 MB, 10.4 ms at 25.9 GB/s, not 1.2 ms, which is what objects "
    "of 4 KB would take (one KV head of 8). Computing 64K new tokens takes about 130 ms a layer; 3.5 ms is what 1,000 "
    "to 1,400 new tokens take. The subtraction (2.3 ms) holds, “fully hidden” does not.",
    "256,000 objects of 80 KB are 21 GB; 128K tokens of Qwen3-32B are 34 GB. “128K: 155.7 s” stands beside “640K: "
    "1.2 s” [P 12].",
    "LooGLE's cost of −27 % means that GDS serves 27 % less at 0.5 requests/s; then 2.63 times the TTFT at 0.6 "
    "requests/s cannot be a steady state.",
    "[R] says about 140 GB of KV for 128K tokens of Llama-3-70B. That is its weights: 80 layers of 8 KV heads of 128 "
    "in two bytes are 43 GB.",
    "In [R]'s table DRAM at 50 GB/s crosses before SSD at 25.9 GB/s: not by bandwidth.",
    "Figure 2 implies 1.5 GB/s for GDS and SSD alike; figures 9 and 11 imply 8 to 12 and 3.4: these bubbles cannot be "
    "met with the others.",
    "A crossover of LMCache-SSD at 50 % [P 13] implies 2.4 GB/s, which cannot serve figure 8's load: its TTFT would be "
    "116 s, not 6.5.",
    "In figure 13 DRAM has no bubble up to 97.9 % cached, so Tutti cannot be 13.4 % earlier from 12 to 75 % by its "
    "loads [P 11].",
)


def figures() -> tuple[Figure, ...]:
    leval = Study(ENGINE, TIERS, LEVAL, Runs(9, 2_000, 1_500))
    return tuple(
        chain(
            _ttft(leval),
            _below_others(leval),
            _hits(leval, "LEval", "table 1", HITS),
            _capacities(leval),
            _unfitted(),
            _loads(),
            _bubbles(),
            _crossovers(),
            _loogle(),
            _memory(),
        )
    )


def _ttft(study: Study) -> Iterator[Figure]:
    for name, value in TTFT_S.items():
        title, ours = f"LEval, 1.5 requests/s: mean TTFT, {TITLES[name]}", study.ttft_s(name, RATE)
        yield Figure(title, value, ours, "s", _basis(name), "figure 8", _spread(study, name))
    slower = replace(study, tiers={"ssd": TierCapacity(SSD_AT_HALF, TIERS["ssd"].tokens)})
    title, note = "The same, LMCache-SSD at 2.4 GB/s", "which a crossover at 50 % implies"
    yield Figure(title, TTFT_S["ssd"], slower.ttft_s("ssd", RATE), "s", "predicted", "figures 8 and 13", note)


def _basis(tier: str) -> Basis:
    return "fitted" if tier in FITTED_TTFT else "predicted"


def _below_others(study: Study) -> Iterator[Figure]:
    """Yield the text's claims about figure 8; the publication's own times result in 68.9 and 77.7 %."""
    tutti = study.ttft_s("ssd-tutti", RATE)
    for name, published in TTFT_BELOW.items():
        ours, basis = (1 - tutti / study.ttft_s(name, RATE)) * 100, _basis(name)
        yield Figure(f"LEval: TTFT of Tutti below {TITLES[name]}", published, ours, "%", basis, "text")
    within = study.capacity("ssd-tutti", LIMIT_S)
    for name, published in MORE_RATE.items():
        ours = (within / study.capacity(name, LIMIT_S) - 1) * 100
        title = f"LEval: more requests/s with a mean TTFT up to 1 s than {TITLES[name]}"
        yield Figure(title, published, ours, "%", "predicted", "text", AT_LEAST)


def _spread(study: Study, name: str) -> str:
    runs = sorted(run.ttft_s for run in study.served(name, RATE))
    return f"median of {len(runs)} runs, which span {runs[0]:.2g} to {runs[-1]:.2g} s"


def _hits(study: Study, load: str, source: str, published: Mapping[str, float]) -> Iterator[Figure]:
    note = "documents and questions were chosen for it"
    for name, value in published.items():
        shares = study.shares(name)
        ours = (shares.hbm + shares.tier) * 100
        yield Figure(f"{load}: hits, {TITLES[name]}", value, ours, "%", "fitted", source, note)


def _capacities(study: Study) -> Iterator[Figure]:
    for name, value in RATES.items():
        note = AT_LEAST if name == "ssd-tutti" else ""
        title, ours = f"LEval: requests/s with a mean TTFT up to 1 s, {TITLES[name]}", study.capacity(name, LIMIT_S)
        yield Figure(title, value, ours, "1/s", "predicted", "figure 8", note)


def unfitted() -> Study:
    engine = replace(ENGINE, law=PLAIN, floor_s=0.0)
    tiers = {**TIERS, "ssd-gds": TierCapacity(UNFITTED_GDS, TIERS["ssd-gds"].tokens)}
    return Study(engine, tiers, LEVAL_DOCUMENTS, Runs(9, LEVAL_DOCUMENTS.total, 0))


def _unfitted() -> Iterator[Figure]:
    study, title = unfitted(), "The same with nothing fitted to it"
    for name, value in TTFT_S.items():
        note = "the benchmark's own documents, the law as it is"
        ours = study.ttft_s(name, RATE)
        yield Figure(f"{title}, {TITLES[name]}", value, ours, "s", "predicted", "figure 8", note)
    ours = (1 - study.ttft_s("ssd-tutti", RATE) / study.ttft_s("dram", RATE)) * 100
    yield Figure(f"{title}: TTFT of Tutti below LMCache-DRAM", TTFT_BELOW["dram"], ours, "%", "predicted", "text")
    yield from _own_hits(study, "LEval", "table 1", HITS)
    of_loogle = Study(ENGINE, TIERS, LOOGLE_DOCUMENTS, Runs(1, LOOGLE_DOCUMENTS.total, 0))
    yield from _own_hits(of_loogle, "LooGLE", "text", LOOGLE_HITS)
    gds, tutti = (of_loogle.ttft_s(name, LOOGLE_RATE) for name in ("ssd-gds", "ssd-tutti"))
    title = f"LooGLE's own documents, {LOOGLE_RATE} requests/s: TTFT of GDS over Tutti"
    yield Figure(title, 2.63, gds / tutti, "×", "predicted", "text")


def _own_hits(study: Study, load: str, source: str, published: Mapping[str, float]) -> Iterator[Figure]:
    note = "in random order, as theirs is not published"
    for name, value in published.items():
        shares = study.shares(name)
        title, ours = f"{load}'s own documents: hits, {TITLES[name]}", (shares.hbm + shares.tier) * 100
        yield Figure(title, value, ours, "%", "predicted", source, note)


def _warm_s(device: TierDevice, cached: int, prompt: int = 128 * K) -> float:
    return API_S + TOKENIZE_S * prompt + prefill_s(LAW, device, LLAMA, prompt - cached, cached, floor_s=LAYER_PASS_S)


def _loads() -> Iterator[Figure]:
    for device, published in ((SSD_TUTTI, 25.9), (SSD_GDS, 11.9)):
        rate = effective_bytes_per_s(replace(device, setup_s=0.0), LLAMA, 128 * K) / GB
        yield Figure(f"Retrieving 128K tokens, {TITLES[device.name]}", published, rate, "GB/s", "fitted", "figure 9")
    for device, published in ((SSD_TUTTI, 10), (SSD_GDS, 7)):
        rate = device.write_bytes_per_s / GB
        yield Figure(f"Storing, {TITLES[device.name]}", published, rate, "GB/s", "fitted", "figure 9")
    for device, published in ((SSD_TUTTI, 3.43), (SSD, 7.84)):
        ours = _warm_s(device, 112 * K)
        yield Figure(f"TTFT, 112K of 128K cached, {TITLES[device.name]}", published, ours, "s", "fitted", "figure 11")
    for cached, published in ((32 * K, 5.8), (128 * K - 64, 61.4)):
        ours = (1 - _warm_s(SSD_TUTTI, cached) / _warm_s(SSD_GDS, cached)) * 100
        name = f"TTFT of Tutti below GDS, {round(cached / K)}K of 128K cached"
        yield Figure(name, published, ours, "%", "predicted", "figure 11")
    shares = (_warm_s(SSD_TUTTI, cached * K) / _warm_s(DRAM_FITTED, cached * K) for cached in (16, 32, 64, 96))
    ours = (1 - min(shares)) * 100
    yield Figure("TTFT of Tutti below DRAM, 16K to 96K cached, at most", 13.4, ours, "%", "predicted", "figure 11")
    for cached in (112, 127):
        ours = (1 - _warm_s(DRAM_FITTED, cached * K) / _warm_s(SSD_TUTTI, cached * K)) * 100
        name, note = f"TTFT of DRAM below Tutti, {cached}K of 128K cached", "published: above 96K"
        yield Figure(name, 20.6, ours, "%", "predicted", "figure 11", note)


def _bubbles() -> Iterator[Figure]:
    compute_s = LAW.prefill_s(16 * K, 48 * K)
    for device, published in ((DRAM_FITTED, 14.2), (SSD, 72.8), (SSD_GDS, 72.3)):
        io_s = load_s(device, LLAMA, 48 * K)
        ours = io_s / (io_s + compute_s) * 100
        name = f"Bubble, 64K, 75 % cached, not by layers, {TITLES[device.name]}"
        yield Figure(name, published, ours, "%", "predicted", "figure 2")
    left = (16 * K, 8 * K, 4 * K, 2 * K, K, 512, 1)
    bubbles = {new: _bubble_ms(32 * K, new) for new in left}
    yield Figure("Bubble of Tutti, 32K, 93.75 % cached", 6, bubbles[2 * K], "ms", "predicted", "figure 13")
    mean = sum(bubbles.values()) / len(bubbles)
    note = "the least pass leaves no room for it"
    yield Figure("Bubble of Tutti, mean over 50 to 100 % cached", 25, mean, "ms", "predicted", "figure 13", note)


def _bubble_ms(prompt: int, new: int) -> float:
    pass_s = max(LAW.prefill_s(new, prompt - new), LAYER_PASS_S)
    return bubble_s(load_s(SSD_TUTTI, LLAMA, prompt - new), pass_s, LLAMA.layers) * 1e3


def _crossovers() -> Iterator[Figure]:
    by_layers = replace(SSD, mode="layers", object_s=SSD.object_s * 3.4 / 3.3)  # its rate in figure 11
    rows: tuple[tuple[str, float, TierDevice, Law, float, Basis], ...] = (
        ("LMCache-SSD", 50, by_layers, LAW, LAYER_PASS_S, "predicted"),
        ("LMCache-DRAM by layers", 97.9, DRAM_FITTED, LAW, LAYER_PASS_S, "fitted"),
        ("Tutti", 98.3, SSD_TUTTI, LAW, LAYER_PASS_S, "fitted"),
        ("LMCache-DRAM by the law alone, at its link's 50 GB/s", 97.9, DRAM, PLAIN, 0.0, "predicted"),
        ("Tutti by the law alone", 98.3, SSD_TUTTI, PLAIN, 0.0, "predicted"),
    )
    for name, published, device, law, floor_s, basis in rows:
        ours = crossover(law, device, LLAMA, 32 * K, floor_s=floor_s) * 100
        yield Figure(f"Crossover, {name}", published, ours, "%", basis, "figure 13")


def _loogle() -> Iterator[Figure]:
    study = Study(ENGINE, TIERS, LOOGLE, Runs(9, 600, 1_000))
    gds, dram, tutti = (study.ttft_s(name, LOOGLE_RATE) for name in ("ssd-gds", "dram", "ssd-tutti"))
    yield Figure(
        "LooGLE, 0.6 requests/s: TTFT of GDS over Tutti", 2.63, gds / tutti, "×", "fitted", "text", "the length"
    )
    note = "DRAM's queue is open: it grows with the run"
    yield Figure("LooGLE, 0.6 requests/s: TTFT of DRAM over Tutti", 14.7, dram / tutti, "×", "predicted", "text", note)
    yield from _hits(study, "LooGLE", "text", LOOGLE_HITS)
    cost = {
        name: cost_of(study, name, Prices(), 1, DRAM_GB, SSD_GB).per_million or 0.0
        for name in ("ssd", "ssd-gds", "ssd-tutti")
    }
    for name, published in (("ssd", 66.2), ("ssd-gds", 27)):
        ours = (1 - cost["ssd-tutti"] / cost[name]) * 100
        title = f"LooGLE: cost of Tutti below {TITLES[name]}"
        yield Figure(title, published, ours, "%", "predicted", "figure 14", "ours at full use")


def _memory() -> Iterator[Figure]:
    pool = 60 * 2**30
    alone = LLAMA.object_bytes / COMMAND_S / GB
    note = "the time of a command, from PRP's 0.29 GB/s in pages of 4 KiB"
    yield Figure("SGL, objects of 128 KiB, one command at a time", 8.9, alone, "GB/s", "predicted", "section 3.1", note)
    prp, sgl = metadata_bytes("prp", pool) / 2**30, metadata_bytes("sgl", pool) / 2**20
    yield Figure("PRP lists of a pool of 60 GiB", 3.75, prp, "GiB", "arithmetic", "section 3.1")
    yield Figure("SGL lists of a pool of 60 GiB", 15, sgl, "MiB", "arithmetic", "section 3.1")
    longest = staging_tokens(SSD_GDS, GLM, 8e9) / K
    title, note = "GDS, GLM-4-9B-1M on two H100: longest prefix before it fails", "published: fails at 512K and 640K"
    yield Figure(title, None, longest, "K tokens", "fitted", "figure 12", note)
    title, loading = "GLM-4-9B-1M on two H100: 640K cached tokens, Tutti", load_s(SSD_TUTTI, GLM, 640 * K)
    engine_s = pipeline_s(loading, LAYER_PASS_S, GLM.layers)
    whole_s = API_S + TOKENIZE_S * 640 * K + engine_s
    for part, ours in (("with tokenizing, as figure 11 is counted", whole_s), ("the engine alone", engine_s)):
        yield Figure(title, 1.2, ours, "s", "predicted", "figure 12", part)
    objects = KvLayout(262_144, 64).objects(128 * K) / K
    yield Figure("Objects of 128K tokens, Qwen3-32B, blocks of 64", 256, objects, "K", "arithmetic", "text")
    price = Prices()
    dearer = price.dram_gb_hour / price.ssd_gb_hour
    yield Figure("Price of host memory over drives, per GB", 107, dearer, "×", "arithmetic", "text")
    yield Figure("14 TB of drives, an hour", 1.15, 14_000 * price.ssd_gb_hour, "$", "arithmetic", "text")
    held = 4 * 7.68e3 / 80
    yield Figure(
        "GPUs of 80 GB that hold as much as four drives",
        300,
        held,
        "GPUs",
        "arithmetic",
        "text",
        "published: more than",
    )
    title, note = "Drop of two drives' rate, reads alone to reads and writes", "29 and 12 GB/s are published too"
    yield Figure(title, 60.1, (1 - 12 / 29) * 100, "%", "arithmetic", "figure 6", note)
