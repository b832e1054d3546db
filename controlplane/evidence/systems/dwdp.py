"""The page on DWDP versus DEP: whether the copy of experts is hidden, the gain, and the number of context GPUs that it
takes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from controlplane.common.figures import ms
from controlplane.evidence.systems.dwdp_inputs import GIGA, DwdpInputs, demand_of, phase_of, rules
from controlplane.evidence.systems.dwdp_play import PLAYABLE, curve_chart, curve_of, curve_table, loop_table
from controlplane.evidence.systems.system import (
    Answer,
    Axis,
    Chart,
    Fact,
    Figure,
    Group,
    Series,
    System,
    Table,
    Value,
    experiment_link,
)
from fleet.counted import counted, percent
from fleet.engine.dwdp.contention import met
from fleet.engine.dwdp.layout import ExpertLayout
from fleet.engine.dwdp.phase import Phase, smallest_that_hides
from fleet.engine.dwdp.table_1 import BETWEEN
from fleet.systems.dwdp import published
from fleet.systems.dwdp.pareto import ParetoPoint, context_pools
from fleet.systems.dwdp.planning import ContextPool, Demand
from router.contract.values.json_value import JsonObject

NVLINK_BYTES_PER_S = 400e9  # one way: NVLink 4 has 450
NOTES_INFEASIBLE = 450e9  # one way: NVLink 4, which the notes give as 600 GB/s
SMALL, DECODE_TOKENS = 16_384, 256
LEAST_GAIN = 0.01  # the two count as equal below this gain
RANKS_LISTED, LEVELS_LISTED = 16, 12
IN_FLIGHT = (1, 2, 3, 4)
# Values of TensorRT-LLM that favour TPS/GPU and TPS/user [N].
SETTINGS = (
    ("max_num_tokens", "higher", "lower", "A larger iteration also widens the window that hides DWDP's copy."),
    ("max_batch_size", "higher", "lower", "More sequences share a step; each waits for it longer."),
    (
        "capacity_scheduler_policy",
        "MAX_UTILIZATION",
        "GUARANTEED_NO_EVICT",
        "The first admits more than fits and may evict; the second reserves all that a request can need.",
    ),
    ("enable_chunked_prefill", "off", "on", "Chunks let decodes through; they narrow DWDP's window."),
    ("free_gpu_memory_fraction", "higher", "lower", "More KV cache holds more sequences."),
    ("context GPUs", "fewer", "more", "The strongest: DWDP serves the same users with fewer, and TTFT rises."),
    ("speculative_config", "off", "on", "Pays at low load; under load, rejected tokens cost throughput."),
)


def compute(inputs: DwdpInputs) -> Answer:
    phase, demand = phase_of(inputs), demand_of(inputs)
    smallest = smallest_that_hides(phase)
    pools, curve = context_pools(phase, demand), curve_of(inputs)
    return Answer(
        _verdict(phase, pools),
        _facts(phase, smallest, pools),
        (
            *curve_chart(phase, curve),
            _layer_chart(phase),
            _window_chart(phase),
            _contention_chart(phase),
            _link_chart(phase),
        ),
        (
            *curve_table(curve),
            *loop_table(inputs),
            _plan_table(phase, demand, pools),
            _ways_table(inputs, phase),
            _slices_table(phase),
            _layout_table(phase.layout),
            Table("Settings and their direction", ("Setting", "For TPS/GPU", "For TPS/user", "Why"), SETTINGS),
        ),
        (*_cautions(inputs, phase, pools, has_curve=bool(curve)), *_earlier(pools, curve)),
    )


def _verdict(phase: Phase, pools: tuple[ContextPool, ContextPool]) -> str:
    """Answer the page's question, state the cost, then the reason."""
    dep, dwdp = pools
    fewer = phase.gain > 1 + LEAST_GAIN and dwdp.gpus < dep.gpus
    copy, computing = f"{phase.copy_ms:,.3g} ms", f"{phase.dwdp_computing.total:,.3g} ms"
    hidden = f"The copy of {copy} is hidden by {computing} of computing"
    exposed = f"Of the copy of {copy}, computing for {computing} leaves {phase.exposed_ms:,.3g} ms exposed"
    gain = f"DWDP{phase.layout.ranks} has {phase.gain:,.3g} times the throughput of DEP{phase.dep_ranks} per GPU"
    contrast = "but" if fewer and dwdp.ttft_s > dep.ttft_s else "and"
    ttft = f"{contrast} the mean TTFT is {ms(dwdp.ttft_s * 1e3)} instead of {ms(dep.ttft_s * 1e3)}"
    groups = f"{dwdp.gpus:,} context GPUs {'instead of' if fewer else 'against'} {dep.gpus:,}"
    return f"{'Yes' if fewer else 'No'}: {groups}, {ttft}. {gain}. {hidden if phase.is_hidden else exposed}."


def _facts(phase: Phase, smallest: int | None, pools: tuple[ContextPool, ContextPool]) -> tuple[Fact, ...]:
    dep, dwdp = pools
    decode = replace(phase, max_tokens=DECODE_TOKENS, filled=1.0)
    step = replace(phase, max_tokens=8, filled=1.0)
    held = phase.expert_bytes(phase.layout.local, buffers=True) / GIGA
    spread = phase.expert_bytes(phase.moe.experts / phase.dep_ranks, buffers=False) / GIGA
    return (
        Fact(
            "Context GPUs",
            f"{dep.gpus} → {dwdp.gpus}",
            "",
            f"DEP → DWDP, whole groups; {dep.even_gpus:,.1f} → {dwdp.even_gpus:,.1f} in parts",
        ),
        Fact(
            "TPS/GPU",
            f"{dep.tokens_per_gpu:,.0f} → {dwdp.tokens_per_gpu:,.0f}",
            "tokens/s",
            f"{dep.even_tokens_per_gpu:,.0f} → {dwdp.even_tokens_per_gpu:,.0f} in parts",
        ),
        Fact(
            "TTFT, mean",
            f"{ms(dep.ttft_s * 1e3)} → {ms(dwdp.ttft_s * 1e3)}",
            "",
            f"waiting: {ms(dep.wait_s * 1e3)} → {ms(dwdp.wait_s * 1e3)}",
        ),
        Fact("Window over copy", phase.ratio, "", "computing over copying"),
        Fact("Smallest MNT that hides the copy", smallest, "tokens", "contention included"),
        Fact("Exposed", phase.exposed_ms, "ms/layer", f"{percent(phase.exposed_ms / phase.dwdp_ms)} of a DWDP layer"),
        Fact("Waiting under DEP", phase.wait_ms, "ms/layer", f"{percent(phase.wait_ms / phase.dep_ms)} of a DEP layer"),
        Fact("Throughput per context GPU", phase.gain, "x DEP", f"{phase.tokens_per_s(phase.dwdp_ms):,.0f} tokens/s"),
        Fact("Memory for experts", held, "GB/GPU", f"with two buffers; DEP {spread:,.0f} GB"),
        Fact(
            "Copied and unused", phase.unused_share * 100, "% of experts", f"decoding 8: {percent(step.unused_share)}"
        ),
        Fact("A decode step of 256 tokens", decode.exposed_ms, "ms/layer exposed", "why decode stays DEP"),
    )


def _layer_chart(phase: Phase) -> Chart:
    dwdp = phase.dwdp_computing.slowed(min(phase.slowed_ms, 0.0))
    dep = phase.dep_computing.slowed(min(phase.dep_slowed_ms, 0.0))
    names = (f"DWDP{phase.layout.ranks}", f"DEP{phase.dep_ranks}")
    parts = (
        ("Experts", dwdp.experts, dep.experts),
        ("Attention", dwdp.attention, dep.attention),
        ("Projections and others", dwdp.projections + dwdp.other, dep.projections + dep.other),
        ("All-to-all", 0.0, phase.all_to_all_ms),
        (
            "Slower at the power limit, merging",
            max(phase.slowed_ms, 0.0) + phase.merging_ms,
            max(phase.dep_slowed_ms, 0.0),
        ),
        ("Waiting: for the copy, for the slowest GPU", phase.exposed_ms, phase.wait_ms),
    )
    return Chart(
        "One MoE layer",
        Axis("Parallelism"),
        Axis("Duration", "ms"),
        tuple(Series(name, names, values) for name, *pair in parts if (values := (pair[0], pair[1]))),
        "stacked",
    )


def _window_chart(phase: Phase) -> Chart:
    tokens = tuple(sorted({*(2**power for power in range(9, 18)), phase.max_tokens}))
    at = [replace(phase, max_tokens=each) for each in tokens]
    lines = (
        ("Computing", [each.dwdp_computing.total for each in at]),
        ("DWDP, whole pulls", [replace(each, sliced=False).dwdp_ms for each in at]),
        ("DWDP, slices", [replace(each, sliced=True).dwdp_ms for each in at]),
        ("DEP", [each.dep_ms for each in at]),
    )
    series = (*(Series(name, tokens, tuple(values)) for name, values in lines),)
    copy = Series("Copy", tokens, tuple(each.copy_ms for each in at), dashed=True)
    return Chart(
        "A layer by the tokens of an iteration",
        Axis("MNT", "tokens", log=True),
        Axis("Duration", "ms", log=True),
        (*series, copy),
    )


def _contention_chart(phase: Phase) -> Chart:
    odds = met(phase.layout.ranks)[:LEVELS_LISTED]
    levels = tuple(str(1 + x) for x in range(len(odds)))
    share = Series("Probability", levels, tuple(100 * one for one in odds))
    return Chart("Copies at one source at a time", Axis("Copies"), Axis("Probability", "%"), (share,), "bars")


def _link_chart(phase: Phase) -> Chart:
    own = phase.gpu.link_bytes_per_s / GIGA
    rates = tuple(sorted({25.0, 50.0, 100.0, 200.0, 300.0, 450.0, 600.0, 900.0, 1800.0, own}))

    def gains(*, sliced: bool) -> tuple[float, ...]:
        return tuple(_linked(replace(phase, sliced=sliced), rate).gain for rate in rates)

    return Chart(
        "Throughput over DEP by link",
        Axis("Link, one way", "GB/s", log=True),
        Axis("DEP = 1"),
        (
            Series("Whole pulls", rates, gains(sliced=False)),
            Series("Slices", rates, gains(sliced=True)),
            Series("DEP", rates, (1.0,) * len(rates), dashed=True),
        ),
        note="DEP's all-to-alls use the same link.",
    )


def _linked(phase: Phase, gb_per_s: float) -> Phase:
    return replace(phase, gpu=replace(phase.gpu, link_bytes_per_s=gb_per_s * GIGA))


def _plan_table(phase: Phase, demand: Demand, pools: tuple[ContextPool, ContextPool]) -> Table:
    names = (f"DEP{phase.dep_ranks}", f"DWDP{phase.layout.ranks}")
    rows = tuple(
        (
            name,
            pool.gpus,
            pool.even_gpus,
            pool.load * 100,
            pool.wait_s * 1e3,
            pool.ttft_s * 1e3,
            alone_s * 1e3,
            pool.tokens_per_gpu,
            demand.user_tokens_per_s,
            pool.tokens_per_user,
        )
        for name, pool, alone_s in zip(names, pools, (phase.dep_alone_s, phase.dwdp_alone_s), strict=True)
    )
    columns = (
        "Context", "GPUs", "without whole groups", "Load, %", "Wait, ms", "TTFT, ms", "One prompt alone, ms", "TPS/GPU",
        "TPS/user", "TPS/user with TTFT",
    )  # fmt: skip
    return Table(
        "Context GPUs for the same users",
        columns,
        rows,
        "GPUs come in whole groups. A GPU of DWDP computes what waits for it in one iteration, and few prompts hide "
        f"little of its copy; a group of DEP computes a prompt together. Here DWDP's first token is {_order(pools)}.",
    )


def _order(pools: tuple[ContextPool, ContextPool]) -> str:
    dep, dwdp = pools
    waits = f"wait {ms(dwdp.wait_s * 1e3)} instead of {ms(dep.wait_s * 1e3)}"
    prefills = f"prefill {ms(dwdp.prefill_s * 1e3)} instead of {ms(dep.prefill_s * 1e3)}"
    return f"{'later' if dwdp.ttft_s > dep.ttft_s else 'earlier'}: {waits}, {prefills}"


def _ways_table(inputs: DwdpInputs, phase: Phase) -> Table:
    """Return every way to fetch a layer's experts, including in chunks if requested."""
    asked = [
        ("", phase),
        *([(f", chunks of {inputs.chunk_tokens:,}", phase.chunked(inputs.chunk_tokens))][: inputs.chunked]),
    ]
    rows: list[tuple[Value, ...]] = []
    for suffix, each in asked:
        for name, sliced in (("whole pulls", False), ("slices in turn", True)):
            one = replace(each, sliced=sliced)
            copies = one.waiting_for_copies_ms(0.0)
            rows.append((name + suffix, one.copy_ms, copies, one.dwdp_ms, one.exposed_ms, one.gain))
        gathered = each.gathered_ms(inputs.gather_cores / 100)
        copy = replace(each, sliced=False).copy_ms
        rows.append(
            (f"all-gather by NCCL{suffix}", copy, copy, gathered, gathered - each.window_ms, each.over_dep(gathered))
        )
    columns = (
        "Copies",
        "Alone, ms",
        "With contention, ms",
        "Layer, ms",
        "More than computing, ms",
        "Throughput, x DEP",
    )
    note = (
        "contention_opt switches to slices of 2 MiB. An all-gather has no contention, takes cores from computing "
        f"({inputs.gather_cores:g} %, assumed: no share is published) and starts on all GPUs together, so that each "
        "waits for the slowest."
    )
    return Table("Copies, mean of a layer", columns, tuple(rows), note)


def _slices_table(phase: Phase) -> Table:
    rows: list[tuple[Value, ...]] = []
    pull = phase.pull_bytes / 2**20
    for size in sorted({0.25, 0.5, 1.0, 2.0, 4.0, 8.0, pull / 4, pull, phase.slice_bytes / 2**20}):
        at = [replace(phase, sliced=True, slice_bytes=size * 2**20, in_flight=count) for count in IN_FLIGHT]
        rows.append((f"{size:,.4g} MiB", *(one.waiting_for_copies_ms(0.0) for one in at)))
    columns = ("Slice", *(f"{count} in flight, ms" for count in IN_FLIGHT))
    note = (
        "Copies of a layer with contention. k in flight hide up to k − 1 others at a source, and the set-up of a slice "
        f"({phase.setup_ms * 1e3:g} µs) while k slices take longer than one with its set-up. The last slice of a copy "
        f"has none behind it: one of {pull:,.4g} MiB, all that a GPU gives another for a layer, is a whole pull."
    )
    return Table("Slices in flight", columns, tuple(rows), note)


def _layout_table(group: ExpertLayout) -> Table:
    rows = []
    for rank in range(min(group.ranks, RANKS_LISTED)):
        held = group.held(rank)
        below = f"0–{held[0] - 1}" if rank else "–"
        above = f"{held[-1] + 1}–{group.experts - 1}" if rank < group.ranks - 1 else "–"
        rows.append((str(rank), f"{held[0]}–{held[-1]}", below, above, group.remote))
    more = f" The first {RANKS_LISTED} of {group.ranks} GPUs." if group.ranks > RANKS_LISTED else ""
    note = f"E = L + (N − 1)·P: {group.experts} = {group.local} + {group.ranks - 1} x {group.prefetch}.{more}"
    return Table("Experts of a layer", ("GPU", "Holds", "Copies", "and", "Copied"), tuple(rows), note)


def _cautions(
    inputs: DwdpInputs, phase: Phase, pools: tuple[ContextPool, ContextPool], *, has_curve: bool
) -> list[str]:
    gpu, held = phase.gpu, phase.expert_bytes(phase.layout.local, buffers=True)
    (dep, dwdp), chunks = pools, phase.chunked(inputs.chunk_tokens)
    found = {
        "Chunked prefill narrows the window, and TensorRT-LLM refuses it with DWDP: in chunks of "
        f"{inputs.chunk_tokens:,} tokens a layer waits {chunks.exposed_ms:,.3g} ms for its copy, and DWDP has "
        f"{chunks.gain:,.3g} times DEP's throughput.": inputs.chunked,
        f"Prompts of {inputs.prompt_tokens:,} tokens exceed an iteration of {inputs.max_tokens:,}: without chunks they "
        "are refused.": inputs.prompt_tokens > inputs.max_tokens,
        "At 16,384 tokens an iteration the paper measured 1.01 times DEP's TPS/GPU; fewer narrow the window further.": (
            inputs.max_tokens < SMALL
        ),
        f"An iteration of {inputs.max_tokens:,} tokens is a decode step: decode stays DEP.": (
            inputs.max_tokens <= 16 * DECODE_TOKENS
        ),
        f"A link of {gpu.link_bytes_per_s / GIGA:,.4g} GB/s one way is not NVLink: the copy needs all-pairs links of "
        "that class.": gpu.link_bytes_per_s < NVLINK_BYTES_PER_S,
        f"Experts take {held / GIGA:,.0f} GB of the {gpu.memory_bytes / GIGA:,.0f} GB of a GPU: attention, activations "
        "and KV need the rest.": held > 0.8 * gpu.memory_bytes,
        f"The notes call a link of at most {NOTES_INFEASIBLE / GIGA:,.0f} GB/s one way infeasible, with a window of "
        f"10–11 ms as on GB200. Here a layer computes for {phase.dwdp_computing.total:,.0f} ms, which hides it.": (
            phase.is_hidden and gpu.link_bytes_per_s <= NOTES_INFEASIBLE
        ),
        "The shares of the peaks were measured with DeepSeek-R1 on GB200; here they are assumed.": (
            inputs.model != "DeepSeek-R1" or inputs.gpu != "GB200"
        ),
        f"No curve: {inputs.generation_gpus} generation GPUs do not hold the weights and the KV of their answers.": (
            not has_curve
        ),
        f"Fewer GPUs come from whole groups only: DWDP takes {dwdp.even_gpus:,.2f} and DEP {dep.even_gpus:,.2f} if "
        "they came in any part.": (dwdp.gpus < dep.gpus and dwdp.even_gpus >= dep.even_gpus),
        "A mean wait of the context GPUs above a second: prompts come almost as fast as they are computed.": (
            dwdp.wait_s > 1
        ),
    }
    return [text for text, holds in found.items() if holds]


def _earlier(pools: tuple[ContextPool, ContextPool], curve: Sequence[ParetoPoint]) -> Iterator[str]:
    dep, dwdp = pools
    earlier = sum(point.dwdp.ttft_s < point.dep.ttft_s for point in curve)
    if earlier or dwdp.ttft_s < dep.ttft_s:
        yield (
            "End to end the paper measured a later first token under DWDP (table 6), an earlier one of context GPUs "
            f"alone (table 3). Here it comes after {ms(dwdp.ttft_s * 1e3)} instead of {ms(dep.ttft_s * 1e3)}, and "
            f"earlier at {earlier} of {counted(len(curve), 'point')} of the curve."
        )


def figures() -> tuple[Figure, ...]:
    return tuple(
        Figure(
            f"{row.group}: {row.case}",
            row.published,
            row.ours,
            row.unit,
            row.basis,
            row.source,
            "; ".join(part for part in ("missed" if row.is_missed else "", row.note) if part),
        )
        for row in published.figures()
    )


COMPARED: JsonObject = {
    "name": "DWDP4 against DEP4",
    "trace": "agentic-demo",
    "mode": "twin",
    "load_factor": 2,
    "arms": [
        "lpwl flow.heavy=offload name=DWDP4",
        "lpwl flow.heavy=offload fleet.replicas=2 fleet.dwdp_size=1 fleet.prefill_tensor_parallel=4 "
        "fleet.prefill_instances=1 name=DEP4",
    ],
}
_PEAKS = {
    "link_share": 1.0, "expert_share": 1.0, "attention_share": 1.0, "all_to_all_share": 1.0, "other_us": 0.0,
    "computing_draw": 0.0, "copying_draw": 0.0, "skew_us": 0.0, "filled": 100.0, "layers": 58, "prompt_variation": 0.0,
    "projection_pflops": 2.5,
}  # fmt: skip
DWDP = System(
    "dwdp",
    "DWDP against DEP",
    "Context GPUs copy each other's experts for the next layer instead of exchanging tokens. Do fewer context GPUs "
    "serve the same users?",
    DwdpInputs,
    {
        "DeepSeek-R1 on GB200 NVL72, DWDP4": {},
        "DWDP3": {"ranks": 3},
        "Context only, as published": {"between_ms": round(BETWEEN)},
        "Iterations of 16,384, slices": {"max_tokens": 16_384, "slices": True},
        "Uneven prompts of 16,384": {"prompt_tokens": 16_384, "prompt_variation": 25.0},
        "600 GB/s, both ways": {"link_gb_per_s": 300.0},
        "Hot experts": {"hot_experts": 1.42, "skew_us": 0.0},
        "RoCE, 50 GB/s": {"link_gb_per_s": 50.0},
        "H100, NVLink 4": {"gpu": "H100", "ranks": 8, "dep_ranks": 8},
        "gpt-oss-120b on 4 B200": {
            "model": "gpt-oss-120b", "gpu": "B200", "max_tokens": 16_384, "prompt_tokens": 8_192,
            "prompt_variation": 0.0,
        },
        "Figure 3: one prompt at the peaks": {**_PEAKS, "max_tokens": 8_192, "prompt_tokens": 8_192},
    },
    compute,
    figures,
    groups=(
        Group(
            "Demand",
            ("prompts_per_s", "generation_gpus", "output_tokens", "user_tokens_per_s", "max_load", "clients"),
        ),
        Group(
            "Experts on the GPUs",
            ("held", "copied", "hot_experts", "slice_mib", "in_flight", "slice_us", "gather_cores", "chunk_tokens"),
        ),
        Group(
            "Model",
            (
                "experts", "top_k", "shared", "layers", "moe_layers", "hidden", "inner", "bytes_per_weight",
                "attention_mweights", "heads", "head_size", "kv_kib",
            ),
        ),
        Group("GPU", ("expert_pflops", "projection_pflops", "attention_pflops", "memory_tb_per_s", "memory_gb")),
        Group(
            "Reached of the peaks",
            (
                "link_share", "expert_share", "attention_share", "projection_share", "all_to_all_share", "other_us",
                "computing_draw", "waiting_draw", "copying_draw", "skew_us", "filled",
            ),
        ),
    ),
    rules=rules,
    notes=(
        "Table 1 of the paper prints µs. As µs, the copy would run at 643 TB/s; as ms it runs at 643 GB/s, 0.71 of "
        "NVLink 5 one way. The same holds for the notes' 7 µs against 10–11 µs a layer.",
        "The notes take 1,800 GB/s of NVLink 5 for one way; it is 900. Their window of 10–11 is attention and grouped "
        "GEMM only and does not grow with tokens; all computing overlaps, 18.5 ms.",
        "The notes print closed ranges of experts; they are half open.",
        "The notes call slices paper only; TensorRT-LLM has them since pull request 12974, as contention_opt.",
        "Table 6 reports 6 to 12 % more TPS/GPU and median TTFT from 2.5 to 8.3 s and from 0.97 to 1.64 s, without the "
        "number of GPUs and of clients, which decide it.",
    ),
    playable=PLAYABLE,
    links=(experiment_link("DWDP4 against DEP4 (examples/fleet-dwdp.yaml)", COMPARED),),
)  # fmt: skip
