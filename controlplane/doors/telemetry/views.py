import time
from collections.abc import Iterable, Iterator

import redis
from django.contrib.auth.decorators import login_not_required
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from controlplane.base.schedule import reports
from controlplane.base.schedule.lease import lead
from controlplane.doors.api.auth import principal_of
from controlplane.doors.telemetry.deliveries import of_deliveries, of_notices
from controlplane.doors.telemetry.families import INSTANCE, Values, gauge, of_frame
from controlplane.evidence.experiments.models import Experiment
from controlplane.live.dashboard import step
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.use.spending import budgets_now
from fleet import selectors
from fleet.control import autoscaler
from fleet.models import Instance, InstanceSource, Node
from fleet.plan.rollout import NOT_LISTED
from fleet.redis import connect

SCOPE = "live:read"


class Page(Collector):
    def collect(self) -> Iterable[Metric]:
        now = time.time()
        try:
            frame = step.current(connect(), now)
        except redis.RedisError:
            frame = None
        yield GaugeMetricFamily("weir_redis_up", "1 when Redis answers", float(frame is not None))
        if frame is not None:
            yield from of_frame(now, frame)
            yield from of_steps(connect())
            yield from _of_scaling(now)
        yield from _of_database(now)


def of_steps(client: redis.Redis) -> Iterator[Metric]:
    found = reports.read(client)
    last = [((name,), report.at) for name, report in found.items()]
    yield gauge("weir_step_last_run_timestamp_seconds", "Time at which the step last succeeded (Unix)", ("step",), last)
    took = [((name,), report.took_s) for name, report in found.items()]
    yield gauge("weir_step_duration_seconds", "Duration of the step's latest run", ("step",), took)


def _of_scaling(now: float) -> Iterator[Metric]:
    """Yield metrics for scalers (KEDA, an HPA), for pools with an autoscaler. Unmeasured values are omitted rather than
    written as 0."""
    pools = [pool.name for pool in selectors.pools() if pool.autoscale]
    found = {(name,): advice for name, advice in autoscaler.latest(pools).items()}
    latest = {key: advice.points[-1] for key, advice in found.items() if advice.points}

    def each(name: str, text: str, values: Values) -> Metric:
        return gauge(name, text, ("pool",), values)

    desired = [(key, float(advice.advised)) for key, advice in found.items()]
    yield each("weir_pool_desired_instances", "Instances that the load needs, as the autoscaler advises", desired)
    prefills = [(key, advice.advised_prefills) for key, advice in found.items()]
    yield each("weir_pool_desired_prefill_instances", "Of these, how many should prefill", prefills)
    held = [(key, float(point.held)) for key, point in latest.items()]
    yield each("weir_pool_held_requests", "Requests that wait in routers", held)
    full = [(key, advice.saturation) for key, advice in found.items()]
    yield each("weir_pool_saturation", "Highest load measure relative to its target; 1 is on target", full)
    ages = [(key, max(0.0, now - point.at)) for key, point in latest.items()]
    yield each("weir_pool_load_age_seconds", "Age of the load measurements", ages)


def _of_lease() -> Iterator[Metric]:
    held = lead()
    rows = [] if held is None or not held.holder else [((held.holder,), 1.0)]
    yield gauge("weir_control_leader", "1 for the control worker that leads", ("worker",), rows)


def _of_sources(now: float) -> Iterator[Metric]:
    rows = list(InstanceSource.objects.select_related("pool").order_by("pool__name"))
    ages = [((row.pool.name,), 0.0 if row.away_since is None else now - row.away_since.timestamp()) for row in rows]
    text = "Age of the latest answer of the pool's instance source, 0 while it answers"
    yield gauge("weir_source_age_seconds", text, ("pool",), [(labels, max(0.0, age)) for labels, age in ages])
    listed = [((row.pool.name,), float(len(row.engines))) for row in rows]
    yield gauge("weir_source_engines", "Engines in that answer", ("pool",), listed)
    gone = Instance.objects.filter(retired=NOT_LISTED).values_list("pool__name").annotate(Count("pk"))
    counts = {row.pool.name: 0.0 for row in rows} | {name: float(count) for name, count in gone}
    text = "Instances listed in the last hour that no longer are"
    yield gauge("weir_source_gone_engines", text, ("pool",), [((name,), count) for name, count in counts.items()])


def _of_budgets(now: float) -> Metric:
    text = "Share of a key's or pool's budget spent in the current period"
    found = [(one.row, one.ratio) for one in budgets_now(now)]
    rows = [((row.key.name if row.key else "", row.pool, row.unit, row.per), ratio) for row, ratio in found]
    return gauge("weir_budget_used_ratio", text, ("key", "pool", "unit", "per"), rows)


def _of_keys() -> Metric:
    """Return the keys' names by id. Routers label only by id, because anyone can read their metrics."""
    rows = ApiKey.objects.filter(revoked_at=None).order_by("pk").values_list("pk", "name")
    return gauge("weir_key_info", "1 for each API key", ("key", "name"), [((str(pk), name), 1.0) for pk, name in rows])


# Field of NodeGpu → (metric, help)
GPU_FIGURES = {
    "use": ("weir_gpu_use", "Share of recent time in which the GPU computed, 0 to 1"),
    "memory_used_bytes": ("weir_gpu_memory_used_bytes", "Used memory of the GPU"),
    "power_w": ("weir_gpu_power_watts", "Power that the GPU draws"),
    "temperature_c": ("weir_gpu_temperature_celsius", "Temperature of the GPU"),
    "clock_mhz": ("weir_gpu_clock_megahertz", "Clock of the GPU's processors"),
}


def _of_gpus() -> Iterator[Metric]:
    """Yield metrics from the latest heartbeat of each node."""
    gpus = [((node.name, str(gpu.number)), gpu) for node in Node.objects.all() for gpu in node.resources.gpus or ()]
    for field, (name, text) in GPU_FIGURES.items():
        yield gauge(name, text, ("node", "gpu"), [(key, getattr(gpu, field)) for key, gpu in gpus])


def _of_database(now: float) -> Iterator[Metric]:
    restarts = Instance.objects.values_list("pool__name", "name", "restarts")
    text = "Starts after the first since the instance was added"
    yield gauge("weir_instance_restarts", text, INSTANCE, [((pool, name), count) for pool, name, count in restarts])
    seen = Node.objects.values_list("name", "last_seen")
    ages = [((name,), max(0.0, now - at.timestamp())) for name, at in seen if at is not None]
    yield gauge("weir_node_age_seconds", "Time since the node's worker last reported", ("node",), ages)
    yield from _of_gpus()
    counted = Experiment.objects.order_by("status").values_list("status").annotate(Count("pk"))
    statuses = [((status,), count) for status, count in counted]
    yield gauge("weir_experiments", "Experiments by status", ("status",), statuses)
    yield from _of_lease()
    yield from _of_sources(now)
    yield from of_deliveries(now)
    yield from of_notices(now)
    yield _of_budgets(now)
    yield _of_keys()


@login_not_required  # A scraper has a token and expects 401 instead of a sign-in page.
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer in Prometheus' text format, for a bearer token or session with the scope live:read."""
    principal = principal_of(request)
    if principal is None:
        answer = HttpResponse(
            "an API token with the scope live:read is required\n", status=401, content_type="text/plain"
        )
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    if SCOPE not in principal.scopes:
        return HttpResponse(f"{principal.name} lacks the scope {SCOPE}\n", status=403, content_type="text/plain")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
