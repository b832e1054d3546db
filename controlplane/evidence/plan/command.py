"""`weir replay`: a first proof from a trace file, on this machine alone."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.evidence.plan import fleets, report
from controlplane.evidence.plan.replay import ReplayArm, replay
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.generated import BUILT_IN
from controlplane.evidence.traces.types import BadTrace, LoadedTrace
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import InvalidFleet
from router.contract.problem import InvalidDocument
from router.policy.schema import document
from router.policy.strategies import STRATEGIES

PRESENT = ("round_robin", "least_requests", "sglang_cache_aware", "cache_aware", "llm_d")
WEIRS = "priced"
REQUESTS = 12_000  # an hour of a busy fleet; seven policies take about a minute
MOST_REQUESTS = 200_000
FAILED, USAGE = 1, 2


def main(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    try:
        text = _replay(options)
    except (BadTrace, InvalidFleet, UnreadableDocument, InvalidDocument, fleets.NotPlayable, OSError) as error:
        print(f"weir replay: {error}", file=sys.stderr)
        return USAGE
    print(text, end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir replay", description=__doc__)
    parser.add_argument("trace", help=f"a trace file, or a built-in trace: {', '.join(BUILT_IN)}")
    parser.add_argument("--fleet", metavar="FILE", help="fleet document; default: an assumed fleet, which is named")
    parser.add_argument("--pool", default="", help="pool of the document; default: the only one that serves")
    parser.add_argument("--policy", metavar="FILE", action="append", default=[], help="policy document, beside Weir's")
    parser.add_argument(
        "--present", nargs="+", default=PRESENT, choices=tuple(STRATEGIES), metavar="STRATEGY", help="routers compared"
    )
    parser.add_argument("--requests", type=_count, default=REQUESTS, metavar="N", help=f"first N, default {REQUESTS:,}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", metavar="FILE", help="write the report as Markdown")
    parser.add_argument("--html", metavar="FILE", help="write the report as one page with pictures")
    return parser


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= value <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text} (a whole number from 1 to {MOST_REQUESTS:,})")
    return value


def _replay(options: argparse.Namespace) -> str:
    trace = _trace(options.trace, options.seed)
    if options.fleet:
        fleet = fleets.of_text(Path(options.fleet).read_text(), options.pool)
    else:
        fleet = fleets.assumed_for(trace.requests[: options.requests])
    arms = [*(ReplayArm(name, document.parse(document.default(name)), False) for name in options.present)]
    arms += [ReplayArm(WEIRS, document.parse(document.default(WEIRS)), True), *map(_given, options.policy)]
    replayed = replay(fleet, trace, arms, most=options.requests, seed=options.seed, on_arm=_tell)
    text = report.markdown(replayed)
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.html:
        Path(options.html).write_text(report.html(replayed))
    return text


def _trace(name: str, seed: int) -> LoadedTrace:
    """BadTrace, OSError."""
    path = Path(name)
    if name in BUILT_IN and not path.exists():
        return BUILT_IN[name]()
    if path.stat().st_size > registry.MAX_BYTES:
        raise BadTrace(0, "", path.stat().st_size, f"at most {registry.MAX_BYTES:,} bytes")
    return registry.read(path.read_bytes(), seed)


def _given(file: str) -> ReplayArm:
    """A policy document, named after its file. InvalidDocument, OSError."""
    try:
        read = json.loads(Path(file).read_text())
    except (ValueError, RecursionError):
        raise fleets.NotPlayable(f"{file}: one JSON object, a policy document") from None
    return ReplayArm(Path(file).stem, document.parse(read), True)


def _tell(name: str) -> None:
    if sys.stderr.isatty():
        print(f"simulating {name} …", file=sys.stderr)
