"""An instance that can be measured, and the result of a measurement."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.utils import timezone
from msgspec import to_builtins

from fleet.calibration.fit import fit
from fleet.calibration.limits import EngineLimits
from fleet.calibration.measure import Calibrated
from fleet.calibration.traffic.replayed import ReplayErrors
from fleet.engine.engine_model import LoadRange
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.models import Calibration, Instance, Pool, State
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import config, config_hash
from fleet.tests.calibration.test_fit import CHUNK, points_of

LIMITS = EngineLimits(1024, 32, 128, CHUNK, 16_384)


def instance(**fields: Any) -> Instance:
    pool = Pool.objects.create(name="chat", model="m", kind="vllm", engine={"max_num_seqs": 128})
    values = {"state": State.READY, "url": "http://127.0.0.1:1", "node": "local", "epoch": 1} | fields
    spec = pool_spec(pool)
    return Instance.objects.create(
        pool=pool, name="chat-0", ordinal=0, config=to_builtins(config(spec)), config_hash=config_hash(spec), **values
    )


def measured(notes: tuple[str, ...] = ()) -> Calibrated:
    points = points_of(law_of(profile()), 0.02)
    return Calibrated(points, fit(points, CHUNK), LIMITS, notes)


async def measure_well(*words: Any, **options: Any) -> Calibrated:
    """Replaces fleet.calibration.measure.measure."""
    return measured(("others ran too",))


async def measure_traffic_well(target: Any, receipts: Any, starts: Any, *words: Any) -> Calibrated:
    """Replaces fleet.calibration.measure.measure_traffic."""
    held_out = ReplayErrors(200, 0.08, 0.03, 0.024, -0.051, 0.017, 0.02, 4)
    load_range = LoadRange((1, 24), (90, 12_000))
    notes = (f"{len(receipts)} receipts, {len(starts)} starts",)
    return replace(measured(notes), points=[], held_out=held_out, load_range=load_range, api_s_per_token=1.1e-6)


def age(row: Calibration, **span: float) -> None:
    past = timezone.now() - timedelta(**span)
    Calibration.objects.filter(pk=row.pk).update(asked_at=past, ended_at=row.ended_at and past)
