"""Figures of requests, both predicted by a simulation and shown by receipts: the load and, for each class, the share
within the SLO and the latencies. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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


def predicted(plays: Sequence[Sequence[Record]], slo: Slo, expected: ExpectedError) -> dict[str, object]:
    """Return the predictions of simulations with several seeds: their load, and figures by class as ranges."""
    classes = [by_class(play) for play in plays]
    names = sorted({name for one in classes for name in one})
    loads = [load_of(play) for play in plays]
    return {
        "load": {name: round(min(one.get(name, value) for one in loads), 6) for name, value in loads[0].items()},
        "classes": {name: _of_class([one[name] for one in classes if name in one], slo, expected) for name in names},
    }


def _of_class(plays: Sequence[Sequence[Record]], slo: Slo, expected: ExpectedError) -> dict[str, object]:
    errors = {name: expected[field] or 0.0 for name, field in ERRORS.items()}  # type: ignore[literal-required]
    found: dict[str, object] = {"requests": max(map(len, plays))}
    if plays[0][0].trace_class in slo or "all" in slo:
        found[WITHIN] = _shares(plays, slo, errors)
    for key, (name, share) in QUANTILES_OF.items():
        values = [rounded_quantile(known(play, name), share) for play in plays]
        if seen := [value for value in values if value is not None]:
            low, high = min(seen), max(seen)
            ends = low * (1 - errors[name]), high * (1 + errors[name])
            found[key] = {"low": low, "high": high, "least": round(ends[0], 3), "most": round(ends[1], 3)}
    return found


def _shares(plays: Sequence[Sequence[Record]], slo: Slo, errors: Mapping[str, float]) -> Range:
    def shares(sign: int) -> list[float]:
        limits = {name: _eased(given, errors, sign) for name, given in slo.items()}
        return [sum(within(play, limits)) / len(play) for play in plays]

    same, slower, faster = shares(0), shares(-1), shares(1)
    ends = {"low": min(same), "high": max(same), "least": min(slower), "most": max(faster)}
    return {name: round(share, 6) for name, share in ends.items()}


def _eased(given: Mapping[str, float], errors: Mapping[str, float], sign: int) -> dict[str, float]:
    """Return the limits divided by the factor by which engines may be slower (-1) or faster (1)."""
    return {key: limit / (1 - sign * errors[key.removesuffix("_ms")]) for key, limit in given.items()}
