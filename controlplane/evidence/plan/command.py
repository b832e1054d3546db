"""`weir replay` and `weir plan`: answers for a trace file, computed on this machine only."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from controlplane.evidence.plan import fleets, planned, report
from controlplane.evidence.plan.calibrated import engines_of_file
from controlplane.evidence.plan.question import MOST_GB, MOST_GPUS, PLANNED, MeasuredEngines, PlanQuestion, busiest
from controlplane.evidence.plan.replay import ReplayArm, replay
from controlplane.evidence.plan.search import LATENCIES
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.generated import BUILT_IN
from controlplane.evidence.traces.types import LoadedTrace
from controlplane.evidence.twin.compiled import COPIES
from fleet import subprocess
from fleet.engine.profiles import DEFAULT_GPU, DEFAULT_MODEL, GPUS, model_names
from fleet.kinds import KINDS
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import FleetSpec, PoolSpec
from fleet.systems.prices import Prices
from router.contract.values.problem import InvalidInput
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import CLASSES, ParsedPolicy

PRESENT = ("round_robin", "least_requests", "sglang_cache_aware", "cache_aware", "llm_d")
WEIRS = "priced"
REQUESTS = 12_000  # an hour of a busy fleet; seven policies take about a minute
MOST_REQUESTS = 200_000
MOST = 1e9
USAGE, INTERRUPTED = 2, 130
REFUSED = (UnreadableDocument, InvalidInput, subprocess.SubprocessFailed)
SIMULATED = "sim"  # kind of the pools of a plan
Current = tuple[PoolSpec, FleetSpec]
T = TypeVar("T")


def main(words: Sequence[str]) -> int:
    """Run the command named first in `words`."""
    name, perform = words[0], {"replay": _replay, "plan": _plan}[words[0]]
    options = {"replay": _replay_parser, "plan": _plan_parser}[name]().parse_args(words[1:])
    try:
        for text in perform(options):
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (*REFUSED, OSError) as error:
        print(f"weir {name}: {error}", file=sys.stderr)
        return USAGE
    return 0


def _parser(name: str, about: str, requests: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"weir {name}", description=about)
    parser.add_argument("trace", help=f"a trace file, or a built-in trace: {', '.join(BUILT_IN)}")
    parser.add_argument("--pool", default="", help="pool of the document; default: the only one that serves")
    parser.add_argument("--requests", type=_count, default=requests, metavar="N", help=f"played, default {requests:,}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", metavar="FILE", help="write the report as Markdown")
    return parser


def _replay_parser() -> argparse.ArgumentParser:
    about = "What users would have felt under other routers and under Weir's; simulated."
    parser = _parser("replay", about, REQUESTS)
    parser.add_argument("--fleet", metavar="FILE", help="fleet document; default: an assumed fleet, which is named")
    parser.add_argument("--policy", metavar="FILE", action="append", default=[], help="policy document, beside Weir's")
    parser.add_argument(
        "--present", nargs="+", default=PRESENT, choices=tuple(STRATEGIES), metavar="STRATEGY", help="routers compared"
    )
    parser.add_argument("--html", metavar="FILE", help="write the report as one page with pictures")
    return parser


def _plan_parser() -> argparse.ArgumentParser:
    about = "The cheapest fleets that hold an SLO for a load, with their headroom; simulated."
    parser = _parser("plan", about, PLANNED)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="profile of the catalogue")
    parser.add_argument("--gpu", action="append", metavar="NAME=DOLLARS", help="GPU and its price for an hour; repeat")
    parser.add_argument("--slo", action="append", required=True, metavar="[CLASS:]ttft=MS,tpot=MS,e2e=MS")
    parser.add_argument("--share", type=float, default=0.9, help="of each class within its limits, default 0.9")
    parser.add_argument("--policies", nargs="+", default=(WEIRS,), choices=tuple(STRATEGIES), metavar="STRATEGY")
    parser.add_argument("--host-gb", nargs="+", type=float, default=(0.0,), metavar="GB", help="host memory for KV")
    parser.add_argument("--most-gpus", type=int, default=64, metavar="N")
    parser.add_argument("--fleet", metavar="FILE", help="current fleet document, of which the draft is made")
    parser.add_argument("--calibration", metavar="FILE", help="of an engine of its pool, as REST answers it")
    parser.add_argument("--row", type=int, default=1, help="row of the draft, default 1")
    parser.add_argument("--draft", metavar="FILE", help="write that row as a fleet document, and print the difference")
    parser.add_argument("--json", metavar="FILE", help="write the answer as JSON")
    return parser


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= value <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text} (a whole number from 1 to {MOST_REQUESTS:,})")
    return value


def _replay(options: argparse.Namespace) -> Iterator[str]:
    trace = _trace(options.trace, options.seed)
    if options.fleet:
        fleet = fleets.of_text(_text(options.fleet), options.pool)
    else:
        fleet = fleets.assumed_for(trace.requests[: options.requests])
    arms = [*(ReplayArm(name, document.parse(document.default(name)), False) for name in options.present)]
    arms.append(ReplayArm(WEIRS, document.parse(document.default(WEIRS)), True))
    arms += _given(options.policy, {arm.name for arm in arms})
    replayed = replay(fleet, trace, arms, most=options.requests, seed=options.seed, on_arm=_tell)
    text = report.markdown(replayed)
    yield text
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.html:
        Path(options.html).write_text(report.html(replayed))


def _plan(options: argparse.Namespace) -> Iterator[str]:
    trace, current = _trace(options.trace, options.seed), _current(options)
    question = _question(options, _measured(options, current))
    asked = question, busiest(trace.requests, options.requests), trace.pacing
    answer = subprocess.run_in_subprocess(planned.compute, asked, lambda: None, _tell_plays, compiled=COPIES)
    text = planned.markdown(answer)
    yield text
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.json:
        Path(options.json).write_text(json.dumps(answer, indent=2) + "\n")
    if options.draft:
        yield f"\n{_draft(options, question, answer, current)}"


def _current(options: argparse.Namespace) -> Current | None:
    """Return the pool of the current fleet. This is done before the search, which takes minutes. Raise NotPlayable."""
    if not options.fleet or not (options.draft or options.calibration):
        return None
    pool, fleet = fleets.pool_of(_text(options.fleet), options.pool)
    if options.calibration and options.draft and not KINDS[pool.kind].launched:
        raise fleets.NotPlayable(f"--draft: Weir does not start instances of pool {pool.name}, of the kind {pool.kind}")
    if not options.calibration and pool.kind != SIMULATED:
        raise fleets.NotPlayable(
            f"--fleet: pool {pool.name} has the kind {pool.kind} (only {SIMULATED}, whose options a row has, or "
            "with --calibration)"
        )
    return pool, fleet


def _measured(options: argparse.Namespace, current: Current | None) -> MeasuredEngines | None:
    """Return the engines of a calibrated pool; None without a calibration. Raise NotPlayable."""
    if not options.calibration:
        return None
    if current is None:
        raise fleets.NotPlayable("--calibration: needs --fleet FILE, whose pool has these engines")
    if len(options.gpu or [""]) > 1 or any(options.host_gb):
        raise fleets.NotPlayable("--calibration: its engines have one GPU and their own host memory (one --gpu)")
    return engines_of_file(_text(options.calibration, "a calibration"), current[0], datetime.now(UTC))


def _draft(
    options: argparse.Namespace,
    question: PlanQuestion,
    answer: planned.Answer,
    current: Current | None,
) -> str:
    """Write the row's fleet document; return the difference from the current one."""
    rows = answer["rows"]
    if not 1 <= options.row <= len(rows):
        raise fleets.NotPlayable(f"--row: {options.row} (1 to {len(rows)})")
    row, changes = rows[options.row - 1], ""
    if current is not None:
        pool, fleet = current
        made, changes = planned.draft(answer, row, fleet, pool.name)
    else:
        made = planned.document_of(question, row)
    Path(options.draft).write_text(made)
    return changes


def _question(options: argparse.Namespace, measured: MeasuredEngines | None) -> PlanQuestion:
    """Return the question. NotPlayable names the option, its value and the allowed values."""
    gpus = _once("--gpu", sorted(map(_priced, options.gpu or [f"{DEFAULT_GPU}={Prices().gpu_hour}"])))
    slo = _once("--slo", sorted(map(_limits, options.slo), key=itemgetter(0)))
    for name, value, high in (("--share", options.share, 1.0), ("--most-gpus", options.most_gpus, MOST_GPUS)):
        if not 0 < value <= high:
            raise fleets.NotPlayable(f"{name}: {value:g} (more than 0, at most {high:g})")
    if options.model not in model_names():
        raise fleets.NotPlayable(f"--model: {options.model} (one of {', '.join(model_names())})")
    kv = tuple(options.host_gb)
    for value in kv:
        if not 0 <= value <= MOST_GB:
            raise fleets.NotPlayable(f"--host-gb: {value:g} (0 to {MOST_GB:,.0f})")
    return PlanQuestion(
        options.model, gpus, slo, options.share, tuple(options.policies), options.most_gpus, kv, options.seed, measured
    )


def _once(option: str, given: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the values by name. Raise NotPlayable if a name occurs twice, because the intended value is unknown."""
    found: dict[str, T] = {}
    for name, value in given:
        if name in found:
            raise fleets.NotPlayable(f"{option}: {name} (once)")
        found[name] = value
    return found


def _priced(text: str) -> tuple[str, float]:
    name, _, price = text.partition("=")
    if name not in GPUS:
        raise fleets.NotPlayable(f"--gpu: {name} (one of {', '.join(GPUS)})")
    return name, _positive("--gpu", text, price)


def _limits(text: str) -> tuple[str, dict[str, float]]:
    name, _, given = text.rpartition(":")
    if name not in ("", "all", *CLASSES):
        raise fleets.NotPlayable(f"--slo: {text} (a class of {', '.join(('all', *CLASSES))}, or none)")
    limits = []
    for part in given.split(","):
        latency, _, value = part.partition("=")
        if latency not in LATENCIES:
            raise fleets.NotPlayable(f"--slo: {text} (limits of {', '.join(LATENCIES)} in ms, as ttft=1500,tpot=40)")
        limits.append((f"{latency}_ms", _positive("--slo", text, value)))
    return name or "all", _once(f"--slo: {text}", limits)


def _positive(option: str, text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < MOST:
        raise fleets.NotPlayable(f"{option}: {text} (a number above 0 and below {MOST:g} after each =)")
    return value


def _tell_plays(plays: tuple[int, int]) -> None:
    done, total = plays
    if sys.stderr.isatty() and not done % 10:
        print(f"{done} of {total} plays", file=sys.stderr)


def _text(file: str, what: str = "a fleet document") -> str:
    """Read a document. Raise NotPlayable and OSError."""
    try:
        return Path(file).read_text()
    except UnicodeDecodeError:
        raise fleets.NotPlayable(f"{file}: UTF-8 text, {what}") from None


def _trace(name: str, seed: int) -> LoadedTrace:
    """Load the trace. Raise BadTrace and OSError."""
    path = Path(name)
    if name in BUILT_IN and not path.exists():
        return BUILT_IN[name]()
    with path.open("rb") as file:
        return registry.read(file.read(registry.MAX_BYTES + 1), seed)  # the size of a device or a pipe is unknown


def _given(files: Sequence[str], taken: Collection[str]) -> Iterator[ReplayArm]:
    """Read policy documents, each named after its file, or by its path if another file has that name. Raise
    InvalidInput and OSError."""
    stems = Counter(Path(file).stem for file in dict.fromkeys(files))
    for file in dict.fromkeys(files):
        stem = Path(file).stem
        yield ReplayArm(file if stem in taken or stems[stem] > 1 else stem, _policy(file), True)


def _policy(file: str) -> ParsedPolicy:
    try:
        read = json.loads(Path(file).read_text())
    except (ValueError, RecursionError):
        raise fleets.NotPlayable(f"{file}: one JSON object, a policy document") from None
    return document.parse(read)


def _tell(name: str) -> None:
    if sys.stderr.isatty():
        print(f"simulating {name} …", file=sys.stderr)
