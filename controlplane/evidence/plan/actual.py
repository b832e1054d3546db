"""Compares a plan row's predictions with the receipts since the pool matched that row. Pure. Requests of one session
depend on each other, so intervals count sessions: for a share, from the sums of sessions; for a quantile, from the
share of requests below it (Woodruff 1952).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.records import Record, Slo
from controlplane.evidence.experiments.results.statistics.stats import LOW_N, LOW_SESSIONS, quantile, wilson
from controlplane.evidence.plan.figures import QUANTILES_OF, UNCLASSED, WITHIN, by_class, load_of, within
from controlplane.evidence.plan.planned import Answer
from controlplane.evidence.plan.question import busiest_from
from controlplane.traffic.deliveries.judge.statistics.comparisons import effective_cells
from fleet.counted import significant
from router.contract.redis.receipt import Receipt

COUNTED = ("ok", "error", "refused")  # outcomes for which a fleet is answerable
ALIKE = (0.8, 1.25)  # actual load ÷ planned load; the prediction is judged only within this range
Verdict = Literal["as predicted", "better", "worse", "too few", "another load"]


@dataclass(frozen=True, slots=True)
class LoadFigure:
    name: str  # requests_per_s; means: prompt_tokens, new_tokens, output_tokens
    predicted: float
    actual: float

    @property
    def alike(self) -> bool:
        return ALIKE[0] * self.predicted <= self.actual <= ALIKE[1] * self.predicted


@dataclass(frozen=True, slots=True)
class PlanFigure:
    request_class: str
    metric: str  # within_slo, 0–1, or a quantile in ms
    predicted: Mapping[str, float]  # figures.Range
    actual: float
    low: float  # interval with 95 % confidence
    high: float
    n: int
    sessions: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class WhatCame:
    since: float  # Unix s
    requests: int  # the busiest consecutive requests, as many as the plan played
    load: tuple[LoadFigure, ...]
    figures: tuple[PlanFigure, ...]
    unplanned: Mapping[str, int] = field(default_factory=dict)  # requests of classes that the plan did not have

    @property
    def reason(self) -> str:
        """Return why nothing is judged; empty if something is judged."""
        other = [
            f"{significant(one.actual)} {one.name.replace('_', ' ')} instead of {significant(one.predicted)}"
            for one in self.load
            if not one.alike
        ]
        if other:
            return f"The load is not as planned: {', '.join(other)}."
        return "" if any(one.verdict != "too few" for one in self.figures) else "Too few requests of each class."


NOTHING = WhatCame(0.0, 0, (), ())


def what_came(
    predicted: Mapping[str, Any], answer: Answer, receipts: Iterable[Receipt], since: float, version: int
) -> WhatCame:
    """Return the measurements since that time, under this version of the policy. `predicted` has the row's predictions,
    `receipts` are the pool's.
    """
    since, records = _records(sorted(receipts, key=lambda one: one.at), version, since)
    start = busiest_from([one.sent_s for one in records], answer["requests"])
    part = records[start : start + answer["requests"]]
    if not part:
        return WhatCame(since, 0, (), ())
    actual = load_of(part)
    load = tuple(LoadFigure(name, value, actual[name]) for name, value in predicted["load"].items() if name in actual)
    alike = all(one.alike for one in load)
    classes = by_class(part)
    figures = (
        figure
        for name, given in predicted["classes"].items()
        for figure in _figures(name, given, classes.get(name, []), answer["slo"], alike=alike)
    )
    unplanned = {name: len(found) for name, found in classes.items() if name not in predicted["classes"]}
    return WhatCame(since, len(part), load, tuple(figures), unplanned)


def _records(receipts: Sequence[Receipt], version: int, since: float) -> tuple[float, list[Record]]:
    """Return (the time since which this version alone has decided, the requests from then on)."""
    since = max((one.at for one in receipts if one.at >= since and not _is_by(one, version)), default=since)
    mine = [one for one in receipts if one.at >= since and _is_by(one, version) and one.outcome in COUNTED]
    return since, [_record(at, one) for at, one in enumerate(mine)]


def _is_by(one: Receipt, version: int) -> bool:
    """Return whether the version decided the request; None if it was refused before a decision."""
    return one.version in (None, version)


def _record(index: int, one: Receipt) -> Record:
    name, answered = one.request_class or UNCLASSED, one.outcome == "ok"
    return Record(
        index=index,
        session=one.session or one.request_id,
        sent_s=one.at,
        late_wall_ms=0.0,
        input_tokens=one.actual_prompt_tokens or one.prompt_tokens or 0,
        ttft_ms=one.ttft_ms if answered else None,
        tpot_ms=one.tpot_ms if answered else None,
        e2e_ms=one.e2e_ms if answered else None,
        prompt_tokens=one.actual_prompt_tokens,
        cached_tokens=one.predicted_cached if one.cached_tokens is None else one.cached_tokens,
        output_tokens=one.output_tokens if answered else None,
        instance=one.instance or "",
        routed_class=name,
        trace_class=name,
        policy_version="",
        status=one.status or 0,
        outcome=one.outcome or "",
        error=one.code or "",
    )


def _figures(
    name: str, given: Mapping[str, Any], records: Sequence[Record], slo: Slo, *, alike: bool
) -> Iterator[PlanFigure]:
    sessions = [one.session for one in records]
    if WITHIN in given and records:
        held = within(records, slo)
        share = sum(held) / len(held)
        yield _figure(name, WITHIN, given[WITHIN], (share, *share_interval(held, sessions)), sessions, alike=alike)
    for key, (latency, share) in QUANTILES_OF.items():
        found = [(value, one.session) for one in records if (value := getattr(one, f"{latency}_ms")) is not None]
        if key in given and found:
            values, of = zip(*found, strict=True)
            yield _figure(name, key, given[key], quantile_interval(values, of, share), of, alike=alike)


def _figure(
    name: str,
    metric: str,
    predicted: Mapping[str, float],
    actual: tuple[float, float, float],
    sessions: Sequence[str],
    *,
    alike: bool,
) -> PlanFigure:
    value, low, high = (round(one, 6) for one in actual)
    n, count = len(sessions), len(set(sessions))
    verdict: Verdict = "as predicted"
    if n < LOW_N or count < LOW_SESSIONS:
        verdict = "too few"
    elif not alike:
        verdict = "another load"
    elif low > predicted["most"] or high < predicted["least"]:
        more = low > predicted["most"]
        verdict = "better" if more == (METRICS[metric].better == "higher") else "worse"
    return PlanFigure(name, metric, predicted, value, low, high, n, count, verdict)


def share_interval(held: Sequence[bool], sessions: Sequence[str]) -> tuple[float, float]:
    """Return the interval of the share of requests that held the limits; there is at least one request."""
    sums = defaultdict[str, list[int]](lambda: [0, 0])
    for one, session in zip(held, sessions, strict=True):
        sums[session][0] += one
        sums[session][1] += 1
    share, n, count = sum(held) / len(held), len(held), len(sums)
    spread = sum((hits - share * size) ** 2 for hits, size in sums.values()) / n**2 * count / max(1, count - 1)
    effective = effective_cells([size for _, size in sums.values()])
    if spread > 0:
        effective = min(float(n), share * (1 - share) / spread)
    return wilson(share * effective, effective)


def quantile_interval(values: Sequence[float], sessions: Sequence[str], share: float) -> tuple[float, float, float]:
    """Return (the quantile of at least one value, the ends of its interval)."""
    ordered = sorted(values)
    value = quantile(ordered, share)
    low, high = share_interval([one <= value for one in values], sessions)
    return value, quantile(ordered, low), quantile(ordered, high)
