"""The effects that a step of a delivery can show, and the error rate of its judge.

    .venv/bin/python -m bench.canary [steps] [judged] [hours] [doubled] [--trace FILE] [--seeds 8] [--hours 1000]
                                     [--engines 12] [--gpu h200_sxm] [--model-profile Qwen3-32B] [--minutes 30]

`steps`: the effect that each kind of step shows of a candidate, divided by the true one, in the twin. `judged`: what
the judge says of each candidate at 10 % and then at 50 %, looking every 10 s, in the twin. `hours`: hours in which both
arms are alike, by formula, and how many of them it ends. `doubled`: heavy requests of the candidate until their doubled
TTFT is seen. All four without a name. Every seed draws other arms; of generated sessions another load, too.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, median

from bench.canary import streams
from bench.canary.cells import Looks, looks
from bench.canary.simulated import Scene, arms_of, effect
from bench.canary.streams import Traffic
from controlplane.evidence.experiments.results.statistics.stats import wilson
from controlplane.evidence.previews.analysis.tallies import Tallies, answered
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.traces.types import LoadedTrace
from controlplane.evidence.twin.simulation.types import TwinFleet
from controlplane.traffic.deliveries.judge.look import is_fine
from controlplane.traffic.deliveries.judge.statistics.slow import Limits
from controlplane.traffic.deliveries.judge.verdicts import judge
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import COMPARISONS, Plan
from fleet.counted import percent
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import law_of
from fleet.engine.profiles import kv_blocks, profile
from fleet.engine.scheduler import Limits as Scheduling

LIVE = "adaptive_v1"
COSTLY = f"{LIVE},affinity.break_floor_tokens=110000"  # a session leaves a busy instance late
CANDIDATES = ("least_requests", "llm_d", "round_robin", "lpwl", COSTLY)
SHARES, BLOCKS_S = (0.05, 0.10, 0.50), (60.0, 120.0, 300.0)
FOR_S = 600
PLANNED = (0.1, 0.5)  # shares of the two canaries
EVERY_S = 10.0  # interval between looks; a delivery looks every 5 s
HOURS_EVERY_S = 30.0  # interval for hours by formula, to finish within minutes
TURNS = (1.4, 20.0)
HOURS_UNTIL_SEEN = 3  # hours per stream, so that each has 60 heavy requests in the candidate's arm


def plan() -> Plan:
    """Return the default guards with two canaries."""
    steps = [{"mode": "canary", "share": share, "for_s": FOR_S} for share in PLANNED]
    return parse_plan({"steps": [*steps, {"mode": "full"}]}, pools=["chat"])


# The effects of a candidate that a step shows


def steps(scene: Scene, candidates: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    head = [f"canary {percent(share)}" for share in SHARES] + [f"switchback {block:.0f} s" for block in BLOCKS_S]
    yield _row(f"{scene.live} →", "true", *head, "half the pool each")
    yield _row(*["---"] * (len(head) + 3))
    live = {seed: scene.play(seed) for seed in seeds}
    for name in candidates:
        truth = fmean(effect(scene.play(seed, name), live[seed]) for seed in seeds)
        shown = [[effect(*arms_of(scene.canary(seed, name, [(0.0, share)]))) for seed in seeds] for share in SHARES]
        shown += [[effect(*arms_of(scene.switchback(seed, name, block))) for seed in seeds] for block in BLOCKS_S]
        shown.append([effect(scene.play(seed, name, part=1), scene.play(seed, part=0)) for seed in seeds])
        yield _row(name, percent(truth, "+.0f"), *(f"{fmean(each) / truth:.1f}" for each in shown))


# The judge's findings about a candidate


@dataclass(frozen=True)
class Judged:
    """Judgement of a candidate; times count from the start of the first step."""

    passed_s: tuple[float, ...] = ()  # time at which each step passed
    failed_s: float = math.inf
    why: str = ""
    deferred: frozenset[str] = frozenset()  # classes that a step left to a later one


def deliver(scene: Scene, seed: int, name: str) -> Judged:
    """Deliver: each step begins when the one before it has passed, with all counts reset."""
    found = Judged()
    shares: list[tuple[float, float]] = []
    for step, share in enumerate(PLANNED):
        since = found.passed_s[-1] if found.passed_s else 0.0
        shares.append((since, share))
        played = [one for one in scene.canary(seed, name, shares) if one.sent_s >= since]
        seen = looks(answered(played, str(seed)), plan(), step, scene.limits(seed), EVERY_S, since)
        found = _after(found, since, seen)
        if len(found.passed_s) == step:
            break
    return found


def _after(before: Judged, since: float, seen: Looks) -> Judged:
    """Continue until a guard fails or the step passes."""
    for at, findings in seen:
        failed = [each for each in findings if each.verdict == "fail"]
        if failed:
            why = f"{failed[0].metric} {failed[0].request_class}".strip()
            return replace(before, failed_s=since + at, why=why)
        if at >= FOR_S and is_fine(findings):
            deferred = {each.request_class for each in findings if each.verdict == "deferred"}
            return replace(before, passed_s=(*before.passed_s, since + at), deferred=before.deferred | deferred)
    return before


def judged(scene: Scene, candidates: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    heads = ["n", "aborted", "after, median", "last", "by"]
    for share in PLANNED:
        heads += [f"passed {percent(share)}", "after, median", "90 %"]
    yield _row(f"{scene.live} →", *heads, "deferred")
    yield _row(*["---"] * (len(heads) + 2))
    for name in candidates:
        yield _judged_row(name, [deliver(scene, seed, name) for seed in seeds])


def _judged_row(name: str, found: Sequence[Judged]) -> str:
    failed = sorted(each.failed_s for each in found if each.failed_s < math.inf)
    by = ", ".join(f"{why} {count}" for why, count in Counter(each.why for each in found if each.why).most_common(3))
    cells: list[object] = [len(found), len(failed), _seconds(median(failed) if failed else math.inf)]
    cells += [_seconds(failed[-1] if failed else math.inf), by]
    for step in range(len(PLANNED)):
        passed = sorted(each.passed_s[step] if len(each.passed_s) > step else math.inf for each in found)
        at_90 = passed[math.ceil(0.9 * len(passed)) - 1]
        cells += [sum(each < math.inf for each in passed), _seconds(_middle(passed)), _seconds(at_90)]
    deferred = Counter(chain.from_iterable(each.deferred for each in found))
    return _row(name, *cells, ", ".join(f"{each} {count}" for each, count in deferred.items()))


# The error rate of the judge


def hours(count: int) -> Iterator[str]:
    yield _row("alike, at 10 %", "hours", "ended by a guard", "95 %", "held", "lower bound ever > 0", "fine", "median")
    yield _row(*["---"] * 8)
    for turns in TURNS:
        traffic = Traffic(turns)
        limits = streams.limits(traffic)
        yield _hours_row(turns, [hour(traffic, limits, seed) for seed in range(1, count + 1)])


@dataclass(frozen=True)
class Hour:
    failed: bool
    held: bool
    above: bool  # True if a lower bound rose above 0 at some look; two canaries allow half an α of the hours
    fine_s: float


def hour(traffic: Traffic, limits: Limits, seed: int) -> Hour:
    """Play the first step."""
    failed = held = above = False
    fine_s = math.inf
    for at, findings in looks(streams.requests(traffic, PLANNED[0], seed), plan(), 0, limits, HOURS_EVERY_S):
        failed |= any(each.verdict == "fail" for each in findings)
        held |= any(each.verdict == "error" for each in findings)
        above |= any(each.lower is not None and each.lower > 0 for each in findings if each.metric in COMPARISONS)
        if at >= FOR_S and is_fine(findings):
            fine_s = min(fine_s, at)
    return Hour(failed, held, above, fine_s)


def _hours_row(turns: float, found: Sequence[Hour]) -> str:
    n, failed = len(found), sum(each.failed for each in found)
    low, high = wilson(failed, n)
    return _row(
        f"sessions of {turns:g} turns",
        n,
        percent(failed / n, ".1f"),
        f"{percent(low, '.1f')}–{percent(high, '.1f')}",
        percent(sum(each.held for each in found) / n, ".1f"),
        percent(sum(each.above for each in found) / n, ".1f"),
        percent(sum(each.fine_s < math.inf for each in found) / n),
        _seconds(_middle([each.fine_s for each in found])),
    )


def doubled(count: int) -> Iterator[str]:
    yield _row("heavy TTFT × 2 at 10 %", "deliveries", "heavy requests, median", "95 %", "seen in 60")
    yield _row(*["---"] * 5)
    for turns in TURNS:
        traffic = Traffic(turns, ttft_factor=2.0, hours=HOURS_UNTIL_SEEN)
        limits = streams.limits(traffic)
        found = sorted(until_seen(traffic, limits, seed) for seed in range(1, count + 1))
        share = sum(each <= 60 for each in found) / count
        yield _row(
            f"sessions of {turns:g} turns", count, found[count // 2], found[math.ceil(0.95 * count) - 1], percent(share)
        )


def until_seen(traffic: Traffic, limits: Limits, seed: int) -> float:
    """Return the heavy requests of the candidate until the change is seen, with a look after every second one."""
    tallies, n = Tallies(limits), 0
    for one in streams.requests(traffic, 0.1, seed):
        tallies.add(one)
        if not (one.candidate and one.name == "heavy" and one.ttft_ms):
            continue
        n += 1
        if n % 2 == 0 and n >= 30 and any(each.verdict == "fail" for each in judge(tallies.evidence(), plan(), 0.1)):
            return n
    return math.inf


# The command line


def _middle(values: Sequence[float]) -> float:
    """Return the middle value; infinity if most are infinite, as a mean with a number would mislead."""
    return sorted(values)[len(values) // 2]


def _seconds(value: float) -> str:
    return "–" if value == math.inf else f"{value:,.0f} s"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def scene_of(options: argparse.Namespace) -> Scene:
    made = profile(options.gpu, options.model_profile)
    engine = EngineModel(law_of(made), kv_blocks(made), Scheduling())
    fleet = TwinFleet({f"chat-{number}": engine for number in range(options.engines)})
    given = registry.read(options.trace.read_bytes(), 1) if options.trace else None

    def trace(seed: int) -> LoadedTrace:
        found = given or generate(seed, options.minutes * 60.0, options.session_every_s)
        return replace(found, requests=tuple(each for each in found.requests if each.at_s < options.minutes * 60))

    return Scene(fleet, trace, LIVE)


PARTS = ("steps", "judged", "hours", "doubled")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--trace", type=Path, help="a trace file; default: generated agent sessions")
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES), help="STRATEGY or STRATEGY,path=value,…")
    parser.add_argument("--seeds", type=int, default=8, help="how many, of what the twin plays")
    parser.add_argument("--hours", type=int, default=1000, help="how many, of each length of session")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the trace")
    parser.add_argument("--session-every-s", type=float, default=1.0, help="of generated sessions")
    parser.add_argument("--engines", type=int, default=12)
    parser.add_argument("--gpu", default="h200_sxm")
    parser.add_argument("--model-profile", default="Qwen3-32B")
    options = parser.parse_args(given)
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"PART {unknown[0]}: not one of {', '.join(PARTS)}")
    if options.trace and not options.trace.is_file():
        parser.error(f"--trace {options.trace}: no such file")
    return options


def tables(options: argparse.Namespace) -> Iterator[str]:
    scene, seeds, parts = scene_of(options), range(1, options.seeds + 1), options.parts or PARTS
    if "steps" in parts:
        yield from chain(steps(scene, options.candidates, seeds), [""])
    if "judged" in parts:
        yield from chain(judged(scene, [*options.candidates, LIVE], seeds), [""])
    if "hours" in parts:
        yield from chain(hours(options.hours), [""])
    if "doubled" in parts:
        yield from chain(doubled(min(options.hours, 200)), [""])


def main() -> None:
    for line in tables(arguments()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
