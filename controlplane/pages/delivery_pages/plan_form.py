"""Converts a plan to form fields and back. Pure. The form covers the usual structure: a shadow, some canaries, a
switchback, everyone, and one guard of each kind. Everything else (alpha, holds, expiry) takes its defaults. A plan with
another structure is entered as JSON.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.traffic.deliveries.plan.types import (
    CLASSES,
    COMPARISONS,
    COUNTS,
    NEEDED,
    PROMETHEUS,
    Canary,
    ComparisonGuard,
    CountGuard,
    Full,
    Guard,
    Plan,
    Shadow,
)
from controlplane.traffic.deliveries.timing.durations import parse as seconds_of
from controlplane.traffic.deliveries.timing.durations import words
from router.contract.values.fields import typed_number
from router.contract.values.problem import Problem

CANARIES = 4
Unchecked = dict[str, object]  # plan or part of a plan, not validated
Values = dict[str, str | list[str]]  # values by field of the form


@dataclass(slots=True)
class PostedPlan:
    """The posted form as an unchecked plan."""

    plan: Unchecked = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)  # form field by path in the plan
    errors: dict[str, str] = field(default_factory=dict)  # unreadable input by field


# Reading typed input


class _Form:
    def __init__(self, posted: Mapping[str, str], typed: PostedPlan) -> None:
        self.posted, self.typed = posted, typed

    def text(self, name: str) -> str:
        return self.posted.get(name, "").strip()

    def read(self, into: Unchecked, path: str, key: str, name: str, kind: Callable[[str], object]) -> None:
        """Put the value of the field `name` at `path`.`key`. An empty field is left out; the plan's check then reports
        it.
        """
        self.typed.fields[f"{path}.{key}"] = name
        text = self.text(name)
        if not text:
            return
        try:
            into[key] = kind(text)
        except ValueError as error:
            self.typed.errors[name] = str(error)


def share_of(text: str) -> float:
    """Return 0.05 for "5 %" or "5"."""
    return round(number_of(text.removesuffix("%").strip()) / 100, 6)


def number_of(text: str) -> float:
    value = typed_number(text)
    if isinstance(value, str):
        raise ValueError(f"{text[:40]!r} is not a number")
    return value


def whole_of(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


def typed(posted: Mapping[str, str], chosen: Mapping[str, list[str]]) -> PostedPlan:
    """Read the form. `chosen` has the selected pools and classes of guards, by field."""
    result = PostedPlan()
    form = _Form(posted, result)
    approvals: Unchecked = {}
    result.fields["pools"] = "pools"
    form.read(approvals, "approvals", "needed", "approvals", whole_of)
    result.plan = {
        "pools": chosen.get("pools", []),
        "steps": _steps(form),
        "guards": _guards(form, chosen),
        "approvals": approvals,
        **_start(form),
    }
    return result


def _steps(form: _Form) -> list[Unchecked]:
    steps: list[Unchecked] = []
    if form.text("shadow.for"):
        _step(form, steps, "shadow", "shadow", (("sample", share_of), ("for", seconds_of)))
    for number in range(1, CANARIES + 1):
        name = f"canary{number}"
        if form.text(f"{name}.share"):
            _step(form, steps, "canary", name, (("share", share_of), ("for", seconds_of), ("max", seconds_of)))
            steps[-1] |= {"then": "ask"} if form.text(f"{name}.ask") else {}
    if form.text("switchback.pairs"):
        kinds = (("pairs", whole_of), ("block", seconds_of), ("washout", seconds_of))
        _step(form, steps, "switchback", "switchback", kinds)
    if form.text("full"):
        _step(form, steps, "full", "full", (("bake", seconds_of),))
    form.typed.fields["steps"] = "shadow.for"
    return steps


def _step(
    form: _Form, steps: list[Unchecked], mode: str, name: str, kinds: tuple[tuple[str, Callable[[str], object]], ...]
) -> None:
    step: Unchecked = {"mode": mode}
    path = f"steps[{len(steps)}]"
    form.typed.fields[path] = form.typed.fields[f"{path}.mode"] = f"{name}.{kinds[0][0]}"
    for key, kind in kinds:
        form.read(step, path, f"{key}_s" if kind is seconds_of else key, f"{name}.{key}", kind)
    steps.append(step)


def _guards(form: _Form, chosen: Mapping[str, list[str]]) -> list[Unchecked]:
    guards: list[Unchecked] = []
    for metric in COMPARISONS:
        if classes := chosen.get(f"{metric}.classes"):
            guard, path = _guard(form, guards, metric, f"{metric}.worse")
            guard["classes"] = classes
            form.read(guard, path, "worse", f"{metric}.worse", share_of)
            if metric != "slow":
                form.read(guard, path, "fine", f"{metric}.fine", share_of)
    for metric in COUNTS:
        if form.text(f"{metric}.ratio"):
            guard, path = _guard(form, guards, metric, f"{metric}.ratio")
            form.read(guard, path, "ratio", f"{metric}.ratio", number_of)
    if metric := form.text("pool.metric"):
        guard, path = _guard(form, guards, metric, "pool.metric")
        guard |= {"class": form.text("pool.class"), "does": form.text("pool.does")}
        form.read(guard, path, "above", "pool.above", number_of)
        form.read(guard, path, "for_s", "pool.for", seconds_of)
    if query := form.text("prometheus.query"):
        guard, path = _guard(form, guards, PROMETHEUS, "prometheus.query")
        guard |= {"query": query, "fail_if": form.text("prometheus.fail_if"), "does": form.text("prometheus.does")}
        form.read(guard, path, "limit", "prometheus.limit", number_of)
        form.read(guard, path, "for_looks", "prometheus.looks", whole_of)
    form.typed.fields["guards"] = "ttft.worse"
    return guards


def _guard(form: _Form, guards: list[Unchecked], metric: str, name: str) -> tuple[Unchecked, str]:
    path = f"guards[{len(guards)}]"
    form.typed.fields[path] = form.typed.fields[f"{path}.metric"] = name
    guards.append({"metric": metric})
    return guards[-1], path


def _start(form: _Form) -> Unchecked:
    if not form.text("start.at"):
        return {}
    start: Unchecked = {"at": form.text("start.at")[:16], "zone": form.text("start.zone")}
    form.typed.fields |= {"start": "start.at", "start.at": "start.at", "start.zone": "start.zone"}
    form.read(start, "start", "latest_s", "start.latest", seconds_of)
    return {"start": start}


def by_field(form: PostedPlan, problems: tuple[Problem, ...]) -> tuple[dict[str, str], list[str]]:
    """Return (the plan's problems by form field, problems without a field). Unreadable fields keep their own error."""
    errors, others = dict(form.errors), []
    for problem in problems:
        name = _nearest(problem.path, form.fields)
        if name is None:
            others.append(f"{problem.path}: {problem.text}" if problem.path else problem.text)
        else:
            errors.setdefault(name, _text_of(problem))
    return errors, others


def _text_of(problem: Problem) -> str:
    """Return the message with limits in the unit of the form's field."""
    key = problem.path.rpartition(".")[2]
    pattern = r"(?:more than |a (?:whole )?number from )?([\d.,]+)(?: to|, up to) ([\d.,]+)(?: \w+)?"
    limits = re.fullmatch(pattern, problem.allowed)
    if limits is None or key not in (*PERCENT, *TEXTS):
        return problem.text
    message = re.sub(r"^\S+ is (below|above) \S+$", "out of range", problem.message)
    low, high = (_text(key, float(each.replace(",", ""))) for each in limits.groups())
    unit = " %" if key in PERCENT else ""
    return f"{message}; allowed: {low} to {high}{unit}"


def _nearest(path: str, fields: Mapping[str, str]) -> str | None:
    """Return the field of steps[0].share, or else of steps[0], or else of steps."""
    while path:
        if path in fields:
            return fields[path]
        path = re.sub(r"(\.[^.\[\]]*|\[\d+\])$|^[^.\[\]]+$", "", path)
    return None


def label_of(name: str) -> str:
    """Return a field's name for the summary of errors: canary1.share becomes "Canary 1, share"."""
    part, _, field = re.sub(r"(\d+)", r" \1", name).partition(".")
    part = part.upper() if part in NEEDED else part.capitalize()
    return f"{part}, {field}" if field else part


# Showing a plan


def values(plan: Plan) -> Values:
    """Return the fields of the form for the plan that it offers."""
    fields: Values = {"pools": list(plan.pools), "approvals": str(plan.approvals.needed)}
    canaries = 0
    for step in plan.steps:
        if isinstance(step, Shadow):
            fields |= {"shadow.sample": percent(step.sample), "shadow.for": words(step.for_s)}
        elif isinstance(step, Canary):
            canaries += 1
            fields |= _canary_values(step, f"canary{canaries}")
        elif isinstance(step, Full):
            fields |= {"full": "on", "full.bake": words(step.bake_s)}
    for guard in plan.guards:
        fields |= _guard_values(guard)
    return fields


def step_numbers(values: Values) -> dict[str, int]:
    """Return the number of each step by its part of the form, for the foresight."""
    firsts = ("shadow.for", *(f"canary{number}.share" for number in range(1, CANARIES + 1)), "switchback.pairs", "full")
    given = [name.partition(".")[0] for name in firsts if values.get(name)]
    return {name: number for number, name in enumerate(given, 1)}


def _canary_values(step: Canary, name: str) -> Values:
    times: Values = {f"{name}.for": words(step.for_s), f"{name}.max": words(step.max_s)}
    return {f"{name}.share": percent(step.share), **times, **({f"{name}.ask": "on"} if step.then else {})}


def _guard_values(guard: Guard) -> Values:
    if isinstance(guard, CountGuard):
        return {f"{guard.metric}.ratio": f"{guard.ratio:g}"}
    if not isinstance(guard, ComparisonGuard):
        return {}
    fine: Values = {} if guard.fine is None else {f"{guard.metric}.fine": percent(guard.fine)}
    return {f"{guard.metric}.classes": list(guard.classes), f"{guard.metric}.worse": percent(guard.worse), **fine}


PERCENT = ("sample", "share", "worse", "fine")
TEXTS = ("for_s", "max_s", "block_s", "washout_s", "pairs", "bake_s", "latest_s")


def _text(key: str, value: float) -> str:
    if key.endswith("_s"):
        return words(value)
    return percent(value) if key in PERCENT else f"{value:g}"


def percent(share: float) -> str:
    return f"{share * 100:g}"


def defaults() -> dict[str, str]:
    """Return the values of fields whose part is missing in the plan, so that adding the part needs only one value."""
    return {
        "shadow.sample": "100",
        "switchback.block": "5 min",
        "switchback.washout": "30 s",
        "full.bake": "30 min",
        "start.latest": "1 h",
        "start.zone": "UTC",
        "pool.class": CLASSES[0],
        "pool.for": "30 s",
        "pool.does": "pause",
        "prometheus.fail_if": "above",
        "prometheus.looks": "2",
        "prometheus.does": "abort",
    }
