"""Reads a plan's JSON objects field by field and collects every problem. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from router.contract.values.fields import Field, accept
from router.contract.values.problem import Problem, shown

HOUR, DAY = 3600, 86_400
SHARE_MAX = 0.5  # largest share of a canary; with a larger share, control would be the smaller arm


def _number(name: str, low: float, high: float, unit: str = "") -> Field:
    """Return the field of a number; seconds and counts are whole numbers."""
    whole = unit in ("s", "pairs", "approvals", "looks")
    return Field(name=name, kind="int" if whole else "float", unit=unit, range=(low, high))


# All numbers of a plan by path; docs/delivery.md lists them.
NUMBERS: dict[str, Field] = {
    field.name: field
    for field in (
        _number("shadow.sample", 0.001, 1.0, "share"),
        _number("shadow.for_s", 10, DAY, "s"),
        _number("canary.share", 0.001, SHARE_MAX, "share"),
        _number("canary.for_s", 10, 7 * DAY, "s"),
        _number("canary.max_s", 10, 30 * DAY, "s"),
        _number("switchback.block_s", 30, 2 * HOUR, "s"),
        _number("switchback.washout_s", 0, HOUR, "s"),
        _number("switchback.pairs", 4, 100, "pairs"),
        _number("full.bake_s", 0, 7 * DAY, "s"),
        _number("guard.worse", 0.005, 10.0, "share"),
        _number("guard.fine", 0.01, 10.0, "share"),
        _number("guard.ratio", 1.05, 100.0, "ratio"),
        _number("guard.above", 0.0, 1e9),
        _number("guard.for_s", 0, HOUR, "s"),
        _number("guard.limit", -1e9, 1e9),
        _number("guard.for_looks", 1, 100, "looks"),
        _number("alpha", 0.0001, 0.1, "share"),
        _number("hold.no_data_s", 30, 7 * DAY, "s"),
        _number("hold.error_s", 15, DAY, "s"),
        _number("approvals.needed", 0, 10, "approvals"),
        _number("approvals.expires_s", 60, 30 * DAY, "s"),
        _number("start.latest_s", 0, 7 * DAY, "s"),
    )
}


class Reader:
    """Reads one JSON object: takes its fields one by one, collects problems, and finally refuses unknown fields."""

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
        field = NUMBERS[f"{self.limits}.{key}" if self.limits else key]
        value = self.take(key)
        if key not in self.given and default is not None:
            return default
        accepted = accept(field, value, self.at(key))
        if isinstance(accepted, Problem):
            self.problems.append(accepted if key in self.given else replace(accepted, message="missing"))
            return field.range[0]
        return float(accepted) if field.kind == "float" else int(accepted)

    def choice(self, key: str, allowed: Iterable[str], default: str | None = None) -> str:
        value, options = self.take(key), tuple(allowed)
        if key not in self.given and default is not None:
            return default
        if not isinstance(value, str) or value not in options:
            what = "missing" if key not in self.given else "not one of the allowed values"
            self.problem(key, value, what, ", ".join(option or '""' for option in options))
            return options[0] if options else ""
        return value

    def text(self, key: str, longest: int) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value.strip() or len(value) > longest:
            what = "missing" if key not in self.given else "must be text"
            self.problem(key, value, what, f"1 to {longest:,} characters")
            return ""
        return value.strip()

    def listed(self, key: str, high: int, default: Sequence[Any] | None = None, low: int = 1) -> list[Any]:
        value = self.take(key)
        if key not in self.given and default is not None:
            return list(default)
        if not isinstance(value, list) or not low <= len(value) <= high:
            self.problem(key, value, "must be a list", f"{low} to {high} entries")
            return []
        return value

    def names(self, key: str, allowed: Sequence[str], default: Sequence[str] | None = None) -> tuple[str, ...]:
        names: list[str] = []
        for n, name in enumerate(self.listed(key, max(len(allowed), 1), default)):
            if name not in allowed or name in names:
                what = "named twice" if name in names else "not one of the allowed values"
                self.problem(f"{key}[{n}]", name, what, ", ".join(allowed) or "none")
            else:
                names.append(name)
        return tuple(names)

    def end(self) -> None:
        unknown = [key for key in self.given if key not in self.known]
        for key in unknown[:10]:
            self.problem(str(key)[:80], self.given[key], "unknown field", ", ".join(sorted(self.known)))
