"""The stored record of an experiment: everything on which its runs depend, fixed when it starts. Each run adds to its
facts the requests that it played (`load`, `records_sha256`) and, in a replay, its `host` and `nodes`.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from controlplane.evidence.twin.expected_error import ExpectedError
from fleet.engine.tiers.shared import StoreModel

# Measurements of a run other than those of its requests; a field is missing if its mode does not measure it


class TwinFacts(Struct, frozen=True):
    """The origin of the twin's engine models."""

    basis: str
    about: str
    cautions: list[str]
    expected: ExpectedError | None = None  # absent in early facts


class HostFacts(Struct, frozen=True):
    name: str
    system: str
    machine: str
    processor: str
    cpus: int
    load_1m: float
    python: str


class MeanPeak(Struct, frozen=True):
    mean: float
    peak: float


class GpuUseFacts(Struct, frozen=True):
    gpus: dict[str, MeanPeak]  # use by node/number
    absent: dict[str, str]  # reason for missing values by node


class RunFacts(Struct, frozen=True):
    instances: list[str] | UnsetType = UNSET
    # Measured in the twin
    twin: TwinFacts | UnsetType = UNSET
    load: str | UnsetType = UNSET  # hash of the load; runs with the same requests have the same hash
    virtual_s: float | UnsetType = UNSET
    cpu_s: float | UnsetType = UNSET
    kv_usage: dict[str, float] | UnsetType = UNSET  # mean and peak share of the KV blocks; empty without samples
    second_token_ms: float | UnsetType = UNSET  # from twin_records.token_facts, like the next two fields
    interruptions: float | UnsetType = UNSET
    transfers: float | UnsetType = UNSET
    tiers: dict[str, dict[str, float]] | UnsetType = UNSET  # from simulation/tier_facts.py, like the next field
    loading: dict[str, float] | UnsetType = UNSET
    not_modelled: list[str] | UnsetType = UNSET
    outside: list[str] | UnsetType = UNSET  # how the load exceeds the calibration's range
    # Measured in a replay
    context_tokens: int | UnsetType = UNSET
    host: HostFacts | UnsetType = UNSET
    nodes: dict[str, Any] | UnsetType = UNSET  # inventory by node name
    wall_s: float | UnsetType = UNSET
    client_cpu_s: float | UnsetType = UNSET
    sim_lag_p99_s: float | UnsetType | None = UNSET  # wall clock; None if no engine reports it
    machine_busy: float | UnsetType | None = UNSET  # busy share of all CPUs, 0–1
    gpu_use: GpuUseFacts | UnsetType = UNSET
    records_sha256: str | UnsetType = UNSET


def known(value: float | UnsetType | None) -> float | None:
    return None if isinstance(value, UnsetType) else value


class Product(Struct, frozen=True):
    version: str
    commit: str  # empty outside a repository; ends in + if files differ from the commit
    source_sha256: str  # the same for the same code, with or without a repository
    python: str


class RecordedTrace(Struct, frozen=True):
    name: str
    sha256: str


class Selection(Struct, frozen=True):
    """The requests that are played."""

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
    models: list[dict[str, Any]]  # EngineModel, and the kind of its law
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
    # Set only in the twin
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
