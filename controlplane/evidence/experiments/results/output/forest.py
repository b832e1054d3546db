"""Differences from a baseline, as sentences and as a forest plot: difference, interval, zero line, margins. Pure. The
server draws the plot as SVG, so that the page shows it without JavaScript and reports can embed it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from controlplane.evidence.experiments.results.metrics import MAIN, METRICS
from controlplane.evidence.experiments.results.output.effects import arm_title, signed
from controlplane.evidence.experiments.results.types import DifferenceRow, ExperimentResults, Interval

ROW, TOP = 24, 34  # row and header height, px
LEAST, MOST = -1.0, 3.0  # limits of the axis; a larger difference ends in an arrow
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Colours of a stand-alone picture; on the page, css/experiments.css sets the colours.
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#1c2530}.forest-rule{stroke:#8a96a3}.forest-zero{stroke:#1c2530}"
    ".forest-margin{stroke:#a34a00}.forest-better{fill:#00694a;stroke:#00694a}.forest-worse{fill:#a1321b;stroke:#a1321b}"
    ".forest-open{fill:#fff;stroke:#4d5966}.forest-muted{fill:#4d5966}rect.forest-back{fill:#fff}</style>"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in px: the picture, and the ends of its axis between labels and numbers."""

    width: int
    left: int
    right: int
    name: str = "forest"  # CSS classes
    lines: int = 1  # lines per row; with 2, the label is above the plot


WIDE = Shape(960, 300, 700)
NARROW = Shape(480, 80, 240, "forest forest--narrow")
PHONE = Shape(332, 12, 112, "forest forest--phone", lines=2)


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A row of the plot, in shares of the baseline's value."""

    label: str
    middle: float
    low: float
    high: float
    verdict: str
    text: str
    margins: tuple[float, ...]  # limits of expectations


def lines_of(results: ExperimentResults, request_class: str, baseline: str) -> list[ForestRow]:
    """Return the rows that have a relative difference, metric by metric."""
    rows = _main_rows(results, request_class, baseline)
    found = {(row["metric"], row["arm"]): row for row in rows if row["reference"]}
    names = [arm["name"] for arm in results["arms"]]
    margins = {
        (row["metric"], row["arm"]): tuple(limit - 1 for limit in (row["min_ratio"], row["max_ratio"]) if limit)
        for row in results["expectations"]
        if row["class"] == request_class and row["relative_to"] == baseline
    }
    return [
        _line(found[metric, name], margins.get((metric, name), ()))
        for metric in MAIN
        for name in names
        if (metric, name) in found
    ]


def _main_rows(results: ExperimentResults, request_class: str, baseline: str) -> list[DifferenceRow]:
    return [
        row
        for row in results["differences"]
        if row["class"] == request_class and row["baseline"] == baseline and row["metric"] in MAIN
    ]


def _line(row: DifferenceRow, margins: tuple[float, ...]) -> ForestRow:
    return line(f"{METRICS[row['metric']].title}, {arm_title(row['arm'])}", row, row["reference"] or math.nan, margins)


def line(label: str, row: Interval, reference: float, margins: tuple[float, ...] = ()) -> ForestRow:
    """Build a line of `row`: a difference with its interval, both in the unit of the reference, and its verdict."""
    middle = _relative(row["difference"], reference, math.inf)
    low, high = _interval(row, reference)
    text = f"{signed(row['relative'], '%')} ({signed(_known(low), '%')} to {signed(_known(high), '%')})"
    return ForestRow(label, middle, low, high, row["verdict"], text, margins)


def _interval(row: Interval, reference: float) -> tuple[float, float]:
    """Return the interval of the ratio or, for older results and baselines of zero, of the difference, limited to −1
    and above."""
    low, high = row.get("relative_low"), row.get("relative_high")
    if low is not None:
        return low, math.inf if high is None else high
    return max(-1.0, _relative(row["low"], reference, -1.0)), _relative(row["high"], reference, math.inf)


def _relative(value: float | None, reference: float, end: float) -> float:
    return end if value is None else value / reference


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def sentences(results: ExperimentResults, request_class: str, baseline: str) -> list[str]:
    """Describe the plot's content in a sentence for each arm."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in _main_rows(results, request_class, baseline):
        relative = "" if row["relative"] is None else f" ({signed(row['relative'], '%')})"
        amount = relative if row["verdict"] in ("better", "worse") else ""
        title = f"{METRICS[row['metric']].title}{amount}"
        found.setdefault(row["arm"], {}).setdefault(row["verdict"], []).append(title)
    return [_sentence(arm_title(arm), arm_title(baseline), verdicts) for arm, verdicts in found.items()]


def _sentence(arm: str, baseline: str, verdicts: Mapping[str, Sequence[str]]) -> str:
    if set(verdicts) == {"not distinguishable"}:
        return f"{arm} and {baseline} are not distinguishable."
    if set(verdicts) == {"too few requests"}:
        return f"{arm} and {baseline} have too few requests in common for a verdict."
    parts = [
        f"{words} {', '.join(verdicts[verdict])}"
        for verdict, words in (
            ("better", f"better than {baseline} on"),
            ("worse", f"worse{'' if 'better' in verdicts else f' than {baseline}'} on"),
            ("not distinguishable", "not distinguishable on"),
        )
        if verdict in verdicts
    ]
    return f"{arm} is {'; '.join(parts)}."


def page_svg(lines: Sequence[ForestRow], title: str, shape: Shape = WIDE) -> str:
    """Draw the plot for a page, whose style sheet selects the variant that fits the screen."""
    return svg(lines, title, alone=False, shape=shape) + svg(lines, title, alone=False, shape=PHONE)


def svg(lines: Sequence[ForestRow], title: str, *, alone: bool, shape: Shape = WIDE) -> str:
    """Draw the plot; empty without rows. With `alone`, it has its own colours and background."""
    if not lines:
        return ""
    ends = [value for line in lines for value in (line.low, line.high, *line.margins) if math.isfinite(value)]
    low, high = max(LEAST, min([0.0, *ends])), min(MOST, max([0.0, *ends]))
    pad = max((high - low) * 0.06, 0.005)
    axis = _Axis(low - pad, high + pad, shape)
    row = ROW * shape.lines
    bottom = TOP + row * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{shape.name}" viewBox="0 0 {shape.width} {bottom + 28}" '
        f'role="img" aria-label={quoteattr(title)}>',
        f'{STYLE}<rect class="forest-back" width="{shape.width}" height="{bottom + 28}"/>' if alone else "",
        f'<text x="8" y="18" font-weight="600">{escape(_cut(title, 46) if shape is PHONE else title)}</text>',
        *_ticks(axis, bottom),
        *(_drawn(axis, line, TOP + row * (i + 1) - ROW // 2) for i, line in enumerate(lines)),
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    shape: Shape

    def x(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        left, right = self.shape.left, self.shape.right
        return round(left + (right - left) * (inside - self.low) / (self.high - self.low), 1)


def _ticks(axis: _Axis, bottom: int) -> Iterable[str]:
    step = next(
        (step for step in STEPS if (axis.high - axis.low) / step <= (axis.shape.right - axis.shape.left) / 50),
        STEPS[-1],
    )
    for i in range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1):
        x, name = axis.x(i * step), "zero" if i == 0 else "rule"
        dash = "" if i == 0 else ' stroke-dasharray="2 4"'
        yield f'<line class="forest-{name}" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"{dash}/>'
        label = "0" if i == 0 else signed(i * step, "%")
        yield f'<text class="forest-muted" x="{x}" y="{bottom + 18}" text-anchor="middle">{label}</text>'


def _drawn(axis: _Axis, line: ForestRow, y: int) -> str:
    name = line.verdict if line.verdict in ("better", "worse") else "open"
    low, middle, high = axis.x(line.low), axis.x(line.middle), axis.x(line.high)
    marks = {
        "better": f'<circle class="forest-better" cx="{middle}" cy="{y}" r="5"/>',
        "worse": f'<rect class="forest-worse" x="{middle - 5}" y="{y - 5}" width="10" height="10"/>',
        "open": f'<path class="forest-open" d="M{middle} {y - 6}l6 6l-6 6l-6 -6z"/>',
    }
    margins = "".join(
        f'<line class="forest-margin" x1="{axis.x(m)}" y1="{y - 11}" x2="{axis.x(m)}" y2="{y + 11}" stroke-width="2"/>'
        for m in line.margins
    )
    arrow = f'<path class="forest-{name}" d="M{high} {y - 5}l8 5l-8 5z"/>' if line.high > axis.high else ""
    return (
        f'<text x="8" y="{y + 4 - (axis.shape.lines - 1) * 20}">{escape(_cut(line.label))}</text>{margins}'
        f'<line class="forest-{name}" x1="{low}" y1="{y}" x2="{high}" y2="{y}" stroke-width="2"/>{arrow}{marks[name]}'
        f'<text x="{axis.shape.right + 16}" y="{y + 4}">{escape(line.text)}</text>'
    )


def _cut(text: str, limit: int = 42) -> str:
    """Shorten a text in the middle, because names mostly differ at their ends."""
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2 - 1) :]}"
