"""What speaks against believing a preview, in words: what is wrong, and what to do. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.experiments.results.stats import LOW_N
from router.policy.types import CLASSES

OLD_S = 24 * 3600.0
LEAST_REQUESTS = 200
MOST_DEVIATION = 0.15  # of the twin's TTFT from the measured one, either way
OF_A_CLASS = "few_of_class"  # speaks against one class's figures, which have no verdict then, not against the others

Caution = dict[str, str]  # code and text


def caution(code: str, text: str) -> Caution:
    return {"code": code, "text": text}


def of_age(trace: str, age_s: float | None) -> list[Caution]:
    """Judged whenever a preview is read: it grows old."""
    if age_s is None or age_s <= OLD_S:
        return []
    text = f"the newest request of {trace} is {_age(age_s)} old, and traffic changes"
    return [caution("trace_old", f"{text}: preview on newer traffic")]


def _age(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.0f} hours"


def of_requests(by_class: Mapping[str, int]) -> list[Caution]:
    """`by_class`: how many requests were compared, with "all"."""
    found = []
    if by_class["all"] < LEAST_REQUESTS:
        text = f"{by_class['all']:,} requests were compared, fewer than {LEAST_REQUESTS}"
        found.append(caution("few_requests", f"{text}: record more traffic, or name a longer trace"))
    for name in CLASSES:
        count = by_class.get(name, 0)
        if count < LOW_N:
            told = f"{count:,} {name} requests were" if count != 1 else f"1 {name} request was"
            text = f"{told} compared, fewer than {LOW_N}: nothing is said of that class; play more requests"
            found.append(caution(OF_A_CLASS, text))
    return found


def of_origin(trace: str, pool: str, model: str, *, pools: Iterable[str], models: Iterable[str]) -> list[Caution]:
    """`pools` and `models`: those that the trace's requests were recorded from; none: it is no recording."""
    pools, models = sorted(set(pools)), sorted(set(models))
    if not pools:
        text = (
            f"{trace} is not traffic of pool {pool}, so your users may see something else; "
            f"send traffic to {pool}, and from {LEAST_REQUESTS} recorded requests on it is played"
        )
        return [caution("not_recorded", text)]
    if set(models) - {model}:
        text = (
            f"{trace} was recorded with {', '.join(models)}; pool {pool} runs {model}: preview on traffic of this pool"
        )
        return [caution("other_model", text)]
    if set(pools) - {pool}:
        text = f"{trace} was recorded from pool {', '.join(pools)}, not from {pool}: preview on traffic of this pool"
        return [caution("other_pool", text)]
    return []


def of_deviation(deviation: Mapping[str, Any] | None) -> list[Caution]:
    if deviation is None or abs(deviation["relative"]) <= MOST_DEVIATION:
        return []
    way = "above" if deviation["relative"] > 0 else "below"
    text = (
        f"the twin's TTFT under the live version is {abs(deviation['relative']):.0%} {way} what was measured "
        f"(n = {deviation['n']:,}), more than {MOST_DEVIATION:.0%}: calibrate the twin on an instance of the pool"
    )
    return [caution("twin_off", text)]


def of_versions(versions: Iterable[tuple[str, int]]) -> list[Caution]:
    """Whether the measured times are the live version's own; `versions`: (policy, number) that they stem from."""
    told = sorted(
        {f"{policy} v{number}" if policy else "a version that the entry does not name" for policy, number in versions}
    )
    if not told:
        return []
    text = f"the measured times that the twin is held against were measured under several versions ({', '.join(told)})"
    return [caution("several_versions", text)]
