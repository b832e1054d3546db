"""Describes a calibration in words: its constants, and each load as measured and as fitted. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.calibration.fit import CalibrationPoint, tpot_s, ttft_s
from fleet.counted import percent
from fleet.engine.law import Law, law_from
from router.contract.values.reading import read_value

API, TOKENIZING = "api_s", "api_s_per_token"  # constants that are not part of the law
OLD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class FittedLoad:
    """One point, in ms; None: not measured."""

    concurrency: int
    prompt_tokens: int
    n: int
    ttft_ms: float | None
    ttft_fitted_ms: float | None
    tpot_ms: float | None
    tpot_fitted_ms: float | None


def changed_since(measured: datetime, measured_hash: str, config_hash: str | None, now: datetime) -> tuple[str, ...]:
    """Return what has changed since the calibration; empty if it is still valid. `config_hash` is that of the
    engine's current settings, None if they are unknown."""
    found = []
    if now - measured > OLD:
        found.append(f"the calibration is {(now - measured).days} days old")
    if config_hash is not None and measured_hash != config_hash:
        found.append("the engine's settings have changed since the calibration")
    return tuple(found)


def describe_constants(constants: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return (name, value) of each constant. Fixed time and reading the weights are one entry, because a sweep can
    hardly separate them."""
    step_ms = (constants["fixed_s"] + constants["weights_s"]) * 1e3
    launch_ms = constants.get("launch_s", 0.0) * 1e3
    launched = [("Least step of a prompt of more than 512 tokens", f"{launch_ms:.3g} ms")] if launch_ms else []
    token_us = (constants["compute_s_per_token"] + constants["allreduce_s_per_token"]) * 1e6
    return [
        ("Before the first step", f"{constants[API] * 1e3:.3g} ms"),
        ("Smallest step", f"{step_ms:.3g} ms"),
        *launched,
        ("Token of a long prompt", f"{token_us:.3g} µs"),
        ("Decoding sequence, per step", f"{constants['decode_s'] * 1e6:.3g} µs"),
        ("Attention of a prompt", f"{constants['attention_s_per_pair'] * 1e9:.3g} ns per pair of tokens"),
        ("Attention of an answer", f"{constants['kv_s_per_token'] * 1e9:.3g} ns per token of context and step"),
    ]


def describe_load(between: Mapping[str, Sequence[int]]) -> list[tuple[str, str]]:
    """Return (name, value) of the load to which a fit to traffic was made, as stored."""
    names = {"in_flight": "Calibrated for requests at once", "new_tokens": "Calibrated for new tokens in a prompt"}
    return [(name, "{:,} to {:,}".format(*between[key])) for key, name in names.items() if key in between]


def describe_held_out(errors: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """Return (name, value) of the errors of a fit to traffic, as stored, without unmeasured ones."""
    names = {
        "ttft_mean": "Held out: mean TTFT",
        "ttft_p99": "Held out: TTFT p99",
        "tpot_mean": "Held out: mean TPOT",
        "e2e_mean": "Held out: mean E2E",
    }
    return [(name, percent(off, "+.1f")) for key, name in names.items() if (off := errors.get(key)) is not None]


def fitted_loads(points: Iterable[object], constants: Mapping[str, float], chunk_tokens: int) -> list[FittedLoad]:
    """Return the loads as measured and as fitted. `points` and `constants` as stored; `chunk_tokens`: the engine's
    max_num_batched_tokens."""
    law = law_from(constants)
    return [_load(read_value(values, CalibrationPoint), law, constants[API], chunk_tokens) for values in points]


def _load(point: CalibrationPoint, law: Law, api_s: float, chunk_tokens: int) -> FittedLoad:
    alone, decoded = point.ttft_s is not None, point.tpot_s is not None
    return FittedLoad(
        concurrency=point.concurrency,
        prompt_tokens=point.prompt_tokens,
        n=point.n,
        ttft_ms=_ms(point.ttft_s),
        ttft_fitted_ms=_ms(ttft_s(point, law, api_s, chunk_tokens)) if alone else None,
        tpot_ms=_ms(point.tpot_s),
        tpot_fitted_ms=_ms(tpot_s(point, law)) if decoded else None,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
