"""The twin of an engine that was calibrated over REST, under the same load as the engine."""

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.pool_model import Modelled, twin_of
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import TwinFleet
from controlplane.tests.engines.fleet import Fleet
from controlplane.tests.engines.load import Means, means
from fleet.models import Calibration, Pool
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import config_hash
from router.policy.schema import document


def calibrated(fleet: Fleet, name: str, seconds: float) -> Modelled:
    """A calibration by the fleet's own worker; its row is read over REST and stored here."""
    before = len(fleet.rest("GET", f"/instances/{name}/events")[0])
    row = fleet.calibrated(name, seconds)
    assert row["status"] == "done", row["cause"]
    assert len(fleet.rest("GET", f"/instances/{name}/events")[0]) > before
    given = fleet.rest("GET", f"/pools/{row['pool']}")[0]
    pool = Pool.objects.create(**{key: given[key] for key in ("name", "model", "kind", "replicas", "engine")})
    assert row["config_hash"] == config_hash(pool_spec(pool))
    fields = {field.attname for field in Calibration._meta.fields} - {"id"}
    Calibration.objects.create(**{key: value for key, value in row.items() if key in fields and value is not None})
    return twin_of(pool)


def predicted(modelled: Modelled, name: str, load: list[TraceRequest]) -> Means:
    """Return predictions for this instance alone, without the rest of its pool."""
    policy = document.parse(document.default("round_robin"))
    alone = TwinFleet({name: modelled.fleet.instances[name]})
    requests = simulate(alone, policy, load, pacing="timestamps", seed=1).requests
    assert all(one.outcome == "ok" for one in requests)
    return means((one.ttft_s or 0.0, one.tpot_s or 0.0, one.output_tokens) for one in requests)
