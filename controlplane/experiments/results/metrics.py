"""The metrics of an experiment: key, title, unit, better direction."""

from dataclasses import dataclass
from typing import Literal

from controlplane.experiments.results.statistics.stats import QUANTILES


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    title: str
    unit: str
    better: Literal["lower", "higher", ""]
    per_class: bool = True  # False: of whole runs only
    paired: bool = True  # request by request, so that its differences have intervals


LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def quantile_key(latency: str, share: float) -> str:
    """ttft, 0.9 → ttft_p90_ms."""
    return f"{latency}_p{share * 100:g}_ms"


_LATENCY = [
    Metric(quantile_key(latency, share), f"{title} p{share * 100:g}", "ms", "lower")
    for latency, title in LATENCIES.items()
    for share in QUANTILES
]
QUANTILE_OF = {quantile_key(latency, share): (latency, share) for latency in LATENCIES for share in QUANTILES}
OF_SLO = ("within_slo", "goodput")
TTFT_SHARES = {"ttft_queue_share": "queue_ms", "ttft_kv_share": "kv_ms"}  # of the twin; its record's field
_OTHER = [
    Metric("within_slo", "Within the SLO", "%", "higher"),
    Metric("goodput", "Goodput: answers within the SLO", "requests/s", "higher"),
    Metric("ttft_queue_share", "Share of TTFT in queues", "%", "lower"),
    Metric("ttft_kv_share", "Share of TTFT waiting for KV", "%", "lower"),
    Metric("hit_ratio", "Cached share of prompt tokens", "%", "higher"),
    Metric("n", "Requests", "", "", paired=False),
    Metric("ok", "Answered", "", "", paired=False),
    Metric("errors", "Errors", "", "lower"),
    Metric("refused", "Refused", "", "lower"),
    Metric("balance", "Balance (busiest ÷ mean instance, prompt tokens)", "×", "lower", per_class=False, paired=False),
    Metric("output_tokens_per_s", "Output tokens per second", "tokens/s", "higher", per_class=False, paired=False),
    Metric("tokens_per_gpu_s", "Output tokens per GPU-second", "tokens/s", "higher", per_class=False, paired=False),
    Metric("dollars_per_million", "Cost of a million output tokens", "$", "lower", per_class=False, paired=False),
]
METRICS: dict[str, Metric] = {metric.key: metric for metric in (*_LATENCY, *_OTHER)}
PAIRED = tuple(key for key, metric in METRICS.items() if metric.paired)
