"""Service levels: the limits in ms within which an answer counts. Pure."""

from collections.abc import Iterable, Mapping

from controlplane.evidence.experiments.results.records import LATENCIES, Record

Slo = Mapping[str, Mapping[str, float]]  # class → ttft_ms, tpot_ms, e2e_ms; "all" for classes without their own

NO_SLO: Slo = {}


def is_within(record: Record, slo: Slo) -> bool:
    """True for an answer within every limit of its class. An unknown TPOT (of a single token) breaks none."""
    limits = slo.get(record.trace_class, slo.get("all"))
    return limits is not None and record.outcome == "ok" and all(_holds(record, limits, key) for key in LATENCIES)


def _holds(record: Record, limits: Mapping[str, float], latency: str) -> bool:
    limit, value = limits.get(f"{latency}_ms"), getattr(record, f"{latency}_ms")
    return limit is None or value is None or value <= limit


def seconds(records: Iterable[Record]) -> float:
    """Return the seconds from the first request of a run to the end of the last, in the engine's time."""
    spans = [(record.sent_s, record.sent_s + (record.e2e_ms or 0.0) / 1000) for record in records]
    return max(end for _, end in spans) - min(sent for sent, _ in spans) if spans else 0.0
