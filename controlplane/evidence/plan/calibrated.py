"""The engines of a calibrated pool, for a plan that scales them: from the pool's model, or from a fleet document and a
calibration in REST's format. Pure."""

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from datetime import datetime
from typing import Annotated

import msgspec
from typing_extensions import TypedDict

from controlplane.evidence.plan.fleets import NotPlayable
from controlplane.evidence.plan.question import MeasuredEngines
from controlplane.evidence.twin import expected_error
from controlplane.evidence.twin.expected_error import ExpectedError
from controlplane.evidence.twin.measured_engine import about, left_out, model_of, published
from controlplane.evidence.twin.pool_engines import fleet_of, launch_of
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.calibration.describe import API, changed_since
from fleet.engine.law import Law
from fleet.kinds import KINDS
from fleet.kinds.kind import hardware_of
from fleet.kinds.options.option import build
from fleet.spec.fleet_spec import PoolSpec, config_hash
from router.contract.values.reading import read_json

CONSTANTS = {API, *(one.name for one in fields(Law) if one.default is MISSING)}
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Aware = Annotated[datetime, msgspec.Meta(tz=True)]


class FiledLimits(TypedDict, total=False):
    kv_blocks: Count
    block_size: Count
    max_num_seqs: Count
    max_num_batched_tokens: Count
    window: Count
    async_scheduling: bool


LIMITS = FiledLimits.__annotations__.keys() - {"async_scheduling"}


class FiledLoad(TypedDict):
    in_flight: tuple[int, int]
    new_tokens: tuple[int, int]


class FiledCalibration(msgspec.Struct, frozen=True):
    """A finished calibration in REST's format."""

    instance: str
    kind: str
    model: str
    config_hash: str
    asked_at: Aware
    ended_at: Aware | None
    constants: dict[str, Seconds]
    limits: FiledLimits
    ttft_error: float | None
    tpot_error: float | None
    n: int
    held_out: dict[str, float | None] | None
    load_range: FiledLoad | None
    notes: list[str]


class _CalibrationAnswer(msgspec.Struct, frozen=True):
    measured: FiledCalibration | None


def engines_of_file(text: str, pool: PoolSpec, now: datetime) -> MeasuredEngines:
    """Return the engines of the pool, given the answer of GET /api/v1/instances/{name}/calibration. Raise
    NotPlayable."""
    row, kind = _read(text), KINDS[pool.kind]
    for name, measured, here in (("kind", row.kind, pool.kind), ("model", row.model, pool.model)):
        if measured != here:
            raise NotPlayable(f"--calibration: {name} {measured} (pool {pool.name} has {here})")
    if kind.simulated:
        raise NotPlayable(
            f"--calibration: pool {pool.name} has the kind {pool.kind} (only engines, not simulated ones)"
        )
    spec = build(kind.spec, pool.engine)
    launches = {ordinal: launch_of(pool, kind, ordinal) for ordinal in range(max(1, pool.replicas))}
    if kind.needs(spec) or any(kind.twin_kv(spec, launch).store_bytes for launch in launches.values()):
        raise NotPlayable(f"--fleet: pool {pool.name}: its instances share a store (equal instances without one)")
    fleet = fleet_of(pool, {ordinal: model_of(row, kind, spec, launch) for ordinal, launch in launches.items()})
    cautions = (
        *changed_since(row.ended_at or row.asked_at, row.config_hash, config_hash(pool), now),
        *row.notes,
        *left_out(spec, fleet),
        *published(fleet),
        *expected_error.cautions([*fleet.instances.values()]),
    )
    return engines_alike(pool, fleet, about(row), cautions, expected_error.of_calibration(row))


def engines_alike(
    pool: PoolSpec, fleet: TwinFleet, about: str, cautions: Sequence[str], expected: ExpectedError
) -> MeasuredEngines:
    """Return the engines of a pool's fleet; a plan may use any number of them. Raise NotPlayable."""
    alike = {replace(one, together="") for one in fleet.instances.values()}
    engine = alike.pop()
    if alike or engine.role != "both" or fleet.store is not None:
        raise NotPlayable(f"pool {pool.name}: its instances differ, or share a store")
    kind = KINDS[pool.kind]
    gpus = hardware_of(kind, build(kind.spec, pool.engine), "both").gpus
    one = PoolSpec(pool.name, pool.model, pool.kind, 1, engine=pool.engine)
    return MeasuredEngines(one, config_hash(pool), engine, max(1, gpus), about, tuple(cautions), expected)


def _read(text: str) -> FiledCalibration:
    try:
        row = read_json(text, _CalibrationAnswer).measured
    except msgspec.DecodeError as error:
        raise NotPlayable(
            f"--calibration: {error} (the answer of GET /api/v1/instances/NAME/calibration, as JSON)"
        ) from None
    if row is None:
        raise NotPlayable("--calibration: measured is null (a finished calibration)")
    for name, needed, given in (("constants", CONSTANTS, row.constants), ("limits", LIMITS, row.limits)):
        if missing := sorted({*needed} - {*given}):
            raise NotPlayable(f"--calibration: measured.{name} lacks {', '.join(missing)}")
    return row
