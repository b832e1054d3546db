"""Cautions about a preview: reasons why its result may mislead, and the remedy. Pure."""

from collections.abc import Iterable, Mapping

from controlplane.evidence.experiments.results.statistics.stats import LOW_N
from controlplane.evidence.previews.analysis.types import Caution, Deviation
from fleet.counted import percent
from router.policy.types import CLASSES

OLD_S = 24 * 3600.0
LEAST_REQUESTS = 200
MOST_DEVIATION = 0.15  # largest relative difference, in either direction, between the TTFT in the twin and measured
OF_A_CLASS = "few_of_class"  # code of a caution about one class only, whose latencies get no verdict


def caution(code: str, text: str) -> Caution:
    return {"code": code, "text": text}


def of_age(trace: str, age_s: float | None) -> list[Caution]:
    """Return cautions about old traffic, which are recomputed at each reading because traffic ages."""
    if age_s is None or age_s <= OLD_S:
        return []
    text = f"the newest request of {trace} is {_age(age_s)} old, and traffic changes"
    return [caution("trace_old", f"{text}: preview on newer traffic")]


def _age(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.0f} hours"


def of_requests(by_class: Mapping[str, int]) -> list[Caution]:
    """Return cautions about few requests. `by_class` has the number of compared requests by class and for "all"."""
    found = []
    if by_class["all"] < LEAST_REQUESTS:
        text = f"{by_class['all']:,} requests were compared, fewer than {LEAST_REQUESTS}"
        found.append(caution("few_requests", f"{text}: record more traffic, or name a longer trace"))
    for name in CLASSES:
        count = by_class.get(name, 0)
        if count < LOW_N:
            compared = f"{count:,} {name} requests were" if count != 1 else f"1 {name} request was"
            text = f"{compared} compared, fewer than {LOW_N}: this class gets no verdict; play more requests"
            found.append(caution(OF_A_CLASS, text))
    return found


def of_origin(trace: str, pool: str, model: str, *, pools: Iterable[str], models: Iterable[str]) -> list[Caution]:
    """Return cautions about the origin. `pools` and `models` are those of the recording; empty if the trace is not a
    recording."""
    pools, models = sorted(set(pools)), sorted(set(models))
    if not pools:
        text = (
            f"{trace} is not traffic of pool {pool}, so your users may see other effects; "
            f"send traffic to {pool}: a preview plays it from {LEAST_REQUESTS} recorded requests on"
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


def of_deviation(deviation: Deviation | None, expected: float | None = None) -> list[Caution]:
    """Return cautions about a deviation. `expected` is the expected error of the twin's mean TTFT."""
    most = max(MOST_DEVIATION, expected or 0.0)
    if deviation is None or abs(deviation["relative"]) <= most:
        return []
    way = "above" if deviation["relative"] > 0 else "below"
    text = (
        f"the TTFT in the twin under the live version is {percent(abs(deviation['relative']))} {way} the "
        f"measured one (n = {deviation['n']:,}), more than {percent(most)}: "
        "calibrate the twin on an instance of the pool"
    )
    return [caution("twin_off", text)]


def of_versions(versions: Iterable[tuple[str, int]]) -> list[Caution]:
    """Return a caution about mixed versions. `versions` are (policy, number) of the measurements; empty if only the
    live version occurs."""
    names = sorted({f"{policy} v{number}" if policy else "an unnamed version" for policy, number in versions})
    if not names:
        return []
    text = f"the latencies compared with the twin were measured under several versions ({', '.join(names)})"
    return [caution("several_versions", text)]
