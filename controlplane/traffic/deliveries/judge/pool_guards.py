"""Limits for the whole pool, since harm to both arms makes no difference between them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.plan.types import PoolGuard
from fleet.counted import counted, percent
from router.contract import sketch
from router.contract.redis.router_status import Window


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
    """Measure a share of the requests without client errors: a client's mistakes neither fail a guard nor hide
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
    """Judge one guard. `windows`: the class's, one from each router. `above_since`: when the metric rose above the
    limit."""
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
