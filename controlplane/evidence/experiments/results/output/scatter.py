"""A picture of points in a plane, for the results of tunings and plans (components/scatter.html). Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

WIDTH, HEIGHT, MARGIN = 960, 400, 60  # size of the picture, px
LABEL_HEIGHT = 14  # px


@dataclass(frozen=True, slots=True)
class Point:
    """A point, in the units of the axes until `scatter` places it, then in px."""

    x: float
    y: float
    radius: float
    kind: str  # trial, front, winner, live or short
    label: str
    title: str
    dx: float = 0.0  # offset of the label from the point
    dy: float = 0.0


@dataclass(frozen=True, slots=True)
class AxisRange:
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "AxisRange":
        low, high = min(values), max(values)
        pad = (high - low) * 0.05 or high * 0.05 or 1.0
        return cls(low - pad, high + pad)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return three to eight round numbers on the axis: multiples of 1, 2 or 5 times a power of ten."""
        least = (self.high - self.low) / 8
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= least)
        multiples = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        digits = max(0, -math.floor(math.log10(step)))
        return [(self.share(each * step), f"{each * step:,.{digits}f}") for each in multiples]


@dataclass(frozen=True, slots=True)
class Picture:
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    left_out: int  # points without both times
    points: list[Point]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = MARGIN
    right: int = WIDTH - MARGIN
    top: int = MARGIN
    bottom: int = HEIGHT - MARGIN


def scatter(points: Sequence[Point], y: AxisRange, *, left_out: int = 0, y_text: Callable[[str], str] = str) -> Picture:
    """Draw the points. `y` is the range of the axis; `y_text` returns the text of a tick, empty to leave it out."""
    x, inner = AxisRange.of([point.x for point in points]), WIDTH - 2 * MARGIN
    return Picture(
        x_ticks=[(round(MARGIN + share * inner, 1), text) for share, text in x.ticks()],
        y_ticks=[(_height(share), said) for share, text in y.ticks() if (said := y_text(text))],
        left_out=left_out,
        points=_with_places(
            replace(point, x=round(MARGIN + x.share(point.x) * inner, 1), y=height_of(y, point.y)) for point in points
        ),
    )


def height_of(y: AxisRange, value: float) -> float:
    return _height(y.share(value))


def _height(share: float) -> float:
    return round(HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN), 1)


def _with_places(points: Iterable[Point]) -> list[Point]:
    """Return the points, their labels placed so that none covers an earlier one: right above, right below, left above
    or left below."""
    placed: list[Point] = []
    for point in points:
        left = -10 - _label_width(point)
        offsets = [(10, -8), (10, 16), (left, -8), (left, 16)]
        tries = [replace(point, dx=dx, dy=dy) for dx, dy in offsets]
        free = (each for each in tries if not any(_covers(each, other) for other in placed))
        placed.append(next(free, tries[0]) if point.label else point)
    return placed


def _label_width(point: Point) -> int:
    return 8 * len(point.label)


def _covers(one: Point, other: Point) -> bool:
    if not other.label:
        return False
    x, y = one.x + one.dx - other.x - other.dx, one.y + one.dy - other.y - other.dy
    return -_label_width(one) < x < _label_width(other) and abs(y) < LABEL_HEIGHT
