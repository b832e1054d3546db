"""The metrics of an experiment: their meaning, their computation, and the basis of their intervals. Pure. A metric is
one entry here; results, comparisons, expectations, pages, reports and REST derive from it. Only metrics of whole runs
are computed elsewhere (summarize.run_results and economics), because they need more than the requests.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.evidence.experiments.results.records import LATENCIES, Record, Slo, is_within, seconds
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.statistics.stats import QUANTILES


@dataclass(frozen=True, slots=True)
class ClassRequests:
    """The requests of one class in an arm or a run."""

    records: Sequence[Record]
    slo: Slo
    took_s: float  # duration of the runs

    def count(self, outcome: str) -> int:
        return sum(record.outcome == outcome for record in self.records)


Part = Callable[[Record, Slo], tuple[float, float]]
Value = Callable[[ClassRequests], float | None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A sum over requests divided by another sum. Every request that was sent counts, whether or not it was
    answered."""

    part: Part  # (numerator, denominator) of one request
    # Computed from the runs, in place of the denominator
    total: Callable[[Collection[Sequence[Record]]], float] | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    title: str
    unit: str
    better: Literal["lower", "higher", ""]
    value: Value | None = None  # value for one class; None for a metric of whole runs only
    ratio: Ratio | None = None  # basis of its intervals
    quantile: tuple[str, float] | None = None  # latency and share; intervals of such a quantile are bootstrapped
    optional: bool = False  # known only with an SLO or in a simulation
    needs_slo: bool = False
    marked: bool = True  # False: no arm is marked as the best

    @property
    def per_class(self) -> bool:
        return self.value is not None

    @property
    def paired(self) -> bool:
        """Return whether the metric's differences have intervals from paired requests."""
        return self.ratio is not None or self.quantile is not None


def quantile_key(latency: str, share: float) -> str:
    """Return the key of a quantile: ttft, 0.9 → ttft_p90_ms."""
    return f"{latency}_p{share * 100:g}_ms"


def rounded_quantile(values: Collection[float], share: float) -> float | None:
    found = stats.quantile_of(values, share)
    return None if found is None else round(found, 3)


def _latency(latency: str, share: float) -> Metric:
    def value(of: ClassRequests) -> float | None:
        return rounded_quantile(known(of.records, latency), share)

    title = f"{LATENCIES[latency]} p{share * 100:g}"
    return Metric(quantile_key(latency, share), title, "ms", "lower", value, quantile=(latency, share))


def known(records: Iterable[Record], latency: str) -> list[float]:
    values = (getattr(record, f"{latency}_ms") for record in records)
    return [value for value in values if value is not None]


def _ttft_share(key: str, title: str, field: str) -> Metric:
    """Return the metric of a record's field as a share of the TTFT, known only in the twin."""

    def value(of: ClassRequests) -> float | None:
        parts = [(part, r.ttft_ms) for r in of.records if (part := getattr(r, field)) is not None and r.ttft_ms]
        ttft = sum(whole for _, whole in parts)
        return round(sum(part for part, _ in parts) / ttft, 6) if ttft else None

    def part(record: Record, _: Slo) -> tuple[float, float]:
        found: float | None = getattr(record, field)
        return (0.0, 0.0) if found is None else (found, record.ttft_ms or 0.0)

    return Metric(key, title, "%", "lower", value, Ratio(part), optional=True)


def _within_slo(of: ClassRequests) -> float | None:
    """Return the share of requests within the SLO. Refused requests, failed requests and client errors count as
    outside."""
    counted = len(of.records) - of.count("cancelled")
    return round(_good(of) / counted, 6) if of.slo and counted and of.took_s else None


def _goodput(of: ClassRequests) -> float | None:
    counted = len(of.records) - of.count("cancelled")
    return round(_good(of) / of.took_s, 4) if of.slo and counted and of.took_s else None


def _good(of: ClassRequests) -> int:
    return sum(is_within(record, of.slo) for record in of.records)


def _is_good(record: Record, slo: Slo) -> tuple[float, float]:
    return float(is_within(record, slo)), 1.0


def _hit_ratio(of: ClassRequests) -> float | None:
    """Return the cached or transferred share of the prompts, 0–1, over answers that report both."""
    reporting = [r for r in of.records if r.prompt_tokens and r.cached_tokens is not None]
    prompt = sum(r.prompt_tokens or 0 for r in reporting)
    return round(sum(r.cached_tokens or 0 for r in reporting) / prompt, 6) if prompt else None


def _hit(record: Record, _: Slo) -> tuple[float, float]:
    return float(record.cached_tokens or 0), float(record.prompt_tokens or record.input_tokens)


def _outcome(key: str, title: str, outcome: str) -> Metric:
    part: Part = lambda record, _: (float(record.outcome == outcome), 1.0)  # noqa: E731
    return Metric(key, title, "", "lower", lambda of: of.count(outcome), Ratio(part, lambda runs: 1.0))


def _seconds(runs: Collection[Sequence[Record]]) -> float:
    return sum(map(seconds, runs))


_ALL = (
    *(_latency(latency, share) for latency in LATENCIES for share in QUANTILES),
    Metric("within_slo", "Within the SLO", "%", "higher", _within_slo, Ratio(_is_good), optional=True, needs_slo=True),
    Metric(
        "goodput",
        "Goodput: answers within the SLO",
        "requests/s",
        "higher",
        _goodput,
        Ratio(_is_good, _seconds),
        optional=True,
        needs_slo=True,
    ),
    _ttft_share("ttft_queue_share", "Share of TTFT in queues", "queue_ms"),
    _ttft_share("ttft_kv_share", "Share of TTFT waiting for KV", "kv_ms"),
    Metric(
        "hit_ratio",
        "Cached or transferred share of prompt tokens",
        "%",
        "higher",
        _hit_ratio,
        Ratio(_hit),
        marked=False,  # a split that transfers every prompt reaches 100 % and saves nothing
    ),
    Metric("n", "Requests", "", "", lambda of: len(of.records)),
    Metric("ok", "Answered", "", "", lambda of: of.count("ok")),
    _outcome("errors", "Errors", "error"),
    _outcome("client_errors", "Client errors", "client_error"),
    _outcome("refused", "Refused", "refused"),
    Metric("balance", "Balance (busiest ÷ mean instance, prompt tokens)", "×", "lower"),
    Metric("output_tokens_per_s", "Output tokens per second", "tokens/s", "higher"),
    Metric("tokens_per_gpu_s", "Output tokens per GPU-second", "tokens/s", "higher"),
    Metric("dollars_per_million", "Cost", "$ / M output tokens", "lower"),
)
# The subject of a comparison: the metrics in its sentence and plot, judged jointly
MAIN = ("ttft_p50_ms", "ttft_p90_ms", "tpot_p50_ms", "tpot_p90_ms", "e2e_p50_ms", "e2e_p90_ms", "within_slo")
METRICS: dict[str, Metric] = {metric.key: metric for metric in _ALL}
