"""A published system as a page: its parameters, its model and the model's answers. Pure. Each file in this folder
defines one `System`, which `SYSTEMS` in `controlplane/evidence/systems/registry.py` lists. The models are in
`fleet/systems/`; a file here only selects the inputs and the presentation of the answer.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from controlplane.common.description import ALWAYS_SENT, Description
from fleet.systems.basis import Basis
from router.contract.values.problem import Problem

Value = float | int | str | None  # value of a cell; None is unknown
Preset = Mapping[str, Value]  # inputs that differ from the defaults


@dataclass(frozen=True, slots=True)
class Fact:
    __pydantic_config__ = ALWAYS_SENT

    label: str
    value: Value
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    __pydantic_config__ = ALWAYS_SENT

    title: str
    unit: str = ""
    log: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    __pydantic_config__ = ALWAYS_SENT

    name: str
    x: tuple[Value, ...]
    y: tuple[float | None, ...]  # None is a gap in the line
    dashed: bool = False  # True for a limit or a reference


@dataclass(frozen=True, slots=True)
class Chart:
    __pydantic_config__ = ALWAYS_SENT

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]  # up to six; there are no colours for more
    kind: Literal["line", "bars", "stacked"] = "line"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    __pydantic_config__ = ALWAYS_SENT

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
    """A pool of the fleet, with the facts that a system needs."""

    name: str
    kind: str
    model: str
    engine: Mapping[str, Any]  # options as given


@dataclass(frozen=True, slots=True)
class Play:
    """An experiment that follows from the inputs, which the page can start."""

    title: str
    pool: str
    body: Annotated[dict[str, Any], Description("For `POST /experiments`")]


@dataclass(frozen=True, slots=True)
class Playable:
    """The experiments that follow from the inputs."""

    title: str
    plays: Callable[[Any, Sequence[PoolFacts]], Iterable[Play]]
    needs: str  # why no experiment can be started; empty if one can


def experiment_link(title: str, body: Mapping[str, Any]) -> Link:
    """Return a link to an experiment's form, filled with a body of `POST /api/v1/experiments`; the pool may be
    omitted."""
    return Link(f"Experiment: {title}", f"/experiments/new?{urlencode({'body': json.dumps(body)})}")


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: str  # one sentence on the result for these inputs
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    cautions: tuple[str, ...] = ()  # reasons not to rely on it
    links: tuple[Link, ...] = ()  # further steps with these inputs


@dataclass(frozen=True, slots=True)
class Figure:
    """A published value beside the model's, each in the publication's own setup."""

    name: str
    published: float | None  # None if the publication has no number
    ours: float
    unit: str
    basis: Basis
    source: str
    note: str = ""

    @property
    def error(self) -> float | None:
        """Return the relative error; 0.1 if the model is 10 % above the published value."""
        return self.ours / self.published - 1 if self.published else None

    @property
    def fitted(self) -> bool:
        return self.basis == "fitted"


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs shown together in the form."""

    title: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class System:
    slug: str
    title: str
    summary: str  # two sentences: the system, and the question that the page answers
    inputs: type  # a frozen dataclass whose fields are `option()`s with both limits
    presets: Mapping[str, Preset]  # presets by title
    compute: Callable[[Any], Answer]  # takes at most about 2 s of CPU time for allowed inputs
    # Loaded separately from the answer, because it may take some seconds
    figures: Callable[[], tuple[Figure, ...]] = tuple
    groups: tuple[Group, ...] = ()  # inputs without a group come first
    # Rules between inputs that are valid by themselves
    rules: Callable[[Any], list[Problem]] = field(default=lambda _: [])
    notes: tuple[str, ...] = ()  # contradictions in the sources
    links: tuple[Link, ...] = ()
    playable: Playable | None = None
    beside: bool = True  # True to compute it in another process; False if it is short or reads the database

    @property
    def question(self) -> str:
        return self.summary.rpartition(". ")[2]

    @property
    def about(self) -> str:
        return self.summary.removesuffix(self.question).strip()
