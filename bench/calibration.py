"""The honesty of a calibration from traffic: its stated error beside the real one on the requests that follow.

    .venv/bin/python -m bench.calibration [--traces FOLDER] [--seeds 2] [--engines WORD ...] [--shifts WORD ...]
                                          [--cases]

Engines whose constants are not known to the fit record 500 requests under a load that rises and falls. The fit sees
these; the next 200 come at the same load, or at another rate, with longer prompts or with longer answers. The engines:
some of the law's own form, and some whose steps take as long as those of vLLM 0.20.1 in FOLDER/steps (WEIR_TRACE_DIR),
with the spread of these. A case is one figure (mean TTFT, TPOT or E2E) of one engine, change of load and seed.
Deterministic; all of it is simulated but for the durations of the measured steps.
"""

import argparse
import csv
import gzip
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controlplane.evidence.twin.expected_error import LEAST_TRAFFIC
from fleet.calibration.fit import bend, fit_rows
from fleet.calibration.limits import EngineLimits
from fleet.calibration.traffic.physical import physical_starts
from fleet.calibration.traffic.recorded import RecordedRequest, served
from fleet.calibration.traffic.replayed import EngineConstants, errors_of, replay
from fleet.calibration.traffic.traffic_fit import fit_traffic
from fleet.counted import percent
from fleet.engine.engine_model import RequestLoad
from fleet.engine.law import Law, law_of
from fleet.engine.profiles import profile

RECORDED, FOLLOWING = 500, 200  # requests
BUSY = 0.55  # busy share of the engine's time, before the load is changed
ANSWER = 150  # mean tokens of an answer
SHIFTS: dict[str, dict[str, float]] = {  # factors; alike: all requests have about the same length, and none is cached
    "the same load": {},
    "1.5× the rate": {"rate": 1.5},
    "0.6× the rate": {"rate": 0.6},
    "prompts twice as long": {"prompt": 2.0, "rate": 0.6},
    "answers twice as long": {"answer": 2.0, "rate": 0.6},
    "alike, then 2.5× the rate": {"alike": 1, "rate": 2.5},
    "alike, then prompts 4× as long": {"alike": 1, "prompt": 4.0, "rate": 0.4},
}
FIGURES = ("ttft_mean", "tpot_mean", "e2e_mean")
LEAST_STATED = {  # least stated errors, as the twin gives them
    "ttft_mean": LEAST_TRAFFIC["ttft_mean"] or 0.0,
    "tpot_mean": LEAST_TRAFFIC["tpot"] or 0.0,
    "e2e_mean": LEAST_TRAFFIC["e2e"] or 0.0,
}
MOST_RATIO = 1.5
SAMPLED = 40  # number of measured steps of which one is fitted


@dataclass(frozen=True)
class TrueEngine:
    name: str
    law: Law
    api_s: float
    limits: EngineLimits
    model: str  # name by which the fit knows it
    tp: int


class MeasuredSteps(Law):
    """A law of measured steps: a fit to them, times the ratio of a measured step of similar content."""

    def __init__(self, law: Law, ratios: dict[tuple[int, ...], list[float]], draw: random.Random) -> None:
        super().__init__(**{name: getattr(law, name) for name in Law.__dataclass_fields__})
        object.__setattr__(self, "ratios", ratios)
        object.__setattr__(self, "draw", draw)

    def plan_s(self, plan: Any) -> float:
        new = sum(tokens for _, tokens in plan.prefill)
        cached = sum(request.computed for request, _ in plan.prefill)
        smooth = super().step_s(plan.tokens, plan.pairs, plan.context, len(plan.decode))
        return smooth * self._ratio(new, cached, len(plan.decode), plan.context)

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        """Return the duration of a run of decode steps, which share one ratio."""
        return super().step_s(tokens, pairs, context, decodes) * self._ratio(0, 0, decodes, context)

    def _ratio(self, new: int, cached: int, decodes: int, context: int) -> float:
        found = self.ratios.get(bucket(new, cached, decodes, context))  # type: ignore[attr-defined]
        return self.draw.choice(found) if found else 1.0  # type: ignore[attr-defined]


def bucket(new: int, cached: int, decodes: int, context: int) -> tuple[int, ...]:
    return tuple(round(math.log2(value + 1)) for value in (new, cached, decodes, context))


def measured_engine(path: Path) -> TrueEngine:
    with gzip.open(path, "rt") as lines:
        rows = [{name: value for name, value in row.items() if name != "phase"} for row in csv.DictReader(lines)]
    steps = [_step({name: float(value) for name, value in row.items()}) for row in rows]
    weights = [1.0] * len(steps[::SAMPLED])

    def at(knee: float) -> list[tuple[list[float], float]]:
        return [([0.0, 1.0, bend(int(n), knee), pairs, kv, n, d], s) for n, pairs, kv, d, s, _ in steps[::SAMPLED]]

    law = fit_rows(at, weights)[1]
    ratios: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for tokens, pairs, context, decodes, seconds, place in steps:
        ratios[place].append(seconds / law.step_s(int(tokens), pairs, int(context), int(decodes)))
    model, _, parallel = path.name.removesuffix(".csv.gz").partition("_")
    tp = int(parallel.partition("_")[0].removeprefix("tp"))
    limits = EngineLimits(20_000, 16, 128, 2_048, 131_072)
    true = MeasuredSteps(law, dict(ratios), random.Random(1))
    return TrueEngine(path.name.removesuffix(".csv.gz"), true, 0.012, limits, model, tp)


def _step(row: dict[str, float]) -> tuple[float, float, float, float, float, tuple[int, ...]]:
    """Return (tokens, pairs, context, decodes, seconds, bucket)."""
    new, count, cached = row["sum_prefill_tokens"], row["num_prefill_requests"], row["sum_prefill_kv_tokens"]
    decodes, context = row["num_decode_requests"], row["sum_decode_kv_tokens"]
    each = max(count, 1)
    pairs = new * (cached / each + new / each / 2)  # pairs for chunks of equal size
    place = bucket(int(new), int(cached), int(decodes), int(context))
    return new + decodes, pairs, context, decodes, row["latency_ms"] / 1e3, place


def own_engines() -> Iterator[TrueEngine]:
    """Yield engines of the law's form, with other constants than a profile has."""
    limits = EngineLimits(20_000, 16, 256, 8_192, 131_072)
    qwen, large = law_of(profile("h100_sxm", "Qwen3-8B")), law_of(profile("b200_sxm", "Llama-3.3-70B", 4))
    slow = replace(
        qwen, fixed_s=qwen.fixed_s * 2, weights_s=qwen.weights_s * 3, compute_s_per_token=qwen.compute_s_per_token * 5
    )
    other = replace(large, fixed_s=large.fixed_s * 1.5, compute_s_per_token=large.compute_s_per_token * 1.3)
    cpu = Law(0.002, 2e-5, 0.001, 2e-9, 1e-8, 0.0, decode_s=1.9e-4)
    yield TrueEngine("like Qwen3-8B, slower", slow, 0.02, limits, "private", 1)
    yield TrueEngine("like Llama-3.3-70B", other, 0.006, limits, "meta-llama/Llama-3.3-70B-Instruct", 4)
    yield TrueEngine("a tiny model on a CPU", cpu, 0.004, replace(limits, async_scheduling=False), "tiny", 1)


def traffic(engine: TrueEngine, shift: dict[str, float], seed: int) -> list[RecordedRequest]:
    """Return RECORDED requests and FOLLOWING ones, as measured."""
    draw, at_s, asked = random.Random(seed), 0.0, []
    rate = BUSY / _cost_s(engine.law)
    for number in range(RECORDED + FOLLOWING):
        now = shift if number >= RECORDED else {}
        wave = 1 + 0.4 * math.sin(2 * math.pi * number / 260)
        at_s += draw.expovariate(rate * wave * now.get("rate", 1.0))
        spread, shares = (0.1, (0,)) if "alike" in shift else (1.0, (0, 0, 0.5, 0.9))
        prompt = min(30_000, max(16, round(draw.lognormvariate(math.log(800 * now.get("prompt", 1.0)), spread))))
        cached = int(prompt * draw.choice(shares))
        answers = draw.lognormvariate(0.0, 0.2) if "alike" in shift else draw.expovariate(1.0)
        answer = max(1, round(ANSWER * now.get("answer", 1.0) * answers))
        asked.append(RecordedRequest(at_s, prompt, cached, answer, None, None))
    played = replay(asked, EngineConstants(engine.law, engine.api_s, 1.1e-6), engine.limits)
    return [_noisy(one.modelled, draw) for one in played.pairs]


def _noisy(one: RecordedRequest, draw: random.Random) -> RecordedRequest:
    first, then = math.exp(draw.gauss(0, 0.05)), math.exp(draw.gauss(0, 0.02))
    return replace(one, ttft_s=one.ttft_s and one.ttft_s * first, tpot_s=one.tpot_s and one.tpot_s * then)


def _cost_s(law: Law) -> float:
    """Return the cost of a request while eight others are generated."""
    context = 8 * (1_300 + ANSWER // 2)
    smooth = Law(**{name: getattr(law, name) for name in Law.__dataclass_fields__})
    return smooth.prefill_s(860) + ANSWER * smooth.step_s(8, 0.0, context, 8) / 8


@dataclass(frozen=True)
class Case:
    figure: str
    stated: float
    real: float
    is_inside: bool  # True if most requests of the next block are within the calibrated range of load

    @property
    def ratio(self) -> float:
        return abs(self.real) / max(LEAST_STATED[self.figure], abs(self.stated))


def cases(engine: TrueEngine, shift: dict[str, float], seed: int) -> tuple[list[Case], float]:
    """Return the cases and the CPU seconds of the fit."""
    requests = traffic(engine, shift, seed)
    known = replace(engine.limits, async_scheduling=True)
    began = time.process_time()
    made = fit_traffic(requests[:RECORDED], known, physical_starts(engine.model, engine.tp))
    took_s = time.process_time() - began
    real = errors_of(replay(requests, made.constants, made.limits).pairs[RECORDED:])
    within = not RequestLoad.of([served(requests[RECORDED:])]).outside(made.load_range)
    found = [Case(name, getattr(made.held_out, name), getattr(real, name), within) for name in FIGURES]
    return found, took_s


def engines(folder: Path | None) -> list[TrueEngine]:
    steps = sorted((folder / "steps").glob("*_tp*.csv.gz")) if folder else []
    return [*own_engines(), *map(measured_engine, steps)]


def shown(name: str, found: Sequence[Case]) -> str:
    honest = sum(one.ratio <= MOST_RATIO for one in found)
    middle = [sorted(abs(getattr(one, of)) for one in found)[len(found) // 2] for of in ("stated", "real")]
    worst = max(abs(one.real) for one in found)
    within = sum(one.is_inside for one in found)
    sizes = " | ".join(percent(size, ".1f") for size in (*middle, worst))
    shares = f"{honest} ({percent(honest / len(found))}) | {percent(within / len(found))}"
    return f"| {name} | {len(found)} | {sizes} | {shares} |"


def played(options: argparse.Namespace) -> Iterator[tuple[str, str, list[Case], float]]:
    """Yield (engine, change of load, its cases, CPU seconds of the fit)."""
    for engine in engines(options.traces):
        if options.engines and not any(word in engine.name for word in options.engines):
            continue
        for name, shift in SHIFTS.items():
            if options.shifts and not any(word in name for word in options.shifts):
                continue
            for seed in range(1, options.seeds + 1):
                yield engine.name, name, *cases(engine, shift, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=os.environ.get("WEIR_TRACE_DIR"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--engines", nargs="+", help="only those whose name has one of these words")
    parser.add_argument("--shifts", nargs="+", help="only those changes of load whose name has one of these words")
    parser.add_argument("--cases", action="store_true", help="print each")
    options = parser.parse_args()
    grouped: dict[str, list[Case]] = defaultdict(list)
    took = []
    for engine, shift, found, seconds in played(options):
        took.append(seconds)
        for title in (engine, shift, "**all**"):
            grouped[title] += found
        for one in found:
            grouped["inside the range" if one.is_inside else "outside"].append(one)
            if options.cases:
                print(f"{engine}, {shift}: {one.figure} stated {one.stated:+.3f}, real {one.real:+.3f}", flush=True)
    print("| | cases | stated, median | real, median | real, worst | real ≤ 1.5 × stated | inside the range |")
    print("|---" * 7 + "|")
    print(*(shown(title, found) for title, found in grouped.items()), sep="\n")
    print(f"\n{len(took)} fits, {sum(took) / len(took):.1f} s of CPU each")


if __name__ == "__main__":
    main()
