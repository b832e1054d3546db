"""The stored measurements of a run besides its requests; fields that its mode does not measure are missing."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from controlplane.evidence.twin.expected_error import ExpectedError


class TwinFacts(Struct, frozen=True):
    """The source of the engine models of the twin."""

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
    load: str | UnsetType = UNSET  # hash of the load, equal for runs of the same requests
    virtual_s: float | UnsetType = UNSET
    cpu_s: float | UnsetType = UNSET
    kv_usage: dict[str, float] | UnsetType = UNSET  # mean and peak share of the KV blocks; empty without samples
    second_token_ms: float | UnsetType = UNSET  # This field and the next two are twin_records.token_facts.
    interruptions: float | UnsetType = UNSET
    transfers: float | UnsetType = UNSET
    tiers: dict[str, dict[str, float]] | UnsetType = UNSET  # This field and the next are simulation/tier_facts.py's.
    loading: dict[str, float] | UnsetType = UNSET
    not_modelled: list[str] | UnsetType = UNSET
    outside: list[str] | UnsetType = UNSET  # loads outside the calibration's range
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
