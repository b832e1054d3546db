"""Results as texts for the page. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from controlplane.evidence.experiments.models import Arm
from controlplane.evidence.experiments.record import RecordedFleet
from controlplane.evidence.experiments.results.metrics import MAIN, METRICS, Metric
from controlplane.evidence.experiments.results.output.effects import (
    Cell,
    ResultRow,
    arm_title,
    cell,
    effect_row,
    result_row,
)
from controlplane.evidence.experiments.results.output.report import compared_n
from controlplane.evidence.experiments.results.summarize import levels, value_of
from controlplane.evidence.experiments.results.types import DifferenceRow, ExperimentResults
from controlplane.traffic.policies.drafts.editor import BARE
from fleet.kinds import KINDS
from fleet.kinds.options.option import options_of
from fleet.spec import masking
from router.contract.values.fields import Field
from router.contract.values.json_value import JsonObject
from router.policy.schema.document import values_of
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import title_of

T = TypeVar("T")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
SIGNS = ("●", "■", "◆", "▲", "✚", "★")  # markers by arm


def comparison_rows(results: ExperimentResults, request_class: str, baseline: str) -> list[ResultRow]:
    """Return a row for each metric of the class, with a cell for each arm."""
    against = {
        (row["arm"], row["metric"]): row
        for row in results["differences"]
        if row["class"] == request_class and row["baseline"] == baseline
    }
    best, found = results["best"].get(request_class, {}), levels(results, request_class)
    return [
        result_row(
            metric,
            [_cell(arm["name"], found[arm["name"], metric.key], metric, best, against) for arm in results["arms"]],
            is_main=metric.key in MAIN,
        )
        for metric in METRICS.values()
        if (metric.per_class or request_class == "all") and _is_known(metric, results, request_class)
    ]


def _is_known(metric: Metric, results: ExperimentResults, request_class: str) -> bool:
    return not metric.optional or any(value_of(arm, request_class, metric.key) is not None for arm in results["arms"])


def _cell(
    arm: str,
    value: float | None,
    metric: Metric,
    best: Mapping[str, str],
    against: Mapping[tuple[str, str], DifferenceRow],
) -> Cell:
    row, made = against.get((arm, metric.key)), cell(metric, arm, value, best=best.get(metric.key) == arm)
    if row is None:
        return made
    return replace(made, n=compared_n(row), effect=effect_row(metric, (row["reference"], value), row, row["n"]))


def class_counts(results: ExperimentResults) -> list[tuple[str, int]]:
    """Return (class, number of requests) for each class, from the arm with the most."""
    return [
        (name, int(max((arm["classes"][name]["n"] or 0 for arm in results["arms"]), default=0)))
        for name in results["classes"]
    ]


@dataclass(frozen=True, slots=True)
class ArmLook:
    """The sign, colour and dash pattern of an arm everywhere on the page."""

    number: int  # number of the colour, from 1
    name: str
    sign: str
    dash: str
    marker: str
    policy: str  # the policy's description
    partial: bool
    n: str = ""  # number of requests on which its differences are based, if equal for all rows


def arm_looks(arms: Sequence[Arm], partial: Mapping[str, bool], n: Mapping[str, str] | None = None) -> list[ArmLook]:
    return [
        ArmLook(
            number=index % len(SIGNS) + 1,
            name=arm.name,
            sign=SIGNS[index % len(SIGNS)],
            dash=DASHES[(index + index // len(SIGNS)) % len(DASHES)],
            marker=MARKERS[index % len(MARKERS)],
            policy=policy_of(arm),
            partial=partial.get(arm.name, False),
            n=(n or {}).get(arm.name, ""),
        )
        for index, arm in enumerate(arms)
    ]


def policy_of(arm: Arm) -> str:
    base = f"{arm.policy} v{arm.version}" if arm.policy else title_of(arm.strategy)
    given = {**arm.overrides, **arm.fleet.engine, **_of_store(arm.fleet.store)}
    given |= {"instances": arm.fleet.replicas} if arm.fleet.replicas else {}
    changes = ", ".join(f"{_title(path)} = {_plain(value)}" for path, value in given.items())
    if changes:
        return f"{base}; {changes}"
    return base if arm.policy else "default values" if base == arm_title(arm.name) else f"{base}, default values"


def _title(path: str) -> str:
    """Return the title of a policy parameter or of a kind's option; any other key unchanged."""
    return PARAMETERS[path].title if path in PARAMETERS else OPTION_TITLES.get(path.removeprefix("store."), path)


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy parameter in every arm."""

    path: str
    title: str
    unit: str
    values: tuple[str, ...]
    differs: bool


def settings_of(documents: Sequence[JsonObject]) -> list[Setting]:
    """Return every parameter of the arms' documents, with a dash if an arm's strategy does not have it."""
    values = [values_of(document) for document in documents]
    paths = list(dict.fromkeys(path for each in values for path in each))
    return [_setting(path, [each.get(path) for each in values]) for path in paths]


def fleet_settings_of(fleets: Sequence[RecordedFleet | None]) -> list[Setting]:
    """Return the recorded fleet of every arm: its size, its model, and each option with its default."""
    known = [fleet for fleet in fleets if fleet is not None]
    if not known or len(known) < len(fleets):
        return []
    stores = [fleet.store for fleet in known if fleet.store]
    options = _options_of(known[0].kind) | _of_store(_options_of(stores[0].kind) if stores else {})
    values = [
        {
            "replicas": fleet.replicas,
            "model": fleet.model,
            **fleet.options,
            **_of_store(fleet.store.options if fleet.store else {}),
        }
        for fleet in known
    ]
    found = []
    for path in dict.fromkeys(path for each in values for path in each):
        texts = tuple("–" if (value := each.get(path)) is None else _plain(masking.shown(value)) for each in values)
        option = options.get(path)
        title, unit = (option.title, option.unit) if option else (FLEET_TITLES.get(path, path), "")
        found.append(Setting(path, title, unit, texts, len(set(texts)) > 1))
    return found


def _of_store(values: Mapping[str, T]) -> dict[str, T]:
    return {f"store.{name}": value for name, value in values.items()}


def _options_of(kind: str) -> dict[str, Field]:
    known = KINDS.get(kind)
    return {option.name: option for option in options_of(known.spec)} if known else {}


OPTION_TITLES = {option.name: option.title for kind in KINDS.values() for option in options_of(kind.spec)}
FLEET_TITLES = {"replicas": "Instances", "model": "Model"}


def _setting(path: str, values: Sequence[Any]) -> Setting:
    parameter = PARAMETERS.get(path)
    texts = tuple("–" if value is None else _plain(value) for value in values)
    unit = parameter.unit if parameter and parameter.unit not in BARE else ""
    return Setting(path, parameter.title if parameter else path, unit, texts, len(set(texts)) > 1)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
