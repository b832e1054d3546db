"""Adaptive prefill offload: which requests of a trace would be moved, at what cost, and experiments that try it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from controlplane.common.computing import computed
from controlplane.evidence.experiments.matrix.presets import FLEET_OF_DESIGN, connectors
from controlplane.evidence.systems.offload_trace import ClassifiedTrace, classified, read
from controlplane.evidence.systems.system import (
    Answer,
    Axis,
    Chart,
    Fact,
    Figure,
    Group,
    Link,
    Play,
    Playable,
    PoolFacts,
    Preset,
    Series,
    System,
    Table,
    experiment_link,
)
from controlplane.evidence.traces import generated, library
from controlplane.evidence.traces.types import BadTrace
from fleet.counted import percent
from fleet.engine.law import law_of
from fleet.engine.profiles import FITS, PEAKS, Profile, UnknownProfile, kv_blocks, profile
from fleet.kinds.options.option import option
from fleet.selectors import store_pool
from fleet.systems.offload import (
    TRANSFER_RATES,
    ClassShare,
    Thresholds,
    decodes_that_pay,
    resident_tokens,
    shares,
    transfer_s,
)
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import Problem

MODELS = tuple(sorted({model for _, model, _ in FITS}))
ORDERS = ("heavy_first", "session_first")
LARGEST_TRACE = 8 << 20  # bytes; a page would take too long to read a larger trace
CURVE = (2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000)  # thresholds of the curve
SIZES = (1_000, 5_000, 10_000, 20_000, 30_000, 60_000, 100_000)  # new tokens in each row
BLOCK = 16


@dataclass(frozen=True)
class OffloadInputs:
    trace: str = option("agentic-demo", "Trace", "Its name on the page Traces; recorded:POOL for live traffic.")
    heavy_new_tokens: int = option(
        20_000, "Heavy threshold", "New tokens after the cache.", unit="tokens", range=(256, 1_000_000)
    )
    warm_hit_share: float = option(0.5, "Warm cached share", "Of the prompt.", range=(0, 1))
    warm_new_tokens: int = option(5_000, "Warm threshold", "New tokens.", unit="tokens", range=(0, 999_999))
    order: str = option(
        "heavy_first", "Order of the rules", "heavy_first: ours. session_first: the design's.", choices=ORDERS
    )
    instances: int = option(8, "Instances", "Of the pool.", range=(2, 512))
    prefill_instances: int = option(6, "Prefill instances", "Of the static pool; the others decode.", range=(1, 511))
    transfer_gb_s: float = option(
        9.7, "Transfer rate", "Of KV between two instances.", unit="GB/s", range=(0.01, 1_000)
    )
    setup_ms: float = option(5.0, "Set-up of a transfer", "Of each one.", unit="ms", range=(0, 60_000))

    gpu: str = option("h100_sxm", "GPU", "Its arithmetic and memory.", choices=tuple(PEAKS))
    model: str = option("Llama-3.1-8B", "Model", "Its sizes.", choices=MODELS)
    tp: int = option(1, "Tensor parallel", "Of an instance.", unit="GPUs", range=(1, 64))
    kv_tokens: int = option(None, "KV of an instance", "Empty: what fits.", unit="tokens", range=(1_000, 100_000_000))
    tpot_ms: float = option(
        30.0, "Time per output token", "How long KV stays while decoding.", unit="ms", range=(0.1, 10_000)
    )
    load_factor: float = option(1.0, "Request-rate multiplier", "On the arrivals of the trace.", range=(0.01, 1_000))
    requests: int = option(5_000, "Requests", "The first of the trace.", range=(1, 20_000))


GROUPS = (Group("Engine", ("gpu", "model", "tp", "kv_tokens", "tpot_ms")), Group("Load", ("load_factor", "requests")))
PRESETS: dict[str, Preset] = {
    "T = 20,000": {},
    "T = 10,000": {"heavy_new_tokens": 10_000},
    "T = 40,000": {"heavy_new_tokens": 40_000},
    "The design's order": {"order": "session_first"},
    "3 GB/s": {"transfer_gb_s": 3.0},
    "40 GB/s": {"transfer_gb_s": 40.0},
    "The author's fleet": {
        "trace": "agentic-design",
        "gpu": str(FLEET_OF_DESIGN["gpu"]),
        "model": str(FLEET_OF_DESIGN["model_profile"]),
    },
}
NOTES = (
    "The design's table looks at warm before heavy, its code at heavy alone; the code looks at the session before "
    "either. strategy.order offers both orders: heavy_first and session_first.",
    "The design expects 30 to 40 % of KV in use on eight instances. Its own 97.1 % on two decode instances is 24 % "
    "on eight: the rest would be prefixes that stay cached.",
)


def rules(inputs: OffloadInputs) -> list[Problem]:
    problems = []
    if inputs.prefill_instances >= inputs.instances:
        allowed = f"1 to {inputs.instances - 1}: at least one instance decodes"
        problems.append(
            Problem("prefill_instances", inputs.prefill_instances, "no instance is left to decode", allowed)
        )
    try:
        _profile(inputs)
    except UnknownProfile as error:
        problems.append(Problem("model", inputs.model, "has no constants here", str(error)))
    return problems + _trace_problems(inputs.trace, inputs.requests)


def _trace_problems(name: str, count: int) -> list[Problem]:
    known = {entry.name: entry for entry in library.entries()}
    if name not in known:
        return [Problem("trace", name, "there is no such trace", f"one of {', '.join(known)}")]
    too_large = (
        "too large for a page",
        f"a trace of at most {LARGEST_TRACE >> 20} MiB; start an experiment for a larger one",
    )
    if known[name].bytes > LARGEST_TRACE:
        return [Problem("trace", name, *too_large)]
    try:
        _trace(name, count)
    except _TooLarge:
        return [Problem("trace", name, *too_large)]
    except (BadTrace, library.NoSuchTrace) as error:
        return [Problem("trace", name, str(error), "a trace that can be read")]
    return []


def _profile(inputs: OffloadInputs) -> Profile:
    return profile(inputs.gpu, inputs.model, inputs.tp)


class _TooLarge(Exception):
    pass


def _trace(name: str, count: int) -> ClassifiedTrace:
    """Read the trace. Raise BadTrace, NoSuchTrace, Busy."""
    if name in generated.BUILT_IN:
        return classified(generated.BUILT_IN[name]().requests[:count])
    data = library.content(name)
    if len(data) > LARGEST_TRACE:  # the size of recorded traffic is known only after reading it
        raise _TooLarge
    trace = read(data, count) if len(data) <= library.SMALL else computed(read, data, count)
    if isinstance(trace, BadTrace):
        raise trace
    return trace


def _classified(inputs: OffloadInputs) -> ClassifiedTrace:
    trace = _trace(inputs.trace, inputs.requests)
    return replace(trace, rate=trace.rate * inputs.load_factor)


def _limits(inputs: OffloadInputs, *, heavy: int | None = None, order: str = "") -> Thresholds:
    return Thresholds(
        heavy or inputs.heavy_new_tokens,
        inputs.warm_hit_share,
        inputs.warm_new_tokens,
        (order or inputs.order) == "session_first",
    )


@dataclass(frozen=True)
class OffloadFound:
    inputs: OffloadInputs
    trace: ClassifiedTrace
    shares: dict[str, ClassShare]
    kv_bytes: float
    kv_tokens: float  # KV capacity per instance
    resident: float  # KV tokens of all requests that decode at the same time
    moved_s: float  # transfer time of a heavy prompt's KV

    def used(self, decoding: int) -> float:
        """Return the share of the KV in use if this many instances decode; above 1, requests wait for KV."""
        return self.resident / (decoding * self.kv_tokens)


def answer(inputs: OffloadInputs) -> Answer:
    engine, trace = _profile(inputs), _classified(inputs)
    found_shares = shares(trace.requests, _limits(inputs))
    kv_bytes = engine.sizes.kv_bytes_per_token
    new = found_shares["heavy"].mean_new_tokens
    found = OffloadFound(
        inputs,
        trace,
        found_shares,
        kv_bytes,
        float(inputs.kv_tokens or kv_blocks(engine, BLOCK) * BLOCK),
        resident_tokens(trace.requests, trace.rate, inputs.tpot_ms / 1e3),
        transfer_s(new, kv_bytes, inputs.transfer_gb_s, inputs.setup_ms / 1e3),
    )
    return Answer(
        _verdict(found),
        _facts(found),
        (_class_chart(found), _threshold_chart(found), _wall_chart(found), _transfer_chart(found)),
        (_transfer_table(found),),
        tuple(_cautions(found)),
        tuple(_links(inputs)),
    )


def _verdict(found: OffloadFound) -> str:
    heavy, inputs = found.shares["heavy"], found.inputs
    if not heavy.requests:
        return (
            f"No request of {inputs.trace} is heavy from {inputs.heavy_new_tokens:,} new tokens on: nothing would move."
        )
    decoding = inputs.instances - inputs.prefill_instances
    static = found.used(decoding)
    wall = "more than there is" if static > 1 else percent(static)
    return (
        f"{percent(heavy.requests)} of the requests are heavy and carry {percent(heavy.new_tokens)} of the new tokens: "
        f"only they would move, while {decoding} static decode instances would use {wall} of their KV."
    )


def _facts(found: OffloadFound) -> tuple[Fact, ...]:
    inputs, heavy = found.inputs, found.shares["heavy"]
    law = law_of(_profile(inputs))
    pays = decodes_that_pay(law, heavy, found.moved_s) if heavy.requests else None
    decoding = inputs.instances - inputs.prefill_instances
    meant = {"heavy": f"from {inputs.heavy_new_tokens:,} new tokens on"}
    return (
        *(
            Fact(name.capitalize(), each.requests * 100, "% of requests", meant.get(name, ""))
            for name, each in found.shares.items()
        ),
        Fact("Rate", found.trace.rate, "requests/s", f"of {len(found.trace.requests):,} requests"),
        Fact(
            "Transfer of a heavy prompt",
            found.moved_s if heavy.requests else None,
            "s",
            f"at {inputs.transfer_gb_s:g} GB/s",
        ),
        Fact("An offload pays above", pays, "decodes", "beside the prefill: their stalls exceed the transfer"),
        Fact(
            "KV in use, static",
            found.used(decoding) * 100,
            "%",
            f"of each of {decoding} decode instances; over 100: they wait",
        ),
        Fact(
            "KV in use, adaptive", found.used(inputs.instances) * 100, "%", f"of each of {inputs.instances} instances"
        ),
    )


def _class_chart(found: OffloadFound) -> Chart:
    names = tuple(found.shares)
    lines = []
    for order in ORDERS:
        by_class = shares(found.trace.requests, _limits(found.inputs, order=order))
        lines.append(Series(f"Requests, {order}", names, tuple(each.requests * 100 for each in by_class.values())))
    tokens = tuple(each.new_tokens * 100 for each in found.shares.values())
    lines.append(Series("New tokens", names, tuple(tokens)))
    return Chart("Classes of the trace", Axis("Class"), Axis("Share", "%"), tuple(lines), "bars")


def _threshold_chart(found: OffloadFound) -> Chart:
    curve = tuple(sorted({*CURVE, found.inputs.heavy_new_tokens}))
    by_threshold = [shares(found.trace.requests, _limits(found.inputs, heavy=limit))["heavy"] for limit in curve]
    return Chart(
        "Heavy requests against the threshold",
        Axis("Heavy threshold", "tokens", log=True),
        Axis("Share", "%"),
        (
            Series("Requests", curve, tuple(each.requests * 100 for each in by_threshold)),
            Series("New tokens", curve, tuple(each.new_tokens * 100 for each in by_threshold)),
        ),
    )


def _wall_chart(found: OffloadFound) -> Chart:
    counts = tuple(range(1, found.inputs.instances + 1))
    used = Series("KV in use", counts, tuple(found.used(count) * 100 for count in counts))
    wall = Series("All of it", (counts[0], counts[-1]), (100.0, 100.0), dashed=True)
    return Chart(
        "KV of each instance that decodes",
        Axis("Instances that decode"),
        Axis("In use", "%", log=True),
        (used, wall),
        note="Above the line requests wait for KV. All instances of an adaptive pool decode.",
    )


def _transfer_chart(found: OffloadFound) -> Chart:
    setup = found.inputs.setup_ms / 1e3
    law = law_of(_profile(found.inputs))
    lines = [
        Series(
            f"Transfer at {rate:g} GB/s", SIZES, tuple(transfer_s(size, found.kv_bytes, rate, setup) for size in SIZES)
        )
        for rate in TRANSFER_RATES
    ]
    prefill = Series("Prefill", SIZES, tuple(law.prefill_s(size) for size in SIZES))
    return Chart(
        "Moving a cold prompt against computing it",
        Axis("Prompt", "tokens", log=True),
        Axis("Time", "s", log=True),
        (*lines, prefill),
    )


def _transfer_table(found: OffloadFound) -> Table:
    heavy, law = found.shares["heavy"], law_of(_profile(found.inputs))
    rows = []
    for rate in sorted({*TRANSFER_RATES, found.inputs.transfer_gb_s}):
        moved = transfer_s(heavy.mean_new_tokens, found.kv_bytes, rate, found.inputs.setup_ms / 1e3)
        known = heavy.requests > 0
        rows.append((rate, moved if known else None, decodes_that_pay(law, heavy, moved) if known else None))
    return Table(
        "A heavy prompt of mean length",
        ("Transfer rate, GB/s", "Transfer, s", "Pays above, decodes beside it"),
        tuple(rows),
        "decodes · T_prefill(new) > setup + new KV / rate",
    )


def _cautions(found: OffloadFound) -> Iterator[str]:
    yield "Cached tokens are those of an unbounded prefix cache: real ones hold less, and more requests are heavy."
    if found.used(found.inputs.instances) > 1:
        yield "Even with every instance decoding, the requests of this trace do not fit into KV at once: they queue."
    if not store_pool():
        yield "The experiments leave out the Mooncake store: the fleet has no pool of the kind sim-store."
    if len(found.trace.requests) < found.inputs.requests and len(found.trace.requests) < 100:
        yield f"The trace has only {len(found.trace.requests)} requests."


@dataclass(frozen=True)
class TwinArm:
    """An arm of an experiment, in the format of the experiment's form."""

    name: str
    strategy: str
    overrides: Mapping[str, float | str]
    fleet: Mapping[str, object]


def _comparisons(inputs: OffloadInputs, shared: Mapping[str, object]) -> Iterator[tuple[str, list[TwinArm]]]:
    """Yield (title, arms) of the design's experiments. `shared` has engine options for all arms."""
    limits: dict[str, float | str] = {
        "classes.heavy_new_tokens": inputs.heavy_new_tokens,
        "classes.warm_hit_share": inputs.warm_hit_share,
        "classes.warm_new_tokens": inputs.warm_new_tokens,
    }

    def arm(
        name: str, strategy: str, changes: Mapping[str, float | str] | None = None, **fleet: Mapping[str, object]
    ) -> TwinArm:
        whole = {"replicas": inputs.instances, **fleet, "engine": {**shared, **fleet.get("engine", {})}}
        return TwinArm(name, strategy, limits | dict(changes or {}), whole)

    nixl = {**dict(connectors(inputs.transfer_gb_s, ""))["NIXL"]["engine"], "kv_setup_ms": inputs.setup_ms}
    ordered = {"strategy.order": inputs.order}
    decoding, split = inputs.instances - inputs.prefill_instances, {"prefill_instances": inputs.prefill_instances}
    arms = [arm("A cache-aware", "cache_aware"), arm("B routing only", "adaptive_v1", ordered)]
    arms.append(arm("D offload", "adaptive_offload", ordered, engine=nixl))
    arms.append(arm(f"static {inputs.prefill_instances}P{decoding}D", "round_robin_pd", engine={**split, **nixl}))
    yield "A, B and D beside the static pool", arms
    thresholds = (10_000, 20_000, 40_000)
    arms = [arm(f"T {limit}", "adaptive_v1", {**ordered, "classes.heavy_new_tokens": limit}) for limit in thresholds]
    yield "C: the threshold at 10,000, 20,000 and 40,000 new tokens", arms
    by_connector: dict[str, list[TwinArm]] = {}
    for rate in TRANSFER_RATES:
        for over, fleet in connectors(rate, store_pool()):
            made = arm(f"D {rate:g} GB per s", "adaptive_offload", ordered, **fleet)
            by_connector.setdefault(over, []).append(made)
    for over, rates in by_connector.items():
        yield f"D at 3, 9.7 and 40 GB/s over {over}", rates
    orders = [arm(order, "adaptive_v1", {"strategy.order": order}) for order in ORDERS]
    yield "Both orders of the rules", orders


def _links(inputs: OffloadInputs) -> Iterator[Link]:
    """Yield links to the forms of these experiments, in which the pool is chosen."""
    for title, arms in _comparisons(inputs, {}):
        yield experiment_link(title, _body(inputs, title, arms))


def plays(inputs: OffloadInputs, pools: Sequence[PoolFacts]) -> Iterator[Play]:
    """Yield these experiments for each simulated pool, with the page's engines."""
    shared: JsonObject = {"gpu": inputs.gpu, "model_profile": inputs.model, "tp": inputs.tp}
    if inputs.kv_tokens:
        shared["kv_blocks"] = inputs.kv_tokens // BLOCK
    for pool in pools:
        for title, arms in _comparisons(inputs, shared) if pool.kind == "sim" else ():
            yield Play(title, pool.name, {**_body(inputs, title, arms), "pool": pool.name})


def _body(inputs: OffloadInputs, title: str, arms: list[TwinArm]) -> JsonObject:
    return {
        "name": f"Offload: {title}"[:120],
        "trace": inputs.trace,
        "mode": "twin",
        "load_factor": inputs.load_factor,
        "arms": [asdict(arm) for arm in arms],
    }


def figures() -> tuple[Figure, ...]:
    title, source = "KV of an instance, two decode instances at 97.1 %, on eight", "design, 2.5"
    shares_of = "1 of 8 instances instead of 1 of 2 decode instances"
    return (
        Figure(title, 35, 97.1 * 2 / 8, "%", "arithmetic", source, "published: 30 to 40"),
        Figure("Requests whose KV an instance holds, of eight", 12.5, 100 / 8, "%", "arithmetic", source, shares_of),
    )


OFFLOAD = System(
    "offload",
    "Adaptive prefill offload",
    "Every instance prefills and decodes; only heavy prompts move. Which prompts of a trace would move, and does it "
    "pay?",
    OffloadInputs,
    PRESETS,
    answer,
    figures,
    GROUPS,
    rules,
    NOTES,
    links=(Link("Matrix: the design on its author's fleet", "/experiments/new?preset=own-fleet"),),
    playable=Playable(
        "Play the design in the twin", plays, "It takes a pool of the kind sim, as examples/fleet-demo.yaml has."
    ),
    beside=False,
)
