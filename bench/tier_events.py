"""The published loads on the twin's engine, event by event: blocks instead of whole documents, and tiers that evict
at 90 %. One prompt at a time, in order of arrival, and answers of one token, except for ITL."""

from dataclasses import dataclass, replace
from statistics import fmean, median

from fleet.engine.engine import Engine
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.devices import DEVICES, DRAM_FITTED, LAYER_PASS_S, TierDevice
from fleet.engine.tiers.loading import paged
from fleet.engine.tiers.model import TierModel, TiersModel
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.tiers.load import QuestionLoad, gaps
from fleet.systems.tiers.queueing import highest_rate
from fleet.systems.tiers.study import DRAM_GB, SSD_GB

HBM = "hbm"
PUBLISHED = DEVICES | {DRAM_FITTED.name: DRAM_FITTED}
BLOCK = 256
HBM_TOKENS = 410_000
LAYOUT = layout_of(profile())
LAW = paged(law_of(profile()))


@dataclass(frozen=True, slots=True)
class PlayedRuns:
    """The runs to simulate; `rates` are bisected between 0 and `highest`."""

    seeds: int = 3
    warm: int = 1_500  # requests that fill the caches
    measured: int = 2_000


def engine(tier: str | TierDevice, sequences: int = 1) -> Engine:
    """Create an engine. With `hbm`, it has no tier."""
    limits = Limits(BLOCK, sequences, 8192, async_scheduling=False)
    if tier == HBM:
        return Engine(LAW, HBM_TOKENS // BLOCK, limits)
    device = PUBLISHED[tier] if isinstance(tier, str) else tier
    capacity = (SSD_GB if device.endurance else DRAM_GB) * 1e9
    tiers = TiersModel(layout=LAYOUT, tiers=(TierModel(device, capacity),), always_load=True, floor_s=LAYER_PASS_S)
    return Engine(LAW, HBM_TOKENS // BLOCK, limits, tiers=tiers)


def played(tier: str, load: QuestionLoad, rate: float, seed: int, runs: PlayedRuns) -> tuple[float, float]:
    """Return the mean TTFT in s and the cached share of the prompts, after the warm requests and with an empty
    queue."""
    counted = _answered(engine(tier), load, rate, seed, runs, output=1)
    cached = sum(each.cached_tokens for each in counted) / sum(each.prompt_tokens for each in counted)
    return fmean(each.first_token_s - each.arrived_s for each in counted), cached


def itl_s(tier: str, load: QuestionLoad, rate: float, runs: PlayedRuns, *, output: int, sequences: int) -> float:
    """Return the mean gap between the tokens of answers of that length, in a batch of that many; the median over the
    runs."""

    def mean(seed: int) -> float:
        counted = _answered(engine(tier, sequences), load, rate, seed, runs, output=output)
        return fmean((each.finished_s - each.first_token_s) / (output - 1) for each in counted)

    return median(mean(seed) for seed in range(runs.seeds))


def _answered(
    one: Engine, load: QuestionLoad, rate: float, seed: int, runs: PlayedRuns, *, output: int
) -> list[EngineRequest]:
    """Return the measured requests."""
    now = 0.0
    asked = load.asked(seed, runs.warm + runs.measured)
    between = gaps(seed, len(asked))
    requests = []
    for number, (question, gap) in enumerate(zip(asked, between, strict=True)):
        now += gap / rate
        if number == runs.warm:
            _run(one)
            now = max(now, one.clock_s)
        chain = [hash((question.document, at)) for at in range(question.tokens // BLOCK)]
        request = EngineRequest(str(number), question.tokens + load.question_tokens, output, chain)
        _run(one, until_s=now)
        one.add_request(request, now)
        requests.append(request)
    _run(one)
    return requests[runs.warm :]


def ttft_s(tier: str, load: QuestionLoad, rate: float, runs: PlayedRuns) -> float:
    """Return the median over the runs, as single runs differ by half."""
    return median(played(tier, load, rate, seed, runs)[0] for seed in range(runs.seeds))


def capacity(tier: str, load: QuestionLoad, limit_s: float, highest: float, runs: PlayedRuns) -> float:
    """Return the rate in requests/s up to which the mean TTFT stays within the limit, by bisection."""
    return highest_rate(lambda rate: ttft_s(tier, load, rate, runs), limit_s, highest)


def loaded(tier: str | TierDevice, cached: int, prompt: int) -> tuple[EngineRequest, Engine]:
    """Return a prompt whose beginning is only in the tier, and its engine."""
    one = engine(tier)
    chain = [hash(("prompt", at)) for at in range(prompt // BLOCK)]
    one.add_request(EngineRequest("before", cached, 1, chain[: cached // BLOCK]), 0.0)
    one.add_request(EngineRequest("filler", one.pool.total * BLOCK - 1, 1, []), 100.0)
    asked = EngineRequest("asked", prompt, 1, chain)
    one.add_request(asked, 1000.0)
    _run(one)
    return asked, one


def crossover(device: TierDevice, prompt: int) -> float:
    """Return the cached share of a prompt, 0–1, at which loading it takes as long as computing the rest, to within a
    block."""
    low, high = 0, prompt // BLOCK - 1
    while high - low > 1:
        middle = (low + high) // 2
        pass_s, io_s = _pass(device, middle * BLOCK, prompt)
        low, high = (middle, high) if io_s <= pass_s else (low, middle)
    return low * BLOCK / prompt


def bubble_s(device: TierDevice, cached: int, prompt: int) -> float:
    """Return the time by which a load lengthens the pass."""
    asked, _ = loaded(device, cached, prompt)
    pass_s, _ = _pass(device, cached, prompt)
    return asked.first_token_s - asked.scheduled_s - pass_s


def _pass(device: TierDevice, cached: int, prompt: int) -> tuple[float, float]:
    """Return (time to compute the uncached part, time to load the rest), as simulated by the engine."""
    free = replace(device, read_bytes_per_s=1e18, setup_s=0.0, layer_setup_s=0.0, object_s=0.0)
    instantly, _ = loaded(free, cached, prompt)
    asked, _ = loaded(device, cached, prompt)
    return instantly.first_token_s - instantly.scheduled_s, asked.load_s


def _run(one: Engine, until_s: float = float("inf")) -> None:
    while (due_s := one.next_turn_s()) is not None and due_s <= until_s:
        one.turn(due_s)
