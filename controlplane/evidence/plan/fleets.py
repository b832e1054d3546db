"""Fleets to simulate, from a document alone, without control plane and database. NotPlayable names the pool, the cause
and the remedy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlplane.evidence.plan.load import least_instances
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin import expected_error
from controlplane.evidence.twin.expected_error import ExpectedError
from controlplane.evidence.twin.pool_engines import fleet_of, models_of
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.engine.engine_model import EngineModel
from fleet.engine.profiles import UnknownProfile
from fleet.engine.tiers.shared import StoreModel
from fleet.kinds import KINDS
from fleet.kinds.kind import hardware_of_pool
from fleet.kinds.options.option import build
from fleet.spec import document
from fleet.spec.fleet_spec import FleetSpec, PoolSpec, parse_fleet
from fleet.systems.prices import Prices
from router.contract.values.problem import InvalidInput

DEFAULT_POOL = PoolSpec("assumed", "llama-3.1-8b", "sim")  # one H100 per instance
MOST_BUSY = 0.5  # busy share of an instance of the assumed fleet, by closed forms
FEWEST_ASSUMED, MOST_ASSUMED = 2, 64  # limits of the assumed fleet; with one instance there would be nothing to route


class NotPlayable(InvalidInput):
    """A question that cannot be simulated."""


@dataclass(frozen=True, slots=True)
class PlayedFleet:
    pool: PoolSpec
    twin: TwinFleet
    about: str  # source of the constants, in one line
    cautions: tuple[str, ...]
    expected: ExpectedError
    gpus: int
    per_hour: float | None  # dollars; None without GPUs
    assumed: str = ""  # assumptions made because the input does not state them

    @property
    def ttft_limits_ms(self) -> dict[str, float]:
        """Return the TTFT p90 by class, from the pool's SLO."""
        limits: Any = self.pool.slo.get("ttft_p90_ms", {})
        return dict(limits)


def of_text(text: str, name: str = "") -> PlayedFleet:
    """Return the pool of that name in a fleet document, or its only serving pool. Raise NotPlayable,
    UnreadableDocument, InvalidFleet."""
    return played(*pool_of(text, name))


def pool_of(text: str, name: str = "") -> tuple[PoolSpec, FleetSpec]:
    """Return the pool as `of_text` does, and the document. Raise NotPlayable, UnreadableDocument, InvalidFleet."""
    spec = parse_fleet(document.load(text))
    serving = {pool.name: pool for pool in spec.pools if KINDS[pool.kind].serves}
    if name and name not in serving:
        raise NotPlayable(f"pool: {name} (one of: {', '.join(serving) or 'none serves requests'})")
    if not name and len(serving) != 1:
        raise NotPlayable(f"the document has {len(serving)} pools that serve: name one of {', '.join(serving)}")
    return serving[name or next(iter(serving))], spec


def played(pool: PoolSpec, spec: FleetSpec) -> PlayedFleet:
    """Return the engines of a pool of the document. Raise NotPlayable."""
    if not pool.replicas:
        raise NotPlayable(f"pool {pool.name}: replicas is 0 (1 or more)")
    try:
        models = models_of(pool, range(pool.replicas))
    except UnknownProfile as error:
        raise NotPlayable(f"pool {pool.name}: {error}") from None
    if not models:
        raise NotPlayable(
            f"pool {pool.name}: nothing is known of engines of the kind {pool.kind} with these options without a "
            "calibration; describe the same GPUs and model as a pool of the kind sim"
        )
    engines = [model.engine for model in models.values()]
    first = next(iter(models.values()))
    twin = replace(
        fleet_of(pool, {at: model.engine for at, model in models.items()}), store=_store(pool, spec, engines)
    )
    basis: expected_error.Basis = "transferred" if any(one.transferred for one in models.values()) else "profile"
    kind = KINDS[pool.kind]
    hardware = hardware_of_pool(kind, build(kind.spec, pool.engine), twin.instances)
    prices = build(Prices, spec.prices)
    return PlayedFleet(
        pool,
        twin,
        first.source,
        (*first.not_modelled, *expected_error.cautions(engines, first.family)),
        expected_error.of_built_in(basis, first.family),
        hardware.gpus,
        prices.per_hour(hardware.gpus, hardware.dram_gb, hardware.ssd_gb) if hardware.gpus else None,
    )


def _store(pool: PoolSpec, spec: FleetSpec, engines: Sequence[EngineModel]) -> StoreModel | None:
    """Return the store that its instances share, as in the document."""
    kind, transfers = KINDS[pool.kind], engines[0].transfers
    needed = kind.needs(build(kind.spec, pool.engine))
    for other in spec.pools:
        twin_store = KINDS[other.kind].twin_store
        if other.name in needed and twin_store is not None and transfers is not None:
            one = twin_store(build(KINDS[other.kind].spec, other.engine), transfers.bytes_per_token)
            return replace(one, capacity_bytes=one.capacity_bytes * other.replicas)
    return None


def assumed_for(requests: Sequence[TraceRequest]) -> PlayedFleet:
    """Return a fleet for requests that were given without one: H100s with Llama-3.1-8B, at most half busy by closed
    forms."""
    engine = models_of(DEFAULT_POOL, [0])[0].engine
    replicas = min(MOST_ASSUMED, max(FEWEST_ASSUMED, least_instances(engine, requests, MOST_BUSY)))
    pool = replace(DEFAULT_POOL, replicas=replicas)
    assumed = (
        f"No fleet was given. Assumed: {replicas} H100 with Llama-3.1-8B each, the fewest (from {FEWEST_ASSUMED}) "
        f"whose arithmetic for these requests takes at most {MOST_BUSY:.0%} of the time."
    )
    return replace(played(pool, FleetSpec("assumed", (pool,))), assumed=assumed)
