"""Reads one JSON object of a plan field by field, and gathers every problem. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from router.contract.problem import Problem, shown

HOUR, DAY = 3600, 86_400
SHARE_MAX = 0.5  # of a canary: with more, control would be the smaller arm

# Name and limits of every number, by where it stands; docs/delivery.md lists them.
LIMITS: dict[str, tuple[float, float]] = {
    "shadow.sample": (0.001, 1.0),
    "shadow.for_s": (10, DAY),
    "canary.share": (0.001, SHARE_MAX),
    "canary.for_s": (10, 7 * DAY),
    "canary.max_s": (10, 30 * DAY),
    "switchback.block_s": (30, 2 * HOUR),
    "switchback.washout_s": (0, HOUR),
    "switchback.pairs": (4, 100),
    "full.bake_s": (0, 7 * DAY),
    "guard.worse": (0.005, 10.0),
    "guard.fine": (0.01, 10.0),
    "guard.ratio": (1.05, 100.0),
    "guard.above": (0.0, 1e9),
    "guard.for_s": (0, HOUR),
    "alpha": (0.0001, 0.1),
    "hold.no_data_s": (30, 7 * DAY),
    "hold.error_s": (15, DAY),
    "approvals.needed": (0, 10),
    "approvals.expires_s": (60, 30 * DAY),
    "start.latest_s": (0, 7 * DAY),
}
WHOLE = ("pairs", "needed")  # and every time in seconds


class Reader:
    """One JSON object: takes its fields one by one, gathers problems, refuses what is left."""

    def __init__(self, value: object, path: str, limits: str, problems: list[Problem]) -> None:
        self.path, self.limits, self.problems = path, limits, problems
        self.known: set[str] = set()
        self.given: Mapping[str, Any] = {}
        if isinstance(value, dict):
            self.given = value
        else:
            self.problem("", value, "must be an object")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def problem(self, key: str, value: object, message: str, allowed: str = "") -> None:
        self.problems.append(Problem(self.at(key), shown(value), message, allowed))

    def take(self, key: str) -> Any:
        self.known.add(key)
        return self.given.get(key)

    def number(self, key: str, default: float | None = None) -> float:
        low, high = LIMITS[f"{self.limits}.{key}" if self.limits else key]
        value = self.take(key)
        if value is None and key not in self.given and default is not None:
            return default
        whole = key in WHOLE or key.endswith("_s")
        if not _is_number(value, whole) or not low <= value <= high:
            what = "missing" if key not in self.given else f"must be {'an integer' if whole else 'a number'} in range"
            self.problem(key, value, what, f"{low:,.10g} to {high:,.10g}")
            return low
        return value if whole else float(value)

    def choice(self, key: str, allowed: Iterable[str], default: str | None = None) -> str:
        value, options = self.take(key), tuple(allowed)
        if key not in self.given and default is not None:
            return default
        if not isinstance(value, str) or value not in options:
            what = "missing" if key not in self.given else "not one of the allowed values"
            self.problem(key, value, what, ", ".join(option or '""' for option in options))
            return options[0] if options else ""
        return value

    def listed(self, key: str, high: int, default: Sequence[Any] | None = None, low: int = 1) -> list[Any]:
        value = self.take(key)
        if key not in self.given and default is not None:
            return list(default)
        if not isinstance(value, list) or not low <= len(value) <= high:
            self.problem(key, value, "must be a list", f"{low} to {high} entries")
            return []
        return value

    def names(self, key: str, allowed: Sequence[str], default: Sequence[str] | None = None) -> tuple[str, ...]:
        found: list[str] = []
        for n, name in enumerate(self.listed(key, max(len(allowed), 1), default)):
            if name not in allowed or name in found:
                what = "named twice" if name in found else "not one of the allowed values"
                self.problem(f"{key}[{n}]", name, what, ", ".join(allowed) or "none")
            else:
                found.append(name)
        return tuple(found)

    def end(self) -> None:
        unknown = [key for key in self.given if key not in self.known]
        for key in unknown[:10]:
            self.problem(str(key)[:80], self.given[key], "unknown field", ", ".join(sorted(self.known)))


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) if whole else math.isfinite(value)
