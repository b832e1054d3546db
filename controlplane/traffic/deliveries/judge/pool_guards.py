"""Limits for the whole pool, because a harm to both arms shows no difference between them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.memory import EndedCounts
from controlplane.traffic.deliveries.judge.sums import Evidence
from controlplane.traffic.deliveries.plan.types import PoolGuard
from fleet.counted import counted, percent
from router.contract.redis.router_status import Window
from router.contract.values import sketch

# The breaker: fails as soon as many of the candidate's requests fail, without waiting for a comparison
WINDOW_S = 30.0
KEPT_S = 60.0
LEAST_ENDED = 20
LEAST_FAILED = 5  # smallest number of failed requests that counts; fewer may come from one client that retries
LEAST_SHARE = 0.05
TIMES_CONTROL = 3.0
SETTLE_S = 5.0  # time after a promotion within which every router has reported again


def window(evidence: Evidence, now: float) -> EndedCounts:
    candidate, control = evidence.total("candidate"), evidence.total("control")
    return EndedCounts(now, (candidate.judged, candidate.failed), (control.judged, control.failed))


def kept(windows: Sequence[EndedCounts], now: float) -> list[EndedCounts]:
    return [each for each in windows if now - each.at <= KEPT_S]


def breaker(windows: Sequence[EndedCounts], now: EndedCounts) -> GuardFinding:
    """Judge the candidate's failed requests. `windows` holds earlier looks at this generation, oldest first."""
    old = [each for each in windows if now.at - each.at >= WINDOW_S]
    before = old[-1] if old else EndedCounts(now.at, (0, 0), (0, 0))
    period = f"in {now.at - before.at:.0f} s" if old else "since the split began"
    ended, failed = (now.candidate[at] - before.candidate[at] for at in (0, 1))
    of_control, of_control_failed = (now.control[at] - before.control[at] for at in (0, 1))
    share = failed / ended if ended else 0.0
    control = of_control_failed / of_control if of_control else 0.0
    broken = _is_broken(ended, failed, share, control)
    return GuardFinding(
        metric="breaker",
        verdict="fail" if broken else "inconclusive",
        text=f"{failed} of {ended} requests failed {period}, {of_control_failed} of {of_control} in control",
        candidate=share,
        control=control,
        worse=max(LEAST_SHARE, TIMES_CONTROL * control),
        n=(ended, of_control),
    )


def _is_broken(ended: int, failed: int, share: float, control: float) -> bool:
    many = ended >= LEAST_ENDED and failed >= LEAST_FAILED
    return many and share >= LEAST_SHARE and share >= TIMES_CONTROL * control


def at_promotion(known: EndedCounts | None, now: EndedCounts) -> EndedCounts:
    """Return the routers' last minute at the promotion; later reports replace it as long as they may still describe the
    time before."""
    if known is None:
        return now
    settling = now.at - known.at < SETTLE_S
    return EndedCounts(known.at, now.candidate, now.control) if settling else known


def older(promoted: EndedCounts, now: float) -> int:
    """Return the largest number of failures in the routers' last minute that may precede the promotion."""
    return promoted.candidate[1] if now - promoted.at < SETTLE_S + KEPT_S else 0


def share_of(counts: EndedCounts) -> float:
    """Return the share of the candidate's requests that failed; 0 if there are too few requests."""
    ended, failed = counts.candidate
    return failed / ended if ended >= LEAST_ENDED else 0.0


def after_promotion(errors: int, ended: int, before: float, older: int = 0) -> GuardFinding:
    """Judge the bake, in which the candidate serves every request. `errors` and `ended` are counts of the last minute,
    `before` is the usual share of errors before the promotion. `older` errors may be from before the promotion and do
    not count against the candidate."""
    failed = max(0, errors - older)
    share = failed / ended if ended else 0.0
    excuse = f", {min(older, errors)} of them perhaps before the promotion" if older else ""
    return GuardFinding(
        metric="breaker",
        verdict="fail" if _is_broken(ended, failed, share, before) else "inconclusive",
        text=f"{errors} of {ended} requests failed in the last minute{excuse}",
        candidate=share,
        control=before,
        worse=max(LEAST_SHARE, TIMES_CONTROL * before),
        n=(ended, 0),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    value: float | None  # None without requests
    n: int


def _quantile(name: str, share: float) -> Callable[[Sequence[Window]], Measured]:
    def measure(windows: Sequence[Window]) -> Measured:
        merged = sketch.merge(getattr(window, name) for window in windows)
        return Measured(sketch.quantile(merged, share), sketch.count(merged))

    return measure


def _share(name: str) -> Callable[[Sequence[Window]], Measured]:
    """Measure a share of the requests without client errors: clients' mistakes neither fail a guard nor hide
    failures."""

    def measure(windows: Sequence[Window]) -> Measured:
        n = sum(window.n - window.client_error for window in windows)
        return Measured(sum(getattr(window, name) for window in windows) / n if n else None, n)

    return measure


METRICS: dict[str, Callable[[Sequence[Window]], Measured]] = {
    "pool.ttft_p90_ms": _quantile("ttft", 0.9),
    "pool.ttft_p99_ms": _quantile("ttft", 0.99),
    "pool.tpot_p90_ms": _quantile("tpot", 0.9),
    "pool.errors_share": _share("error"),
    "pool.refused_share": _share("refused"),
}


def key(guard: PoolGuard) -> str:
    return f"{guard.metric} {guard.request_class}"


def judge(guard: PoolGuard, windows: Sequence[Window], above_since: float | None, now: float) -> GuardFinding:
    """Judge one guard. `windows` are those of the class, one from each router. `above_since` is when the metric rose
    above the limit."""
    measured = METRICS[guard.metric](windows)
    lasted = now - above_since if above_since is not None else 0.0
    failed = is_above(guard, measured) and lasted >= guard.for_s
    return GuardFinding(
        metric=guard.metric,
        request_class=guard.request_class,
        verdict="no_data" if measured.value is None else "fail" if failed else "fine",
        text=_sentence(guard, measured, lasted),
        estimate=measured.value,
        worse=guard.above,
        n=(measured.n, 0),
        effect=guard.does,
    )


def is_above(guard: PoolGuard, measured: Measured) -> bool:
    return measured.value is not None and measured.value > guard.above


def measure(guard: PoolGuard, windows: Sequence[Window]) -> Measured:
    return METRICS[guard.metric](windows)


def _sentence(guard: PoolGuard, measured: Measured, lasted: float) -> str:
    if measured.value is None:
        return f"no {guard.request_class} request ended in the last minute"
    name = guard.metric.removeprefix("pool.").replace("_", " ").removesuffix(" ms")
    beyond = f", above for {lasted:.0f} of {guard.for_s} s" if is_above(guard, measured) else ""
    found, limit = _shown(guard, measured.value), _shown(guard, guard.above)
    over = f"over {counted(measured.n, 'request')} of the last minute"
    return f"{guard.request_class} {name} of the pool is {found} {over}, limit {limit}{beyond}"


def _shown(guard: PoolGuard, value: float) -> str:
    return f"{value:.0f} ms" if guard.metric.endswith("_ms") else percent(value, ".1f")
