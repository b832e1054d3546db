"""Figures of requests, both predicted by a simulation and shown by receipts: the load and, for each class, the share
within the SLO and the latencies. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.evidence.experiments.results.metrics import known, quantile_key, rounded_quantile
from controlplane.evidence.experiments.results.records import LATENCIES, Record, Slo, is_within
from controlplane.evidence.twin.expected_error import ExpectedError

SHARES = (0.5, 0.9)  # quantiles of each latency
WITHIN = "within_slo"
ERRORS = {"ttft": "ttft_mean", "tpot": "tpot", "e2e": "e2e"}  # field of the expected error
UNCLASSED = "none"  # class of requests that were refused before they were classified
QUANTILES_OF = {quantile_key(name, share): (name, share) for name in LATENCIES for share in SHARES}
Range = Mapping[str, float]  # low and high over seeds; least and most with the expected error


def load_of(records: Sequence[Record]) -> dict[str, float]:
    """Return, as far as they are known, requests per second and mean tokens, over at least one request."""
    sent, outputs = [one.sent_s for one in records], [one.output_tokens for one in records if one.output_tokens]
    new = [one.input_tokens - one.cached_tokens for one in records if one.cached_tokens is not None]
    span = max(sent) - min(sent)
    known_ones = {
        "requests_per_s": len(records) / span if span else None,
        "prompt_tokens": sum(one.input_tokens for one in records) / len(records),
        # After the cache, and therefore different for other prompts or hits
        "new_tokens": sum(new) / len(new) if new else None,
        "output_tokens": sum(outputs) / len(outputs) if outputs else None,
    }
    return {name: round(value, 6) for name, value in known_ones.items() if value is not None}


def by_class(records: Iterable[Record]) -> dict[str, list[Record]]:
    found = defaultdict[str, list[Record]](list)
    for one in records:
        found[one.trace_class].append(one)
    return dict(sorted(found.items()))


def within(records: Sequence[Record], slo: Slo) -> list[bool]:
    return [is_within(one, slo) for one in records]


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Figures of one class in one simulation."""

    requests: int
    shares: tuple[float, float, float] | None  # within the SLO: as simulated, if engines are slower, if faster
    quantiles: Mapping[str, float]  # ms


@dataclass(frozen=True, slots=True)
class PlayFigures:
    """What a prediction needs of one simulation: its records would take longer to pass between processes than to
    reduce."""

    load: Mapping[str, float]
    classes: Mapping[str, ClassFigures]


def figures_of(records: Sequence[Record], slo: Slo, expected: ExpectedError) -> PlayFigures:
    errors = errors_of(expected)
    limits = [{name: _eased(given, errors, sign) for name, given in slo.items()} for sign in (0, -1, 1)]
    found = {}
    for name, play in by_class(records).items():
        same, slower, faster = (sum(within(play, each)) / len(play) for each in limits)
        shares = (same, slower, faster) if name in slo or "all" in slo else None
        values = {key: rounded_quantile(known(play, of), share) for key, (of, share) in QUANTILES_OF.items()}
        seen = {key: value for key, value in values.items() if value is not None}
        found[name] = ClassFigures(len(play), shares, seen)
    return PlayFigures(load_of(records), found)


def errors_of(expected: ExpectedError) -> dict[str, float]:
    """Return the expected error by latency; 0 if it is unknown."""
    return {name: expected[field] or 0.0 for name, field in ERRORS.items()}  # type: ignore[literal-required]


def predicted(plays: Sequence[PlayFigures], expected: ExpectedError) -> dict[str, object]:
    """Return the predictions of simulations with several seeds: their load, and figures by class as ranges."""
    loads, names = [play.load for play in plays], sorted({name for play in plays for name in play.classes})
    of_class = {name: [play.classes[name] for play in plays if name in play.classes] for name in names}
    return {
        "load": {name: round(min(one.get(name, value) for one in loads), 6) for name, value in loads[0].items()},
        "classes": {name: _ranges(found, expected) for name, found in of_class.items()},
    }


def _ranges(plays: Sequence[ClassFigures], expected: ExpectedError) -> dict[str, object]:
    errors = errors_of(expected)
    found: dict[str, object] = {"requests": max(play.requests for play in plays)}
    if shares := [play.shares for play in plays if play.shares is not None]:
        same, slower, faster = zip(*shares, strict=True)
        ends = {"low": min(same), "high": max(same), "least": min(slower), "most": max(faster)}
        found[WITHIN] = {name: round(share, 6) for name, share in ends.items()}
    for key, (name, _) in QUANTILES_OF.items():
        if seen := [play.quantiles[key] for play in plays if key in play.quantiles]:
            low, high = min(seen), max(seen)
            least, most = low * (1 - errors[name]), high * (1 + errors[name])
            found[key] = {"low": low, "high": high, "least": round(least, 3), "most": round(most, 3)}
    return found


def _eased(given: Mapping[str, float], errors: Mapping[str, float], sign: int) -> dict[str, float]:
    """Return the limits divided by the factor by which engines may be slower (-1) or faster (1)."""
    return {key: limit / (1 - sign * errors[key.removesuffix("_ms")]) for key, limit in given.items()}
