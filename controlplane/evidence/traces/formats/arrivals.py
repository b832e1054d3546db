"""Arrival times of a file's requests: units of numbers, epochs, dates, buckets, and whether the result is plausible.
Seconds and milliseconds look the same, so a file that would give an implausible load is refused instead of played.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from controlplane.evidence.traces.formats import fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
EPOCH_S, EPOCH_END_S = 1e9, 1e10  # seconds since 1970 of the years 2001 to 2286
LATEST = 1e19  # largest number in a file
BUCKET_S = 3.0
TELLING = 50  # number of requests from which a rate is meaningful
MOST_PER_S = 200.0  # mean requests
MOST_TOKENS_PER_S = 1e6  # mean prompt tokens
SHORT_S = 60.0  # duration below which fractions of a millisecond may be seconds
SAY_SO = 'a first line {"time_unit": "s"} (or ms, us, ns) says which it is'


def epoch_unit(number: float) -> str:
    """Return the unit of a time since 1970, judged by its size; empty if it cannot be such a time."""
    return next((unit for unit, per in PER_SECOND.items() if EPOCH_S * per <= number < EPOCH_END_S * per), "")


def moment(row: fields.TraceLine, field: str) -> float:
    """Return Unix seconds of a date and time, or of a number in any unit since 1970."""
    value = row.present(field)
    if isinstance(value, str) and not (fields.DECIMAL.fullmatch(value.strip()) and epoch_unit(float(value))):
        try:
            date = datetime.fromisoformat(value.strip().removesuffix(" UTC"))
        except ValueError:
            raise row.refused(field, value, "a date and time as 2023-11-16T18:17:03.979Z, or Unix seconds") from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    number = row.number(field, LATEST)
    unit = epoch_unit(number)
    if not unit:
        raise row.refused(field, value, "a date and time, or a number since 1970 in s, ms, us or ns")
    return number / PER_SECOND[unit]


def loaded(
    name: str, requests: Sequence[TraceRequest], columns: Columns, *, pacing: str = "timestamps", left_out: int = 0
) -> LoadedTrace:
    """Return the requests in order of arrival, as a trace that starts at 0 s."""
    ordered = sorted(requests, key=lambda request: request.at_s)
    start = ordered[0].at_s if ordered else 0.0
    if ordered and ordered[-1].at_s - start > fields.MAX_TIME_S:
        raise BadTrace(0, "timestamp", f"{ordered[-1].at_s - start:,.0f} s", f"at most {fields.MAX_TIME_S:,.0f} s")
    made = tuple(replace(request, index=i, at_s=request.at_s - start) for i, request in enumerate(ordered))
    return LoadedTrace(name, made, pacing, columns.ignored(), left_out)


def in_seconds(
    requests: Sequence[TraceRequest], field: str, documented: str, slowest_s: float, stated: str = ""
) -> list[TraceRequest]:
    """Convert times of a file to seconds: by the unit that it states, by their size, or by the file's format. Raise
    BadTrace."""
    known = stated or epoch_unit(min((request.at_s for request in requests), default=0.0))
    unit = known or documented
    per_second = PER_SECOND[unit]
    if not known:
        check_fractions([request.at_s for request in requests], field, unit)
    made = [replace(one, at_s=one.at_s / per_second, think_s=one.think_s / per_second) for one in requests]
    check_fast(made, field, unit)
    if not known:
        check_slow(made, field, unit, slowest_s)
    return made


def check_fast(requests: Sequence[TraceRequest], field: str, unit: str) -> None:
    """Refuse more load than any fleet gets, because the times must be in a larger unit."""
    span, tokens = _span_s(requests), sum(request.input_tokens for request in requests)
    if len(requests) < TELLING or not span:
        return
    if len(requests) > MOST_PER_S * span or tokens > MOST_TOKENS_PER_S * span:
        got = f"{len(requests) / span:,.0f} requests and {tokens / span:,.0f} prompt tokens a second, read in {unit}"
        allowed = f"at most {MOST_PER_S:,.0f} requests and {MOST_TOKENS_PER_S:,.0f} prompt tokens a second"
        raise BadTrace(0, field, got, f"{allowed}; {SAY_SO}")


def check_slow(requests: Sequence[TraceRequest], field: str, unit: str, slowest_s: float) -> None:
    """Refuse a load close to zero, because the times must be in a smaller unit."""
    span = _span_s(requests)
    if len(requests) >= TELLING and span > slowest_s * len(requests):
        got = f"a request every {span / len(requests):,.0f} s, read in {unit}"
        raise BadTrace(0, field, got, f"one every {slowest_s:,.0f} s or more often; {SAY_SO}")


def check_fractions(times: Sequence[float], field: str, unit: str) -> None:
    """Refuse fractions of a millisecond in a file of a few seconds, because they may be seconds or milliseconds."""
    fractions = sum(value != int(value) for value in times)
    span = (max(times, default=0.0) - min(times, default=0.0)) / PER_SECOND[unit]
    if unit == "ms" and len(times) >= TELLING and 2 * fractions > len(times) and span < SHORT_S:
        raise BadTrace(0, field, f"times with fractions, {span:,.3g} s in all, read in ms", SAY_SO)


def _span_s(requests: Sequence[TraceRequest]) -> float:
    times = [request.at_s for request in requests]
    return max(times) - min(times) if times else 0.0


def spread(requests: Sequence[TraceRequest], seed: int) -> list[TraceRequest]:
    """Sort requests by arrival; with a bucketed clock, draw their arrivals within the buckets."""
    ordered = sorted(requests, key=lambda request: request.at_s)
    return list(_spread(ordered, seed)) if is_bucketed(ordered) else ordered


def is_bucketed(requests: Sequence[TraceRequest]) -> bool:
    """Return whether most arrivals coincide with another one, as with a bucketed clock."""
    return 0 < 2 * len({request.at_s for request in requests}) <= len(requests)


def _spread(requests: Sequence[TraceRequest], seed: int) -> Iterator[TraceRequest]:
    """Draw arrivals within each bucket, which lasts until the next bucket, at most BUCKET_S; the order stays the
    same."""
    draw = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    buckets = [(at, list(group)) for at, group in groupby(requests, key=lambda request: request.at_s)]
    ends = [at for at, _ in buckets[1:]] + [float("inf")]
    for (at, group), end in zip(buckets, ends, strict=True):
        width = min(BUCKET_S, end - at)
        offsets = sorted(draw.random() * width for _ in group)
        for request, offset in zip(group, offsets, strict=True):
            yield replace(request, at_s=at + offset)
