"""A published system as a page: its parameters, its model and what the model answers. Pure.

Each file beside this one defines one `System`; `SYSTEMS` in `controlplane/evidence/systems/registry.py` lists it. The
models are in `fleet/systems/`: a file here only chooses what is asked and how the answer is shown.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

from fleet.systems.basis import Basis
from router.contract.json_value import JsonObject
from router.contract.problem import Problem

Value = float | int | str | None  # value of a cell; None: unknown
Preset = Mapping[str, Value]  # the inputs that differ from the defaults


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    value: Value
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    unit: str = ""
    log: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    x: tuple[Value, ...]
    y: tuple[float | None, ...]  # None: a gap in the line
    dashed: bool = False  # a limit or a reference


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]  # up to six: more have no colour of their own
    kind: Literal["line", "bars", "stacked"] = "line"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    href: str


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool of the fleet, as far as a system asks."""

    name: str
    kind: str
    model: str
    engine: Mapping[str, Any]  # options as given


@dataclass(frozen=True, slots=True)
class Play:
    """An experiment that follows from the inputs, and that the page starts."""

    title: str
    pool: str
    body: JsonObject  # body for `POST /api/v1/experiments`


@dataclass(frozen=True, slots=True)
class Playable:
    """The experiments that follow from the inputs."""

    title: str
    plays: Callable[[Any, Sequence[PoolFacts]], Iterable[Play]]
    needs: str  # why none can be started, where there is none


def experiment_link(title: str, body: Mapping[str, Any]) -> Link:
    """To the form of an experiment, filled with a body of `POST /api/v1/experiments`; the pool may be left out."""
    return Link(f"Experiment: {title}", f"/experiments/new?{urlencode({'body': json.dumps(body)})}")


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: str  # one sentence: what these inputs lead to
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    cautions: tuple[str, ...] = ()  # why not to rely on it
    links: tuple[Link, ...] = ()  # what to try next with these inputs


@dataclass(frozen=True, slots=True)
class Figure:
    """A published value beside the model's, each in the publication's own set-up."""

    name: str
    published: float | None  # None: the publication has no number
    ours: float
    unit: str
    basis: Basis
    source: str
    note: str = ""

    @property
    def error(self) -> float | None:
        """0.1: ours is 10 % above the published value."""
        return self.ours / self.published - 1 if self.published else None

    @property
    def fitted(self) -> bool:
        return self.basis == "fitted"


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs that stand together in the form."""

    title: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class System:
    slug: str
    title: str
    summary: str  # one or two sentences: what the system is, and what the page answers
    inputs: type  # a frozen dataclass whose fields are `option()`s with both limits
    presets: Mapping[str, Preset]  # by title
    compute: Callable[[Any], Answer]  # at most about 2 s of CPU within the limits of the inputs and its rules
    figures: Callable[[], tuple[Figure, ...]] = tuple  # asked for apart from the answer: may take some seconds
    groups: tuple[Group, ...] = ()  # inputs in no group come first
    rules: Callable[[Any], list[Problem]] = field(default=lambda _: [])  # rules between inputs that are valid alone
    notes: tuple[str, ...] = ()  # what does not agree in the sources
    links: tuple[Link, ...] = ()
    playable: Playable | None = None
    beside: bool = True  # computed in a process beside the web's; not when it is short, or reads the database
