"""The answer of the Tutti page: one verdict, the tiers side by side, and pictures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from controlplane.evidence.systems.system import Answer, Axis, Chart, Fact, Series, Table, Value
from controlplane.evidence.systems.tiers.inputs import TierInputs, prices_of, profile_of, study_of
from fleet.counted import percent
from fleet.engine.tiers.devices import PAGE_BYTES, TierDevice
from fleet.engine.tiers.loading import crossover, effective_bytes_per_s, shortest_worth_loading
from fleet.engine.tiers.sizes import metadata_bytes, staging_tokens
from fleet.systems.tiers.ablation import ablations
from fleet.systems.tiers.published import TITLES
from fleet.systems.tiers.queueing import Served, middle
from fleet.systems.tiers.serving import TieredEngine, job
from fleet.systems.tiers.slack import CONTROLLED, INPUTS, PREFIXES, commands_at_a_time, slack
from fleet.systems.tiers.study import Cost, Shares, Study, Wear, cost_of, wear_of
from fleet.systems.tiers.unanswered import (
    LINK_BYTES_PER_S,
    PROFILED,
    events_share,
    of_another_node,
    profiling_s,
    reduced_bytes,
)

CONTEXTS = tuple(1024 << power for power in range(1, 9))  # 2K to 256K tokens
CURVE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)  # points of a picture, as shares of its highest rate
PROMPT, CACHED = 131_072, (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.95, 0.99)
FULL = 1.0  # busy share that cannot be sustained: the queue grows as long as the load lasts


@dataclass(frozen=True)
class ServedTier:
    """One tier under the load."""

    name: str
    served: Served  # run with the median TTFT
    runs_s: tuple[float, ...]  # mean TTFT of each run, sorted
    shares: Shares
    capacity: float
    cost: Cost
    wear: Wear | None


def answer(inputs: TierInputs) -> Answer:
    study = study_of(inputs)
    rows = {name: _row(inputs, study, name) for name in study.tiers}
    return Answer(
        _verdict(inputs, rows),
        _facts(inputs, study, rows[inputs.tier]),
        tuple(_charts(inputs, study, rows)),
        (
            _comparison(rows),
            _placement(study, rows),
            *_slack(inputs, study),
            *_reduces(inputs, study),
            *_left_out(inputs, study),
        ),
        tuple(_cautions(inputs, study, rows[inputs.tier])),
    )


def _row(inputs: TierInputs, study: Study, name: str) -> ServedTier:
    shares, runs = study.shares(name), study.served(name, inputs.rate)
    gpus = float(inputs.tp)
    written = inputs.rate * (shares.new_tokens + inputs.output_tokens) * study.engine.layout.bytes_per_token
    device = study.tiers[name].device
    wears = device is not None and device.endurance
    drives = inputs.drive_tb * 1e12, inputs.amplification, inputs.rated_dwpd, inputs.rated_years
    return ServedTier(
        name,
        middle(runs),
        tuple(sorted(run.ttft_s for run in runs)),
        shares,
        study.capacity(name, inputs.slo_s),
        cost_of(study, name, prices_of(inputs), gpus, inputs.dram_gb, inputs.ssd_gb),
        wear_of(written, *drives) if wears else None,
    )


def _verdict(inputs: TierInputs, rows: dict[str, ServedTier]) -> str:
    row, title = rows[inputs.tier], TITLES[inputs.tier]
    if row.served.busy_share >= FULL:
        busy = f"its engine would be busy {percent(row.served.busy_share)} of the time"
        return f"{title} cannot sustain {inputs.rate:g} requests/s: {busy}."
    time = f"{title} answers {inputs.rate:g} requests/s with a mean TTFT of {row.served.ttft_s:.2f} s"
    if inputs.tier == "hbm":
        return f"{time}; it keeps {inputs.slo_s:g} s up to {row.capacity:.2f} requests/s."
    pays = row.cost.saves > row.cost.must_save
    money = f"cuts the engine's time by {row.cost.saves:.2f}× and must cut it by {row.cost.must_save:.2f}×"
    return f"{time} and {'pays for itself' if pays else 'does not pay for itself'}: it {money}."


def _facts(inputs: TierInputs, study: Study, row: ServedTier) -> tuple[Fact, ...]:
    served, shares, cost = row.served, row.shares, row.cost
    device = study.tiers[row.name].device
    bubble = shares.bubble_s / shares.busy_s
    found = [
        Fact("Mean TTFT", served.ttft_s, "s", f"median of {inputs.runs} runs of {inputs.requests:,} requests"),
        Fact("Rate within the limit", row.capacity, "requests/s", f"mean TTFT up to {inputs.slo_s:g} s"),
        Fact("Bubble", bubble * 100, "%", "of the engine's time: the GPU waits for a load"),
        Fact("Hits in HBM", shares.hbm * 100, "%", "of the prompt tokens"),
        Fact("Hits in the tier", shares.tier * 100, "%", "of the prompt tokens"),
        Fact(
            "Cost", cost.per_million, "$ per million tokens", f"of prompts, at full use; ${cost.per_hour:.2f} an hour"
        ),
        Fact("Backlog", served.backlog_bytes / 1e9, "GB", "the most that waited to be written"),
    ]
    if row.wear is not None:
        rated = f"rated for {inputs.rated_dwpd:g} over {inputs.rated_years:g} years"
        found.append(Fact("Drive writes a day", row.wear.writes_per_day, "", rated))
        found.append(Fact("Life of the drives", row.wear.years, "years", "at this rate, all day"))
    return (*found, *_memory_facts(inputs, study, device))


def _memory_facts(inputs: TierInputs, study: Study, device: TierDevice | None) -> list[Fact]:
    layout = study.engine.layout
    pool = layout.bytes(study.engine.hbm_tokens)
    lists = [f"{kind.upper()} {metadata_bytes(kind, pool) / 2**20:,.0f} MiB" for kind in ("prp", "sgl")]
    found = [Fact("Address lists", ", ".join(lists), "", f"for a pool of {pool / 2**30:.1f} GiB per GPU")]
    if device is not None and device.staging_share:
        longest = staging_tokens(device, layout, inputs.free_gb * 1e9)
        found.append(Fact("Longest prefix that it can load", longest, "tokens", "its buffers lie outside the pool"))
    if device is not None and device.contention == "slack":
        each = f"one pass for each input of {PROFILED[0]} to {PROFILED[-1]:,} tokens, up to the longest document"
        found.append(Fact("Profiling of the slack", profiling_s(study.engine.law, inputs.longest), "s", each))
        share = events_share(study.engine.law, layout.layers, 1e-6)
        per_event = "of its time for each µs that one takes, two to a layer"
        found.append(Fact("Events of a decode step", share * 100, "%", per_event))
    return found


def _charts(inputs: TierInputs, study: Study, rows: dict[str, ServedTier]) -> list[Chart]:
    rates = [share * _highest(inputs, rows) for share in CURVE]
    return [
        _ttft_by_rate(inputs, study, rates),
        _parts(rows),
        _crossovers(study),
        *([_contention(inputs, study, rates)] if study.tiers[inputs.tier].device else []),
        _bandwidths(study),
        _by_share(study),
    ]


def _highest(inputs: TierInputs, rows: dict[str, ServedTier]) -> float:
    return max(1.5 * inputs.rate, 1.1 * max(row.capacity for row in rows.values()))


def _ttft_by_rate(inputs: TierInputs, study: Study, rates: list[float]) -> Chart:
    lines = [
        Series(TITLES[name], tuple(rates), tuple(study.ttft_s(name, rate) for rate in rates)) for name in study.tiers
    ]
    limit = Series("Limit", (rates[0], rates[-1]), (inputs.slo_s, inputs.slo_s), dashed=True)
    return Chart(
        "Mean TTFT against arrivals",
        Axis("Arrivals", "requests/s"),
        Axis("Mean TTFT", "s", log=True),
        (*lines, limit),
        note="Past saturation the queue is open: the value grows with the length of the run.",
    )


def _parts(rows: dict[str, ServedTier]) -> Chart:
    titles = tuple(TITLES[name] for name in rows)
    parts = (
        ("Queue", "queue_s"),
        ("Writes in the way", "writes_s"),
        ("Loading that is not hidden", "exposed_s"),
        ("Computing", "compute_s"),
    )
    lines = (Series(title, titles, tuple(getattr(row.served, of) for row in rows.values())) for title, of in parts)
    return Chart("Where the mean TTFT goes", Axis("Tier"), Axis("Time", "s"), tuple(lines), "stacked")


def _below(study: Study) -> dict[str, TierDevice]:
    return {name: tier.device for name, tier in study.tiers.items() if tier.device is not None}


def _crossovers(study: Study) -> Chart:
    engine = study.engine
    lines = (
        Series(
            TITLES[name],
            CONTEXTS,
            tuple(
                crossover(engine.law, device, engine.layout, size, floor_s=engine.floor_s) * 100 for size in CONTEXTS
            ),
        )
        for name, device in _below(study).items()
    )
    return Chart(
        "Cached share at which loading takes as long as computing",
        Axis("Prompt", "tokens", log=True),
        Axis("Share of the prompt", "%"),
        tuple(lines),
        note="Below a line the GPU hides the load; above it the drives set the pace.",
    )


def _contention(inputs: TierInputs, study: Study, rates: list[float]) -> Chart:
    kinds = {"none": "Reads undisturbed", "naive": "Naive writes", "slack": "Writes in the slack"}
    lines = (
        Series(title, tuple(rates), tuple(study.ttft_s(inputs.tier, rate, kind) for rate in rates))
        for kind, title in kinds.items()
    )
    return Chart(
        f"Reads beside writes: {TITLES[inputs.tier]}",
        Axis("Arrivals", "requests/s"),
        Axis("Mean TTFT", "s", log=True),
        tuple(lines),
    )


def _bandwidths(study: Study) -> Chart:
    layout = study.engine.layout
    lines = (
        Series(TITLES[name], CONTEXTS, tuple(effective_bytes_per_s(device, layout, size) / 1e9 for size in CONTEXTS))
        for name, device in _below(study).items()
    )
    return Chart("Rate of a load", Axis("Prefix", "tokens", log=True), Axis("Rate per GPU", "GB/s"), tuple(lines))


def _by_share(study: Study) -> Chart:
    """Compare tiers at equal hit rates, starting from zero."""
    engine = study.engine
    devices = {TITLES[name]: device for name, device in _below(study).items()} | of_another_node(engine.layout)
    lines = (
        Series(
            title,
            tuple(100 * share for share in CACHED),
            tuple(_alone_s(engine, device, round(share * PROMPT)) for share in CACHED),
        )
        for title, device in devices.items()
    )
    return Chart(
        f"TTFT of {PROMPT:,} tokens by their share in the tier",
        Axis("In the tier", "%"),
        Axis("TTFT", "s", log=True),
        tuple(lines),
        note="One prompt on an idle engine: at equal hits only the tier differs.",
    )


def _alone_s(engine: TieredEngine, device: TierDevice, cached: int) -> float:
    one = job(engine, device, PROMPT, 0, cached)
    return engine.api_s + engine.tokenize_s * PROMPT + one.busy_s


COMPARED: tuple[tuple[str, Callable[[ServedTier], Value]], ...] = (
    ("Tier", lambda row: TITLES[row.name]),
    ("Mean TTFT, s", lambda row: row.served.ttft_s),
    ("Its runs, s", lambda row: f"{row.runs_s[0]:.2f} to {row.runs_s[-1]:.2f}"),
    ("Rate within the limit, 1/s", lambda row: row.capacity),
    ("Engine busy, %", lambda row: row.served.busy_share * 100),
    ("Bubble, %", lambda row: row.shares.bubble_s / row.shares.busy_s * 100),
    ("$ an hour", lambda row: row.cost.per_hour),
    ("$ per million tokens", lambda row: row.cost.per_million),
    ("Must cut time by", lambda row: row.cost.must_save),
    ("Cuts time by", lambda row: row.cost.saves),
    ("Drive writes a day", lambda row: row.wear.writes_per_day if row.wear else None),
    ("Life, years", lambda row: row.wear.years if row.wear else None),
)


def _comparison(rows: dict[str, ServedTier]) -> Table:
    return Table(
        "The tiers under this load",
        tuple(title for title, _ in COMPARED),
        tuple(tuple(value(row) for _, value in COMPARED) for row in rows.values()),
        "A tier pays when its hits cut the engine's time by more than its price adds: 1 + tier $ / GPU $. "
        "Cost at full use, of prompt tokens.",
    )


def _placement(study: Study, rows: dict[str, ServedTier]) -> Table:
    columns = ("Tier", "Hits in HBM, %", "Hits in the tier, %", "Computed, tokens", "Tier holds, million tokens")
    return Table(
        "Hits by tier",
        (*columns, "Shortest prefix worth loading, tokens"),
        tuple(_placed(study, row) for row in rows.values()),
        "Shares of the prompt tokens. Worth loading: loading takes less time than computing the same tokens.",
    )


def _placed(study: Study, row: ServedTier) -> tuple[Value, ...]:
    tier, engine = study.tiers[row.name], study.engine
    shortest = None
    if tier.device is not None:
        shortest = shortest_worth_loading(engine.law, tier.device, engine.layout, floor_s=engine.floor_s)
    holds = tier.tokens / 1e6 if tier.device else None
    return (TITLES[row.name], row.shares.hbm * 100, row.shares.tier * 100, row.shares.new_tokens, holds, shortest)


def _slack(inputs: TierInputs, study: Study) -> Iterator[Table]:
    """Yield the slack of a tier whose writes wait for reads."""
    device, engine = study.tiers[inputs.tier].device, study.engine
    if device is None or device.contention != "slack":
        return
    found = [
        slack(engine.law, device, engine.layout, new, prefix, engine.floor_s) for new in INPUTS for prefix in PREFIXES
    ]
    rows = tuple(
        (
            f"{one.new:,} after {one.prefix:,}",
            one.compute_s * 1e3,
            one.read_s * 1e3,
            one.free_s * 1e3,
            one.write_bytes / 1e6,
            one.control_blocks,
        )
        for one in found
    )
    objects, pages = (
        commands_at_a_time(device.read_bytes_per_s, size) for size in (engine.layout.object_bytes, float(PAGE_BYTES))
    )
    yield Table(
        "Slack of a layer",
        ("New tokens and prefix", "Computes, ms", "Reads, ms", "Left, ms", "Writes that fit, MB", "Control blocks"),
        rows,
        "All layers are alike; the publication does not print its table. Reads come first, and where none is left a "
        f"layer waits for them. The drives' rate takes {objects:.3g} commands at a time for whole objects, "
        f"{pages:.3g} for pages of 4 KiB: one takes 14 µs alone, fitted to 0.29 GB/s. An I/O control block has "
        f"{CONTROLLED:,} commands, one for each thread of a multiprocessor, which computes nothing meanwhile.",
    )


def _reduces(inputs: TierInputs, study: Study) -> Iterator[Table]:
    """Yield how long a layer of tensor parallel would wait if its reductions used the link of the drives."""
    device, engine, found = study.tiers[inputs.tier].device, study.engine, profile_of(inputs)
    if device is None or found.tp == 1 or not found.sizes.hidden:
        return
    rows = []
    for new in INPUTS:
        for prefix in PREFIXES:
            one = slack(engine.law, device, engine.layout, new, prefix, engine.floor_s)
            reads = engine.layout.bytes(prefix) / engine.layout.layers
            reduces = reduced_bytes(found.sizes.hidden, found.tp, new)
            link_s = max(one.read_s, reads / LINK_BYTES_PER_S) + reduces / LINK_BYTES_PER_S
            row = reads / 1e6, reduces / 1e6, link_s * 1e3, one.compute_s * 1e3
            rows.append((f"{new:,} after {prefix:,}", *row, "yes" if link_s <= one.compute_s else "no"))
    yield Table(
        "Reads and reduces on one link",
        ("New tokens and prefix", "Reads, MB", "Reduces, MB", "Link, ms", "Computes, ms", "Hidden"),
        tuple(rows),
        f"A layer and GPU, if reduces took the {LINK_BYTES_PER_S / 1e9:.0f} GB/s of its link to the host (measured on "
        "an H200) before the reads, instead of NVLink.",
    )


def _left_out(inputs: TierInputs, study: Study) -> Iterator[Table]:
    """Compare a tier that the GPU controls with variants that each lack one part of its design."""
    tier = study.tiers[inputs.tier]
    if tier.device is None or tier.device.metadata != "sgl":
        return
    devices = ablations(tier.device, study.engine.layout)
    without = {name: replace(tier, device=device) for name, device in devices.items()}
    ablated = Study(study.engine, without, study.load, study.runs, study.contention)
    served = {"as it is": study.middle(inputs.tier, inputs.rate)}
    served |= {name: ablated.middle(name, inputs.rate) for name in without}
    yield Table(
        "With a design left out",
        ("Left out", "Mean TTFT, s", "Engine busy, %", "Loading that is not hidden, s", "Writes in the way, s"),
        tuple((name, run.ttft_s, run.busy_share * 100, run.exposed_s, run.writes_s) for name, run in served.items()),
        "PRP lists: a command for each page of 4 KiB; published: 0.29 GB/s of PRP against 8.9 of SGL. "
        "Above 100 % the queue is open."
        + (
            " The engine's least pass of a load by layers is longer than it computes, so loading before computing is "
            "faster."
            if served["no overlap by layers"].ttft_s < served["as it is"].ttft_s
            else ""
        ),
    )


def _cautions(inputs: TierInputs, study: Study, row: ServedTier) -> list[str]:
    found = []
    if row.served.busy_share >= FULL:
        found.append("The load is not sustained: times grow with the length of the run.")
    device = study.tiers[row.name].device
    if device is not None and device.staging_share:
        longest = staging_tokens(device, study.engine.layout, inputs.free_gb * 1e9)
        over = [job for run in study.work(row.name) for job in run if job.far > longest]
        share = len(over) / (inputs.runs * inputs.requests)
        if over:
            found.append(
                f"{percent(share, '.1f')} of the requests load more than the buffers of GDS hold; "
                "the model serves them anyway."
            )
    if row.wear is not None and row.wear.years < inputs.rated_years:
        found.append(f"The drives are worn out in {row.wear.years:.1f} years, not {inputs.rated_years:g}.")
    return found
