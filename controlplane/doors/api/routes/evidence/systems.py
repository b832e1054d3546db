"""Published systems over REST: the list with their inputs, and the answer to some inputs."""

from dataclasses import replace
from typing import Any

from django.http import HttpRequest
from msgspec import to_builtins
from ninja import Field, Router, Schema

from controlplane.doors.api.auth import needs
from controlplane.doors.api.problems import ApiProblem
from controlplane.doors.api.unread import Body
from controlplane.evidence.systems.registry import SYSTEMS, ask, figures, plays
from controlplane.evidence.systems.system import Chart, Fact, Link, Play, System, Table, Value
from fleet.kinds.options.option import options_of
from fleet.systems.basis import Basis
from router.contract.values import fields
from router.contract.values.problem import InvalidInput

router = Router(tags=["systems"])


class SystemInputOut(Schema):
    name: str
    title: str
    kind: str = Field(description="int, float, bool or text")
    unit: str
    default: Value | bool
    minimum: float | None
    maximum: float | None
    choices: list[str]
    help: str


class SystemOut(Schema):
    slug: str
    title: str
    summary: str
    inputs: list[SystemInputOut]
    presets: dict[str, dict[str, Any]] = Field(description="Title to the inputs that differ from the defaults")

    @staticmethod
    def resolve_inputs(system: System) -> tuple[fields.Field, ...]:
        return options_of(system.inputs)


class SystemFigureOut(Schema):
    name: str
    published: float | None
    ours: float
    unit: str
    error: float | None = Field(description="Relative difference; 0.1: ours is 10 % above the published value")
    fitted: bool = Field(description="`basis` is fitted")
    basis: Basis = Field(
        description="fitted: a parameter was solved from this value or chosen knowing it; arithmetic: it follows from "
        "other numbers of its source; predicted: only here does agreement say anything"
    )
    source: str
    note: str


class SystemAnswerOut(Schema):
    verdict: str
    facts: list[Fact]
    charts: list[Chart]
    tables: list[Table]
    cautions: list[str] = Field(description="Caveats; empty if there are none")
    links: list[Link] = Field(description="Pages that continue with these inputs")
    plays: list[Play] = Field(description="Experiments with these inputs on pools of the fleet")


class SystemFiguresOut(Schema):
    figures: list[SystemFigureOut]
    notes: list[str] = Field(description="Where the sources disagree")


class SystemInputs(Body):
    inputs: dict[str, Any] = Field(
        {}, description="By name, as `GET /systems` lists them; missing ones take their defaults"
    )


@router.get("", response=list[SystemOut], auth=needs("experiments:read"))
def list_systems(request: HttpRequest) -> Any:
    """Published systems with their inputs and presets"""
    return SYSTEMS.values()


@router.post("/{slug}", response=SystemAnswerOut, auth=needs("experiments:read"))
def ask_system(request: HttpRequest, slug: str, payload: SystemInputs) -> Any:
    """Compute what a system gives with these inputs; nothing is stored or started"""
    try:
        chosen = _find(slug)
        answer = ask(chosen, payload.inputs)
        return to_builtins(answer) | {"plays": to_builtins(plays(chosen, payload.inputs))}
    except InvalidInput as error:
        problems = [replace(each, path=f"inputs.{each.path}") for each in error.problems]
        raise ApiProblem(422, detail="some inputs are not valid", errors=problems) from None


@router.get("/{slug}/figures", response=SystemFiguresOut, auth=needs("experiments:read"))
def get_system_figures(request: HttpRequest, slug: str) -> Any:
    """Published values beside the model's, each in the publication's own set-up"""
    return {"figures": figures(_find(slug).slug), "notes": SYSTEMS[slug].notes}


def _find(slug: str) -> System:
    if slug not in SYSTEMS:
        raise ApiProblem(404, detail=f"no system is named {slug}; there are {', '.join(SYSTEMS)}")
    return SYSTEMS[slug]
