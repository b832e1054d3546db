"""What scalers of other systems (KEDA, an HPA) read: the autoscaler's advice on each pool, and how old its load is."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from controlplane.telemetry.families import Values, gauge
from fleet import selectors
from fleet.control import autoscaler


def of_scaling(now: float) -> Iterator[Metric]:
    """Of pools with an autoscaler, in both modes. What is not measured is left out, not 0."""
    pools = [pool.name for pool in selectors.pools() if pool.autoscale]
    found = {(name,): advice for name, advice in autoscaler.latest(pools).items()}
    latest = {key: advice.points[-1] for key, advice in found.items() if advice.points}

    def each(name: str, text: str, values: Values) -> Metric:
        return gauge(name, text, ("pool",), values)

    desired = [(key, float(advice.advised)) for key, advice in found.items()]
    yield each("weir_pool_desired_instances", "Instances that the load needs, as the autoscaler advises", desired)
    held = [(key, float(point.held)) for key, point in latest.items()]
    yield each("weir_pool_held_requests", "Requests that wait in routers", held)
    full = [(key, advice.saturation) for key, advice in found.items()]
    yield each("weir_pool_saturation", "The highest of the load's measures, each by its target; 1 is on target", full)
    ages = [(key, max(0.0, now - point.at)) for key, point in latest.items()]
    yield each("weir_pool_load_age_seconds", "Age of the load that these come from", ages)
