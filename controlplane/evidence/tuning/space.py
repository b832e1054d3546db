"""The space that a tuning searches: parameters and their bounds. Pure."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from router.contract.values.fields import accept, number
from router.contract.values.problem import InvalidInput, Problem
from router.policy.schema.document import parameters_of
from router.policy.schema.parameter import Parameter

DEFAULT = (
    "strategy.",
    "classes.",
    "affinity.",
    "load.",
    "cache.",
)  # prefixes of paths searched by default
SEARCHABLE = (*DEFAULT, "flow.", "admission.max_", "admission.share_")  # prefixes of the paths that affect the twin
NAME = "strategy.name"
AROUND = 4.0  # factor of suggested bounds around the live value
WIDE = 100.0  # ratio of the bounds above which the scale is logarithmic


@dataclass(frozen=True, slots=True)
class Range:
    """A requested parameter; None stands for the parameter's own bound."""

    path: str
    low: float | None = None
    high: float | None = None
    step: float | None = None  # distance between values, from the lower bound; None for any value
    log: bool | None = None  # logarithmic scale; None: logarithmic if the bounds are WIDE


@dataclass(frozen=True, slots=True)
class Dimension:
    path: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False
    shift: float = 0.0  # added before the logarithm, for a lower bound of zero
    choices: tuple[Any, ...] = ()  # values instead of bounds
    step: float = 0.0  # 0 for any value

    def value_at(self, position: float) -> int | float:
        """Return the value at a position between 0 (lower bound) and 1 (upper bound)."""
        low, high = self.low + self.shift, self.high + self.shift
        raw = low * (high / low) ** position if self.log else low + (high - low) * position
        if self.step:
            raw = low + self.step * round((raw - low) / self.step)
            raw -= self.step if raw > high else 0.0
        value = round(raw - self.shift) if self.whole else float(f"{raw - self.shift:.4g}")
        bounded = min(max(value, self.low), self.high)
        return int(bounded) if self.whole else float(bounded)

    def position_of(self, value: float) -> float | None:
        """Return the position of a value; None for a value outside the bounds."""
        if not self.low <= value <= self.high:
            return None
        low, high, at = self.low + self.shift, self.high + self.shift, value + self.shift
        position = math.log(at / low) / math.log(high / low) if self.log else (at - low) / (high - low)
        return min(max(position, 0.0), 1.0)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "choices": list(self.choices)}

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Self:
        return cls(**{**stored, "choices": tuple(stored["choices"])})


def space_of(strategy: str, asked: Iterable[Range] = ()) -> tuple[Dimension, ...]:
    """Return the requested parameters, or else those of the strategy. InvalidInput names every problem."""
    known = searchable(strategy)
    ranges = tuple(asked) or tuple(map(Range, by_default(known)))
    problems, found = [], []
    for i, each in enumerate(ranges):
        made = _dimension(f"parameters.{i}", each, known)
        if isinstance(made, Problem):
            problems.append(made)
        else:
            found.append(made)
    paths = [each.path for each in ranges]
    problems += [
        Problem(f"parameters.{i}.path", path, "is named twice") for i, path in enumerate(paths) if path in paths[:i]
    ]
    if problems:
        raise InvalidInput("these parameters cannot be tuned", problems)
    return tuple(found)


def by_default(known: Iterable[str]) -> list[str]:
    """Return the paths of the parameters that are searched by default."""
    return [path for path in known if path.startswith(DEFAULT)]


def searchable(strategy: str) -> dict[str, Parameter]:
    return {
        each.path: each
        for each in parameters_of(strategy)
        if each.path.startswith(SEARCHABLE)
        and each.path != NAME
        and (not each.strategies or strategy in each.strategies)
    }


def _dimension(at: str, asked: Range, known: dict[str, Parameter]) -> Dimension | Problem:
    parameter = known.get(asked.path)
    if parameter is None:
        return Problem(f"{at}.path", asked.path, "cannot be tuned", ", ".join(known))
    if parameter.kind in ("choice", "bool"):
        for name in ("low", "high", "step", "log"):
            if (value := getattr(asked, name)) is not None:
                return Problem(
                    f"{at}.{name}", value, f"{asked.path} has no bounds", "leave out low, high, step and log"
                )
        return Dimension(asked.path, choices=parameter.choices or (False, True))
    bounds, (low, high) = [], parameter.range
    for name, given, own in (("low", asked.low, low), ("high", asked.high, high)):
        bound = accept(parameter, own if given is None else given)
        if isinstance(bound, Problem):
            return Problem(f"{at}.{name}", given, bound.message, parameter.allowed)
        bounds.append(bound)
    return _between(at, parameter, asked, *bounds)


def _between(at: str, parameter: Parameter, asked: Range, low: float, high: float) -> Dimension | Problem:
    if low >= high:
        return Problem(f"{at}.low", low, "is not below the upper bound", f"below {number(high)}")
    if asked.step is not None and (wrong := _wrong_step(at, parameter, asked, high - low)):
        return wrong
    shift = 0.0 if low > 0 else float(parameter.step or 1.0)
    wide = asked.step is None and (high + shift) / (low + shift) >= WIDE
    log = wide if asked.log is None else asked.log
    step = asked.step or 0.0
    return Dimension(parameter.path, low, high, parameter.kind == "int", log, shift if log else 0.0, step=step)


def _wrong_step(at: str, parameter: Parameter, asked: Range, width: float) -> Problem | None:
    step = asked.step or 0.0
    if asked.log:
        return Problem(f"{at}.step", step, "cannot be combined with a logarithmic scale", "leave out step or log")
    whole = parameter.kind == "int"
    if not (1 if whole else 0) <= step <= width or not step or (whole and step % 1):
        allowed = f"a whole number from 1 to {number(width)}" if whole else f"above 0, at most {number(width)}"
        return Problem(f"{at}.step", step, "is not allowed", allowed)
    return None


def suggested(parameter: Parameter, value: Any) -> tuple[float, float]:
    """Return bounds around the current value: a factor of AROUND each way if the parameter's range allows that,
    otherwise its range."""
    low, high = parameter.range
    if not value or high < max(low, 1.0) * AROUND**2:
        return low, high
    around = max(low, value / AROUND), min(high, value * AROUND)
    return (round(around[0]), round(around[1])) if parameter.kind == "int" else around
