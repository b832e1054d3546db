"""Metric families of one dashboard frame, so that pages and metrics agree. Pure. Unknown values are omitted rather than
written as 0."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from prometheus_client.core import GaugeMetricFamily, Metric

from controlplane.live.dashboard.frame import types
from controlplane.live.dashboard.frame.types import ALL_POOLS, Classes, Columns, Frame, LivePolicy

Values = Iterable[tuple[tuple[str, ...], float | None]]

INSTANCE = ("pool", "instance")
# Column of the frame → (metric, help)
INSTANCE_FIGURES = {
    "kv": ("weir_instance_kv_usage", "Share of KV blocks in use, 0 to 1"),
    "kv_blocks": ("weir_instance_kv_blocks", "KV blocks on the device"),
    "running": ("weir_instance_running_requests", "Running requests"),
    "waiting": ("weir_instance_waiting_requests", "Requests waiting in the engine"),
    "hit_rate": (
        "weir_instance_prefix_hit_rate",
        "Share of prompt tokens found in the prefix cache over the last minute",
    ),
    "tokens_s": ("weir_instance_generation_tokens_per_second", "Output tokens per second"),
    "gpu_use": ("weir_instance_gpu_use", "Share of recent time in which its GPUs computed, 0 to 1"),
    "gpu_memory": ("weir_instance_gpu_memory_use", "Share of the memory of its GPUs in use, 0 to 1"),
    "gpu_power_w": ("weir_instance_gpu_power_watts", "Power that its GPUs draw"),
    "gpu_simulated": ("weir_instance_gpu_simulated", "1 if its GPUs are those of a simulated engine's law, else 0"),
    "age_s": ("weir_instance_sample_age_seconds", "Age of the instance's latest sample"),
}
CLASS_COUNTS: Mapping[Literal["rate", "n", "errors", "client_errors", "refused"], tuple[str, str]] = {
    "rate": ("weir_class_requests_per_second", "Requests started per second over the last 10 s"),
    "n": ("weir_class_window_requests", "Requests that ended in the window"),
    "errors": ("weir_class_window_errors", "Requests of the window that failed"),
    "client_errors": (
        "weir_class_window_client_errors",
        "Requests of the window that were invalid, such as a prompt that is too long",
    ),
    "refused": ("weir_class_window_refused", "Requests of the window that were refused"),
}


def of_frame(now: float, frame: Frame) -> Iterator[Metric]:
    yield GaugeMetricFamily("weir_frame_age_seconds", "Age of the frame", max(0.0, now - frame["at"]))
    yield from _instances(frame["instances"])
    yield from _pools(frame)
    yield from _classes(frame["classes"])
    yield from _policies(frame["policies"])
    yield from _health(frame)


def _instances(columns: Columns) -> Iterator[Metric]:
    keys = list(zip(columns["pool"], columns["id"], strict=True))
    status = GaugeMetricFamily(
        "weir_instance_status", "1 for the instance's current status", labels=(*INSTANCE, "status")
    )
    for key, word in zip(keys, columns["status"], strict=True):
        status.add_metric((*key, word), 1)
    yield status
    for column, (name, text) in INSTANCE_FIGURES.items():
        yield gauge(name, text, INSTANCE, zip(keys, columns[column], strict=True))


def _pools(frame: Frame) -> Iterator[Metric]:
    columns = frame["instances"]
    wanted = [((pool,), figures["wanted"]) for pool, figures in frame["pools"].items()]
    yield gauge("weir_pool_instances", "Desired instances", ("pool",), wanted)
    ready = Counter(pool for pool, state in zip(columns["pool"], columns["state"], strict=True) if state == "ready")
    counted = [((pool,), ready[pool]) for pool in frame["pools"]]
    yield gauge("weir_pool_ready_instances", "Instances that take requests", ("pool",), counted)


def _classes(classes: Mapping[str, Classes]) -> Iterator[Metric]:
    rows = [
        ((pool, name), figures)
        for pool, by_class in classes.items()
        if pool != ALL_POOLS
        for name, figures in by_class.items()
        if figures is not None
    ]
    for column, (name, text) in CLASS_COUNTS.items():
        yield gauge(name, text, ("pool", "class"), [(key, figures.get(column)) for key, figures in rows])
    for metric in types.LATENCIES:
        values = [
            ((*key, str(quantile)), None if ms is None else ms / 1000)
            for key, figures in rows
            for quantile, ms in zip(types.PERCENTILES.values(), figures[metric.key], strict=True)
        ]
        yield _summary(metric.exported, f"{metric.label} of the window", ("pool", "class", "quantile"), values)


def _policies(policies: Mapping[str, LivePolicy]) -> Iterator[Metric]:
    labels = ("pool", "policy")
    rows = {(pool, live["policy"]): live for pool, live in policies.items()}
    versions = {key: live["version"] for key, live in rows.items()}
    yield gauge("weir_policy_version", "Published version", labels, versions.items())
    serving = {key: live["routers"] for key, live in rows.items()}
    yield gauge("weir_policy_routers", "Routers that serve the pool", labels, serving.items())
    current = {key: live["acknowledged"] for key, live in rows.items()}
    yield gauge("weir_policy_routers_current", "Routers that run the published version", labels, current.items())


def _health(frame: Frame) -> Iterator[Metric]:
    health = frame["health"]
    for name, text, value in (
        ("weir_routers_alive", "Routers that reported recently", health["routers_alive"]),
        ("weir_unreadable_values", "Values in Redis that could not be read", health["unreadable"]),
        ("weir_control_worker_age_seconds", "Time since the control worker last ran", health["control_age_s"]),
        ("weir_samples_age_seconds", "Time since the latest sample of a ready instance", health["samples_age_s"]),
    ):
        yield gauge(name, text, (), [((), value)])
    counted = Counter((str(item["severity"]), item["rule"]) for item in frame["attention"])
    yield gauge(
        "weir_attention", "Entries of Needs attention; severity 3: act now", ("severity", "rule"), counted.items()
    )


def _summary(name: str, text: str, labels: tuple[str, ...], values: Values) -> Metric:
    """Return only quantiles, because Prometheus allows the label `quantile` only in this type."""
    family = Metric(name, text, "summary")
    for key, value in values:
        if value is not None:
            family.add_sample(name, dict(zip(labels, key, strict=True)), value)
    return family


def gauge(name: str, text: str, labels: tuple[str, ...], values: Values) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        if value is not None:
            family.add_metric(key, value)
    return family
