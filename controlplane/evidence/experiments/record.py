"""The stored record of an experiment: everything that its runs depend on, fixed when it starts.

Each run adds to its facts what it played (`load`, `records_sha256`) and, in a replay, its `host` and `nodes`.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from controlplane.evidence.twin.expected_error import ExpectedError
from fleet.engine.tiers.shared import StoreModel


class Product(Struct, frozen=True):
    version: str
    commit: str  # empty outside a repository; ends in + if files differ from the commit
    source_sha256: str  # equal for equal code, with or without a repository
    python: str


class RecordedTrace(Struct, frozen=True):
    name: str
    sha256: str


class Selection(Struct, frozen=True):
    """The selection of requests that are played."""

    duration_s: float
    load_factor: float
    pacing: str
    seeds: list[int]


class RecordedArm(Struct, frozen=True):
    policy_sha256: str
    policy_schema: int | None
    fleet: str  # key of `fleets`


class RecordedTwin(Struct, frozen=True, kw_only=True):
    """The engine models of a simulated fleet; equal instances share one."""

    basis: str
    about: str
    cautions: list[str]
    expected: ExpectedError | None = None  # absent, like the store, in early records
    models: list[dict[str, Any]]  # EngineModel, and the type of its law
    instances: dict[str, int]  # name → index in `models`
    store: StoreModel | None = None


class RecordedStore(Struct, frozen=True):
    pool: str
    kind: str
    options: dict[str, Any]


class RecordedFleet(Struct, frozen=True):
    """A pool with the changes of an arm."""

    pool: str
    model: str
    policy: str
    kind: str
    replicas: int
    engine: dict[str, Any]  # options as given
    node: str
    placement: dict[str, Any]
    options: dict[str, Any]  # options with the defaults of its kind
    # Set in the twin only
    calibration: Any = UNSET  # CALIBRATED of its row; null if it is not calibrated
    twin: RecordedTwin | UnsetType = UNSET
    store: RecordedStore | UnsetType = UNSET  # store shared by the instances


class Repeated(Struct, frozen=True):
    id: int
    product: Product


class ExperimentRecord(Struct, frozen=True):
    schema: int
    product: Product
    trace: RecordedTrace
    selection: Selection
    arms: dict[str, RecordedArm]
    fleets: dict[str, RecordedFleet]  # fleets by sha256
    repeats: Repeated | None  # experiment whose record was reused


class Expectation(Struct, frozen=True):
    """An expectation as stored; see start.body.ExpectIn."""

    metric: str
    request_class: str = field(name="class")
    arm: str = ""  # empty for every arm
    min: float | None = None
    max: float | None = None
    relative_to: str = ""
    min_ratio: float | None = None
    max_ratio: float | None = None
    confidence: float | None = None
