"""Models an engine by the constants of its calibration, from the calibration's row or its copy in a file. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.calibration.describe import API, TOKENIZING
from fleet.counted import percent
from fleet.engine.engine_model import EngineModel, LoadRange, TransferLink
from fleet.engine.law import law_from
from fleet.engine.neuron_batches import BATCHING_OF_ROLE
from fleet.engine.scheduler import VLLM, Limits
from fleet.kinds.kind import Kind, Launch
from router.contract.values.reading import read_value


class FinishedCalibration(Protocol):
    """The fields of a finished calibration (fleet.models.Calibration) that the twin reads."""

    @property
    def instance(self) -> str: ...
    @property
    def config_hash(self) -> str: ...
    @property
    def asked_at(self) -> datetime: ...
    @property
    def ended_at(self) -> datetime | None: ...
    @property
    def constants(self) -> Mapping[str, float]: ...
    @property
    def limits(self) -> Mapping[str, Any]: ...
    @property
    def ttft_error(self) -> float | None: ...
    @property
    def tpot_error(self) -> float | None: ...
    @property
    def n(self) -> int: ...
    @property
    def held_out(self) -> Mapping[str, Any] | None: ...
    @property
    def load_range(self) -> Mapping[str, Any] | None: ...
    @property
    def notes(self) -> Sequence[str]: ...


def about(row: FinishedCalibration) -> str:
    at = row.ended_at or row.asked_at
    errors = f"error {percent(row.ttft_error)} TTFT, {percent(row.tpot_error)} TPOT, n = {row.n}"
    return f"calibrated on {row.instance} on {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC, {errors}"


def model_of(row: FinishedCalibration, kind: Kind, spec: Any, launch: Launch) -> EngineModel:
    wire, limits = kind.wire(spec, launch), row.limits
    batching = BATCHING_OF_ROLE[wire.role] if kind.whole_prompts else VLLM
    is_async = batching == VLLM and limits.get("async_scheduling", True)
    kv = kind.twin_kv(spec, launch)
    sizes = limits["block_size"], limits["max_num_seqs"], limits["max_num_batched_tokens"]
    return EngineModel(
        law=law_from(row.constants),
        kv_blocks=limits["kv_blocks"],
        limits=Limits(*sizes, batching, async_scheduling=is_async),
        api_s=row.constants[API],
        api_s_per_token=row.constants.get(TOKENIZING, 0.0),  # a sweep measures it as part of the steps
        window=limits["window"],
        kv_events=bool(wire.events),
        role=wire.role,
        connector=wire.connector,
        pair=wire.kv.pair,
        tiers=kv.below(),
        transfers=kv.transfers(wire.connector),
        calibrated=read_value(row.load_range, LoadRange) if row.load_range else None,
    )


def left_out(spec: Any, fleet: TwinFleet) -> tuple[str, ...]:
    """Return the features of engines with these options that the twin omits."""
    engines = fleet.instances.values()
    kv = getattr(spec, "kv", "none")
    if kv == "none":
        kv = next((engine.connector for engine in engines if engine.connector), "none")
    moves = any(engine.transfers or engine.tiers for engine in engines)
    found = {
        f"KV over {kv} is not modelled, the twin computes those tokens: the size of this model's KV is unknown. "
        "Name a folder with its config.json as its model": kv != "none" and not moves,
        "prefix caching is off in the engines and on in the twin": not getattr(spec, "prefix_caching", True),
        "the engines compute a prompt in one step, the twin in chunks": not getattr(spec, "chunked_prefill", True),
    }
    return tuple(text for text, holds in found.items() if holds)


def published(fleet: TwinFleet) -> tuple[str, ...]:
    """Return rates that a calibration does not measure."""
    texts = []
    for engine in fleet.instances.values():
        if engine.transfers is not None:
            texts.append(f"KV moves over {engine.connector} at published rates: {_rates(engine.transfers)}")
        if engine.tiers is not None:
            names = " and ".join(tier.device.name for tier in engine.tiers.tiers)
            texts.append(f"KV below the GPU ({names}) is read and written at published rates")
    return tuple(dict.fromkeys(texts))


def _rates(link: TransferLink) -> str:
    idle, busy = link.idle_bytes_per_s / 1e9, link.busy_bytes_per_s / 1e9
    return f"{idle:g} GB/s" if idle == busy else f"{idle:g} GB/s, {busy:g} while the sender computes"
