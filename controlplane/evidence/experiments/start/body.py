"""The request that starts an experiment, defined once for the API, the form and the documentation."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from controlplane.evidence.experiments.modes import MODES
from fleet.spec.sections import MAX_REPLICAS
from router.contract.values import fields
from router.contract.values.problem import Problem

ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@=,-]{0,59}")
SEED_MAX = 2**31 - 1
ARMS_MAX = 6  # arms that can be distinguished in a chart


def checked(field: fields.Field) -> BeforeValidator:
    def check(value: Any) -> Any:
        found = fields.accept(field, value)
        if isinstance(found, Problem):
            raise ValueError(f"allowed is {field.allowed}")
        return found

    return BeforeValidator(check)


def limits(field: fields.Field) -> Any:
    return Field(json_schema_extra={"minimum": field.range[0], "maximum": field.range[1]})


def without_fraction(value: Any) -> Any:
    """Return whole numbers without a fraction: 600, not 600.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def number(low: float, high: float, kind: str = "float") -> fields.Field:
    return fields.Field(name="", kind=kind, range=(low, high))


FACTOR, DURATION, TIME_SCALE = number(0.05, 20), number(1, 86_400), number(0.1, 100)
SEED, REPLICAS = number(0, SEED_MAX, "int"), number(1, MAX_REPLICAS, "int")
RATIO, CONFIDENCE, MILLISECONDS = number(0.01, 100), number(0.5, 0.9999), number(0.001, 86_400_000)

Factor = Annotated[float, checked(FACTOR), limits(FACTOR)]
Duration = Annotated[float, checked(DURATION), limits(DURATION)]
TimeScale = Annotated[float, checked(TIME_SCALE), limits(TIME_SCALE)]
Seed = Annotated[int, checked(SEED), limits(SEED)]
Replicas = Annotated[int, checked(REPLICAS), limits(REPLICAS)]
Ratio = Annotated[float, checked(RATIO), limits(RATIO)]
Confidence = Annotated[float, checked(CONFIDENCE), limits(CONFIDENCE)]
Milliseconds = Annotated[float, checked(MILLISECONDS), limits(MILLISECONDS)]


def _once(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("each seed may occur once")
    return seeds


Seeds = Annotated[list[Seed], AfterValidator(_once)]


def _known_mode(name: Any) -> Any:
    if name not in MODES:
        raise ValueError(f"allowed are {', '.join(MODES)}")
    return name


ModeName = Annotated[str, BeforeValidator(_known_mode), Field(json_schema_extra={"enum": list(MODES)})]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FleetIn(Strict):
    """Changes of the pool for one arm."""

    replicas: Replicas | None = Field(None, description="Number of instances. Default: as many as the pool runs")
    engine: dict[str, Any] = Field(
        {}, description="Options of its kind; null: the default again", examples=[{"kv_gb_per_s": 40}]
    )
    store: dict[str, Any] = Field(
        {},
        description="Options of the store that its instances share, in the twin only; null: the default again",
        examples=[{"gb_per_s": 40}],
    )


class ArmIn(Strict):
    """A policy under test: a published version or a strategy's default document, with changes."""

    name: str = Field("", max_length=60, description="Default: made from the other fields")
    policy: str = Field(
        "", max_length=63, description="A policy; its live version without `version`. Default: the policy of the pool"
    )
    version: int | None = Field(None, ge=1, le=SEED_MAX)
    strategy: str = Field("", max_length=60, description="A strategy's default document, instead of a policy")
    overrides: dict[str, Any] = Field({}, examples=[{"classes.heavy_new_tokens": 10000}])
    fleet: FleetIn | None = Field(None, description="Default: the pool as it is")


class ExpectIn(Strict):
    """An assertion; it is a test case of the JUnit report."""

    metric: str = Field(max_length=40, examples=["ttft_p90_ms"])
    request_class: Literal["all", "warm", "medium", "heavy"] = Field("all", alias="class")
    arm: str = Field("", max_length=60, description="Default: every arm")
    min: float | None = None
    max: float | None = None
    relative_to: str = Field("", max_length=60, description="Baseline: the limits are ratios to the value of this arm")
    min_ratio: Ratio | None = None
    max_ratio: Ratio | None = Field(None, examples=[1.05])
    confidence: Confidence | None = Field(
        None,
        description="Judge the interval that holds the value with this probability. Default: 0.95 with `relative_to`; "
        "without it the value alone",
    )


def _kind_of(item: Any) -> str:
    return TEXT if isinstance(item, str) else OBJECT


TEXT, OBJECT = "|text", "|object"  # handlers.py omits path segments that begin with a bar
OneArm = Annotated[Annotated[str, Tag(TEXT)] | Annotated[ArmIn, Tag(OBJECT)], Discriminator(_kind_of)]


class SloIn(Strict):
    """Limits of a class, in ms. An answer within all of them counts as goodput."""

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> "SloIn":
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("needs ttft_ms, tpot_ms or e2e_ms")
        return self


Slo = dict[Literal["all", "warm", "medium", "heavy"], SloIn]
Pacing = Literal["auto", "timestamps", "closed_loop"]


def _plain(text: str) -> str:
    if any(ord(c) < 32 and c not in "\n\r\t" for c in text):
        raise ValueError("no control characters")
    return text.strip()


Text = Annotated[str, AfterValidator(_plain)]


class ExperimentIn(Strict):
    """An experiment: the same load for each arm."""

    name: Text = Field(min_length=1, max_length=120, examples=["A vs B"])
    question: Text = Field("", max_length=2_000, description="The question that the experiment should answer")
    trace: str = Field(min_length=1, max_length=100, examples=["agentic-demo"])
    pool: str = Field(
        min_length=1,
        max_length=63,
        examples=["demo"],
        description="Each run starts a pool like this one, or simulates it",
    )
    mode: ModeName = Field(
        "replay",
        description="replay: requests over HTTP to a new pool; twin: a simulation of the pool in virtual time",
    )
    pacing: Pacing = Field("auto", description="auto: closed loop for traces of sessions, timestamps for the others")
    duration_s: Duration = Field(600.0, description="Window from the start of the trace, in its time")
    time_scale: TimeScale = Field(
        1.0, description="Factor by which engines and trace run faster; sim pools only, and 1 in the twin"
    )
    load_factor: Factor = Field(1.0, description="Factor on the rate of arrivals")
    seeds: Seeds = Field([1], min_length=1, max_length=20)
    arms: list[OneArm] = Field(
        min_length=1,
        max_length=ARMS_MAX,
        description="A strategy or policy@version, each followed by key=value words, or an object",
        examples=[["round_robin", "cache_aware", "adaptive_v1"]],
    )
    expect: list[ExpectIn] = Field([], max_length=50)
    slo: Slo = Field(
        {},
        description="Class → limits in ms; `all` is for classes without their own",
        examples=[{"all": {"ttft_ms": 2000, "tpot_ms": 50}}],
    )
