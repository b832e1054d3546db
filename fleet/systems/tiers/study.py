"""Several tiers under one load: times, hits, capacity, cost and wear of each, from the same questions and arrivals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from fleet.engine.tiers.devices import DRAM_FITTED, SSD, SSD_GDS, SSD_TUTTI, TierDevice
from fleet.engine.tiers.sizes import drive_writes_per_day
from fleet.systems.prices import Prices, per_million
from fleet.systems.tiers.load import Question, QuestionLoad, gaps
from fleet.systems.tiers.queueing import Contention, Served, highest_rate, middle, serve
from fleet.systems.tiers.serving import PrefillJob, TierCapacity, TieredEngine, jobs

DRAM_GB, SSD_GB = 256.0, 14_000.0  # sizes in the publication


@dataclass(frozen=True, slots=True)
class Runs:
    """The amount of simulation. Most of the remaining noise is between single runs, so take several."""

    seeds: int = 3
    requests: int = 1_000
    warm: int = 1_000  # preceding requests, which fill the caches


def tiers_of(
    kv_bytes: float, dram_gb: float = DRAM_GB, ssd_gb: float = SSD_GB, dram: TierDevice = DRAM_FITTED
) -> dict[str, TierCapacity]:
    drives = ssd_gb * 1e9 / kv_bytes
    return {
        "hbm": TierCapacity(),
        "dram": TierCapacity(dram, dram_gb * 1e9 / kv_bytes),
        "ssd": TierCapacity(SSD, drives),
        "ssd-gds": TierCapacity(SSD_GDS, drives),
        "ssd-tutti": TierCapacity(SSD_TUTTI, drives),
    }


@dataclass(frozen=True, slots=True)
class Shares:
    """Means over the questions of all runs."""

    prompt_tokens: float
    new_tokens: float
    hbm: float  # share of the prompt tokens, 0–1
    tier: float
    busy_s: float  # undisturbed engine time per question
    bubble_s: float


@dataclass
class Study:
    engine: TieredEngine
    tiers: Mapping[str, TierCapacity]
    load: QuestionLoad
    runs: Runs = field(default_factory=Runs)
    contention: Contention = field(default_factory=Contention)
    _asked: list[list[Question]] = field(init=False)
    _gaps: list[list[float]] = field(init=False)
    _work: dict[str, list[list[PrefillJob]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        count = self.runs.warm + self.runs.requests
        self._asked = [self.load.asked(seed, count) for seed in range(self.runs.seeds)]
        self._gaps = [gaps(seed, self.runs.requests) for seed in range(self.runs.seeds)]

    def work(self, name: str) -> list[list[PrefillJob]]:
        """Return the work of each run, after the caches were filled."""
        if name not in self._work:
            tier, new = self.tiers[name], self.load.question_tokens
            self._work[name] = [jobs(self.engine, tier, asked, new)[self.runs.warm :] for asked in self._asked]
        return self._work[name]

    def served(self, name: str, rate: float, contention: str = "") -> list[Served]:
        """Simulate each run. `contention` replaces the device's own value."""
        device = self.tiers[name].device
        if device is not None and contention:
            device = replace(device, contention=contention)  # type: ignore[arg-type]
        return [
            serve(self.engine, device, work, between, rate, self.contention)
            for work, between in zip(self.work(name), self._gaps, strict=True)
        ]

    def middle(self, name: str, rate: float) -> Served:
        return middle(self.served(name, rate))

    def ttft_s(self, name: str, rate: float, contention: str = "") -> float:
        return median(run.ttft_s for run in self.served(name, rate, contention))

    def capacity(self, name: str, limit_s: float) -> float:
        """Return the requests per second up to which the mean TTFT stays within the limit."""
        return highest_rate(lambda rate: self.ttft_s(name, rate), limit_s, 1 / self.shares(name).busy_s)

    def shares(self, name: str) -> Shares:
        work = [job for run in self.work(name) for job in run]
        prompt = sum(job.prompt for job in work)
        return Shares(
            prompt / len(work),
            fmean(job.new for job in work),
            sum(job.near for job in work) / prompt,
            sum(job.far for job in work) / prompt,
            fmean(job.busy_s for job in work),
            fmean(job.bubble_s for job in work),
        )


@dataclass(frozen=True, slots=True)
class Cost:
    per_hour: float  # $
    per_million: float | None  # $ per million prompt tokens, at full use
    must_save: float  # factor by which its hits must reduce the engine's time to pay for it
    saves: float  # factor by which they reduce it


def cost_of(study: Study, name: str, prices: Prices, gpus: float, dram_gb: float, ssd_gb: float) -> Cost:
    """Return the cost of an engine with this tier. `dram_gb` and `ssd_gb` are the study's sizes."""
    device = study.tiers[name].device
    dollars = prices.per_hour(gpus, *memory_of(device, dram_gb, ssd_gb))
    engine_alone = prices.per_hour(gpus)
    shares = study.shares(name)
    return Cost(
        dollars,
        per_million(dollars, shares.prompt_tokens / shares.busy_s),
        dollars / engine_alone if engine_alone else 1.0,
        study.shares("hbm").busy_s / shares.busy_s,
    )


def memory_of(device: TierDevice | None, dram_gb: float, ssd_gb: float) -> tuple[float, float]:
    """Return (GB of host memory, GB of SSD) of the tier."""
    if device is None:
        return 0.0, 0.0
    return (0.0, ssd_gb) if device.endurance else (dram_gb, 0.0)


@dataclass(frozen=True, slots=True)
class Wear:
    writes_per_day: float  # drive writes per day (DWPD)
    years: float  # years until the rated life is used up


def wear_of(
    bytes_per_s: float, drive_bytes: float, amplification: float = 1.0, rated: float = 1.0, rated_years: float = 5.0
) -> Wear:
    """Return the wear. Drives are rated for `rated` writes a day over `rated_years`."""
    dwpd = drive_writes_per_day(bytes_per_s, drive_bytes, amplification)
    return Wear(dwpd, rated * rated_years / max(dwpd, 1e-9))
