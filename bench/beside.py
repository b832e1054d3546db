"""Build the table in bench/README.md that compares the router with others from the results of bench/router.py. Pure."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

README = Path(__file__).with_name("README.md")
BEGINS, ENDS = "<!-- beside -->\n", "<!-- end -->"
PEERS = ("sglang-router", "smg")
Rounds = Sequence[Mapping[str, float]]  # results of a router
Shown = tuple[str, Mapping[str, Rounds], Mapping[str, Rounds]]  # (shape, in a closed loop, at one rate) by router

HEAD = """\
| | Weir, CPU ms | best of sglang-router and smg | Weir over it | over {earlier} | TTFB at one rate, Weir, p50, p99 | \
peer | direct | MB, Weir, peer |
|---|---|---|---|---|---|---|---|---|
"""


def table(shown: Iterable[Shown], weir: str, earlier: str) -> str:
    """Return a row for each shape, with pairs of figures: in a closed loop, and at one rate. `earlier`: an older build
    of the router `weir`; empty without one.
    """
    rows = [_row(*one, weir, f"{weir} in {earlier}") for one in shown]
    return HEAD.format(earlier=earlier or "an older build") + "".join(rows)


def _row(shape: str, closed: Mapping[str, Rounds], paced: Mapping[str, Rounds], weir: str, earlier: str) -> str:
    runs = closed, paced
    peers = [
        min((name for name in PEERS if name in run), key=lambda name: _cost(run, name), default="") for run in runs
    ]
    known = list(zip(runs, peers, strict=True))
    cells = [
        shape,
        "; ".join(_spread(run[weir]) for run in runs),
        "; ".join(f"{_spread(run[peer])} ({peer})" if peer else "–" for run, peer in known),
        "; ".join(_ratio(run, weir, peer) for run, peer in known),
        "; ".join(_ratio(run, weir, earlier) for run in runs),
        *(_latency(paced, name) for name in (weir, peers[1], "direct")),
        ", ".join(f"{_middle(closed[name], 'mb'):.0f}" for name in (weir, peers[0]) if name),
    ]
    return f"| {' | '.join(cells)} |\n"


def _middle(rounds: Rounds, column: str) -> float:
    return statistics.median(one[column] for one in rounds)


def _cost(run: Mapping[str, Rounds], name: str) -> float:
    return _middle(run[name], "cpu_ms")


def _spread(rounds: Rounds) -> str:
    costs = [one["cpu_ms"] for one in rounds]
    return f"{statistics.median(costs):.3f} ({min(costs):.3f}–{max(costs):.3f})"


def _ratio(run: Mapping[str, Rounds], name: str, other: str) -> str:
    """Return the median of the rounds' ratios, since other work on the machine affects both values of a round. Too few
    requests may cost nothing that the kernel counts.
    """
    if other not in run or not min(one["cpu_ms"] for one in run[other]):
        return "–"
    rounds = zip(run[name], run[other], strict=True)
    return f"{statistics.median(one['cpu_ms'] / another['cpu_ms'] for one, another in rounds):.2f}"


def _latency(run: Mapping[str, Rounds], name: str) -> str:
    return f"{_middle(run[name], 'ttfb_p50'):.2f}, {_middle(run[name], 'ttfb_p99'):.2f}" if name in run else "–"


def put(text: str, made: str) -> str:
    """Return the page's text with `made` between its two marks."""
    parts = re.split(f"({re.escape(BEGINS)}).*?({re.escape(ENDS)})", text, flags=re.DOTALL)
    if len(parts) != 4:
        raise ValueError(f"{README} must contain the marks {BEGINS.strip()} … {ENDS} exactly once")
    return "".join((parts[0], parts[1], made, parts[2], parts[3]))
