"""Every parameter of a policy document, defined once; the parameters of a strategy are in the strategy's file."""

from router.policy.schema.failure_parameters import FAILURE
from router.policy.schema.parameter import Parameter
from router.policy.strategies import STRATEGIES

_KEEPS_SESSIONS = tuple(name for name, strategy in STRATEGIES.items() if strategy.affinity)
_AS_PUBLISHED = tuple(name for name, strategy in STRATEGIES.items() if strategy.as_published)
_LEAVES_FLOW = tuple(name for name, strategy in STRATEGIES.items() if not strategy.offloads)

STRATEGY_NAME = Parameter(
    name="strategy.name",
    title="Strategy",
    default="priced",
    choices=tuple(STRATEGIES),
    help="Another strategy chooses the instance; its parameters replace those of the old one.",
)

CLASSES = (
    Parameter(
        name="classes.heavy_new_tokens",
        title="Heavy threshold",
        unit="tokens",
        default=40_000,
        range=(256, 1_000_000),
        step=1_000,
        help="Fewer requests count as heavy.",
        metric="class.new_tokens_p90",
        up="fewer requests count as heavy",
        down="more requests count as heavy",
    ),
    Parameter(
        name="classes.warm_hit_share",
        title="Warm cached share",
        unit="share",
        default=0.5,
        range=(0.0, 1.0),
        step=0.05,
        help="Fewer requests count as warm because of their cached share; at 1 none does.",
        metric="class.hit_share_p50",
        up="fewer requests count as warm",
        down="more requests count as warm",
    ),
    Parameter(
        name="classes.warm_new_tokens",
        title="Warm threshold",
        unit="tokens",
        default=5_000,
        range=(0, 999_999),
        step=500,
        help="More short prompts count as warm, whatever their cached share.",
        metric="class.new_tokens_p90",
        up="more requests count as warm",
        down="fewer requests count as warm",
    ),
)

AFFINITY = (
    Parameter(
        name="affinity.ttl_s",
        title="Session is remembered for",
        unit="s",
        default=1_800,
        range=(1, 604_800),
        step=60,
        help="A session keeps its instance through longer pauses.",
        metric="session.reuse_gap_p90_s",
        up="sessions keep their instance through longer pauses",
        down="sessions lose their instance after shorter pauses",
        strategies=_KEEPS_SESSIONS,
    ),
    Parameter(
        name="affinity.break_ratio",
        title="Move the session when the work ratio exceeds",
        unit="ratio",
        default=2.0,
        range=(1.0, 100.0),
        step=0.1,
        help="Sessions stay on a busy instance for longer before they move to the least loaded one.",
        metric="instance.prefill_ratio",
        up="sessions stay on busier instances",
        down="sessions leave busy instances sooner",
        strategies=_KEEPS_SESSIONS,
    ),
    Parameter(
        name="affinity.break_floor_tokens",
        title="Keep the session below a work difference of",
        unit="tokens",
        default=10_000,
        range=(0, 10_000_000),
        step=1_000,
        help="A session moves only at a greater difference in work, whatever the ratio is.",
        metric="instance.prefill_tokens_max",
        up="sessions stay through greater differences in load",
        down="sessions move at smaller differences in load",
        strategies=_KEEPS_SESSIONS,
    ),
)


def _tier(tier: str, where: str, default: float) -> Parameter:
    return Parameter(
        name=f"cache.{tier}_weight",
        title=f"A cached token {where} counts as",
        unit="ratio",
        default=default,
        range=(0.0, 1.0),
        step=0.05,
        help=f"Requests follow prefixes {where} further; at 1 as far as those in GPU memory, at 0 not at all.",
        metric="class.hit_share_p50",
        up=f"follows prefixes {where} more",
        down=f"follows prefixes {where} less",
    )


LOAD = (
    Parameter(
        name="load.request_tokens",
        title="Fixed cost per request",
        unit="tokens",
        default=2_000,
        range=(0, 100_000),
        step=100,
        help="The number of requests on an instance counts more relative to its pending prefill.",
        metric="instance.running_max",
        up="requests count more as load",
        down="requests count less as load",
    ),
    Parameter(
        name="load.kv_usage_max",
        title="Overloaded above KV usage",
        unit="share",
        default=0.95,
        range=(0.05, 1.0),
        step=0.01,
        help="Fuller instances still get new requests while emptier ones exist; at 1 KV usage does not matter.",
        metric="instance.kv_usage_max",
        up="looser: fuller instances still get requests",
        down="stricter: instances count as overloaded when less full",
    ),
)

BY_PACE = Parameter(
    name="load.by_pace",
    title="Unequal instances",
    default="off",
    choices=("off", "on"),
    help="on: tokens to compute on an instance count less, the faster it computes prompts; off: as published.",
    strategies=_AS_PUBLISHED,
)

CACHE = (_tier("host", "in host memory", 0.8), _tier("disk", "on disk", 0.5))

FLOW = (
    Parameter(
        name="flow.heavy",
        title="Heavy requests are served",
        default="colocated",
        choices=("colocated", "offload"),
        help="colocated: prefill and decode on one instance; offload: prefill on the least loaded other, KV moves.",
        strategies=_LEAVES_FLOW,
    ),
    Parameter(
        name="flow.pull_gb_per_s",
        title="Pull from a peer, at this speed until one is measured",
        unit="GB/s",
        default=0.0,
        range=(0.0, 10_000.0),
        step=0.5,
        help="An instance that holds more of a prompt computes its rest and sends the KV where that takes less time; "
        "0: never.",
        strategies=_LEAVES_FLOW,
        up="looser: pulls are taken to be faster until measured",
        down="stricter: pulls are taken to be slower until measured",
    ),
)


def _queue(name: str, default: int) -> Parameter:
    return Parameter(
        name=f"admission.max_queue_{name}",
        title=f"Longest queue of {name} requests",
        unit="requests",
        default=default,
        range=(0, 100_000),
        step=10,
        help=f"More {name} requests queue in the router while no instance has capacity; fewer are refused.",
        metric="queue.waiting",
        up=f"looser: more {name} requests may wait",
        down=f"stricter: {name} requests are refused sooner",
    )


def _wait(name: str, default: float) -> Parameter:
    return Parameter(
        name=f"admission.max_wait_{name}_s",
        title=f"Longest wait of a {name} request",
        unit="s",
        default=default,
        range=(0.1, 3_600.0),
        step=5.0,
        help=f"A {name} request queues longer before it is refused.",
        metric="queue.wait_p99_s",
        up=f"looser: {name} requests wait longer for capacity",
        down=f"stricter: waiting {name} requests are refused sooner",
    )


def _share(name: str, default: int) -> Parameter:
    return Parameter(
        name=f"admission.share_{name}",
        title=f"Share of {name} requests",
        unit="ratio",
        default=default,
        range=(1, 100),
        step=1,
        help=f"While several classes queue, {name} requests get more of the capacity, by the ratio of the shares.",
        metric="queue.waiting",
        up=f"{name} requests get more of the capacity",
        down=f"{name} requests get less of the capacity",
    )


ADMISSION = (
    Parameter(
        name="admission.max_inflight_per_instance",
        title="Requests on one instance at most",
        unit="requests",
        default=512,
        range=(1, 100_000),
        step=8,
        help="An instance takes more requests before it counts as full.",
        metric="instance.running_max",
        up="looser: more requests on one instance",
        down="stricter: fewer requests on one instance",
    ),
    _queue("warm", 256),
    _queue("medium", 128),
    _queue("heavy", 64),
    _wait("warm", 60.0),
    _wait("medium", 120.0),
    _wait("heavy", 300.0),
    _share("warm", 4),
    _share("medium", 2),
    _share("heavy", 1),
    Parameter(
        name="admission.low_band_share",
        title="Capacity for low priority",
        unit="share",
        default=0.8,
        range=(0.0, 1.0),
        step=0.05,
        help="Requests of a priority below 0 fill an instance further, up to this share of its limit of requests.",
        metric="instance.running_max",
        up="requests of low priority get more of an instance",
        down="more of an instance is kept for other requests",
    ),
    Parameter(
        name="admission.band_max_wait_s",
        title="Wait that raises the priority",
        unit="s",
        default=60.0,
        range=(1.0, 3_600.0),
        step=5.0,
        help="Requests of low priority wait longer until they are raised by one, and by one more for each such wait.",
        metric="queue.wait_p99_s",
        up="stricter order by priority",
        down="requests of low priority are raised sooner",
    ),
    Parameter(
        name="admission.keyless_band_max",
        title="Highest priority without an API key",
        unit="bands",
        default=0,
        range=(-100, 100),
        step=1,
        help="Requests without an API key may ask for a higher priority.",
        up="requests without a key may go before more others",
        down="requests without a key go before fewer others",
    ),
    Parameter(
        name="admission.refuse_status",
        title="Status of a refusal",
        default=429,
        choices=(429, 503),
        help="429 asks clients to slow down, 503 reports that the service is unavailable; common clients retry both.",
    ),
    Parameter(
        name="admission.retry_after_s",
        title="Shortest Retry-After of a refusal",
        unit="s",
        default=1,
        range=(1, 3_600),
        step=1,
        help="Refused clients are asked to wait at least this long, and longer when the queue moves slowly.",
        up="refused clients come back later",
        down="refused clients come back sooner",
    ),
)

COMMON = (*CLASSES, *AFFINITY, *LOAD, BY_PACE, *CACHE, *FLOW, *FAILURE, *ADMISSION)

PARAMETERS: dict[str, Parameter] = {
    parameter.path: parameter
    for parameter in (STRATEGY_NAME, *(own for strategy in STRATEGIES.values() for own in strategy.parameters), *COMMON)
}

# Path prefixes of the state that all versions share in a pool: one admission queue, one breaker per instance, one table
# of sessions. During a delivery the live version's values apply to all requests.
OF_THE_POOL = (
    *("admission.share_", "admission.max_queue_", "admission.band_max_wait_s"),
    *("failure.breaker_", "affinity.ttl_s"),
)

OF_OFFLOADS = ("failure.offload_fallback", "failure.prefill_timeout_s")  # read only if the policy offloads


def belongs_to_pool(path: str) -> bool:
    return path.startswith(OF_THE_POOL)


__all__ = ["COMMON", "OF_OFFLOADS", "OF_THE_POOL", "PARAMETERS", "STRATEGY_NAME", "Parameter", "belongs_to_pool"]
