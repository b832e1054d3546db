"""Published figures next to the model's. Fitted: SKEW (table 3c, STD 0), table 1 itself, the time between iterations
(table 3a at 8,192) and the precision of the projections in figure 3 (at 8,192). Arithmetic: values that follow from the
publication's own numbers and formulas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from fleet.engine.dwdp import table_1
from fleet.engine.dwdp.contention import met
from fleet.engine.dwdp.layout import layout
from fleet.engine.dwdp.machine import B200, DEEPSEEK_R1, GB200, GPT_OSS_120B, H100, PEAKS, Efficiencies
from fleet.engine.dwdp.phase import Phase, Prompts
from fleet.engine.dwdp.waiting import expected_max
from fleet.systems.basis import Basis
from fleet.systems.dwdp.closed_loop import Loop, best, pools
from fleet.systems.dwdp.pareto import ParetoPoint, points
from fleet.systems.dwdp.planning import Demand

MISSED, GAIN_MISSED = 0.10, 0.50  # relative error; for a speedup, that of its gain
ROUNDED = 0.01  # difference of speedups that counts as none; those of one set-up in tables 3b and 4 differ by 0.029


@dataclass(frozen=True, slots=True)
class Published:
    group: str
    case: str  # one case of the group
    published: float
    ours: float
    unit: str
    source: str
    basis: Basis = "predicted"
    note: str = ""

    @property
    def error(self) -> float:
        return self.ours / self.published - 1

    @property
    def is_missed(self) -> bool:
        if self.unit != SPEEDUP:
            return abs(self.error) > MISSED
        ours, published = self.ours - 1, self.published - 1
        if ours * published > 0 and abs(ours - published) < ROUNDED:
            return False
        return abs(ours / published - 1) > GAIN_MISSED


SPEEDUP = "x DEP4"
VERDICT = "Verdict by link: window over copy with the GPU's own window"


def r1_phase(
    prompts: Prompts,
    *,
    max_tokens: int = table_1.MAX_TOKENS,
    ranks: int = 4,
    sliced: bool = False,
    reached: Efficiencies = table_1.REACHED,
) -> Phase:
    """Return DeepSeek-R1 on GB200 against DEP4, as [P] measured it."""
    experts, filled = layout(DEEPSEEK_R1.experts, ranks), prompts.filled(max_tokens)
    return Phase(DEEPSEEK_R1, GB200, reached, experts, table_1.RANKS, prompts, max_tokens, filled, sliced)


def _throughput_gain(phase: Phase) -> float:
    """Return the gain in TPS/GPU when only the context phase runs."""
    return replace(phase, between_ms=table_1.BETWEEN).gain


def gpt_oss_phase(prompts: Prompts) -> Phase:
    experts = layout(GPT_OSS_120B.experts, 4)
    return Phase(GPT_OSS_120B, B200, table_1.REACHED, experts, 4, prompts, 16_384)


def roofline(tokens: int) -> Phase:
    """Return the phase of figure 3: one prompt, one layer, all peaks reached, with the projections of attention in
    BF16. [P] names no peaks; the model card of NVIDIA's second FP4 checkpoint of R1 says that the first checkpoint
    keeps them so."""
    one_layer = replace(DEEPSEEK_R1, layers=DEEPSEEK_R1.moe_layers, attention_bytes_per_weight=2)
    gpu, experts = replace(GB200, projection_flops=GB200.attention_flops), layout(one_layer.experts, 4)
    return Phase(one_layer, gpu, PEAKS, experts, 4, Prompts(tokens), tokens, filled=1.0)


@lru_cache(maxsize=1)
def figures() -> tuple[Published, ...]:
    parts = (
        _table_1,
        _notes,
        _verdicts,
        _figure_3,
        _waiting,
        _table_2,
        _table_3,
        _table_4,
        _table_6,
        _closed_loop,
        _sglang,
    )
    return tuple(figure for part in parts for figure in part())


def _table_1() -> Iterator[Published]:
    phase = r1_phase(Prompts.uniform(8192, 0.8))
    layers, source = DEEPSEEK_R1.moe_layers, "[P] table 1"
    copied = phase.layout.remote * phase.moe.expert_bytes / 1e9
    yield Published("Experts copied for a layer", "DWDP4", 4.7, copied, "GB", "[P] table 7", "arithmetic")
    group = "An iteration, 8,192 x 0.8–1, MNT 32,768"
    rows = (
        ("computing under DEP", table_1.COMPUTING, phase.dep_computing.total + phase.dep_slowed_ms),
        ("all-to-alls", table_1.COMMUNICATION, phase.all_to_all_ms),
        ("copy", table_1.COPY, phase.copy_ms),
        ("computing under DWDP", table_1.COMPUTING_DWDP, phase.window_ms),
    )
    for case, published, ours in rows:
        yield Published(group, case, published, ours * layers, "ms", source, "fitted")
    whole_link = replace(phase, reached=replace(phase.reached, link=1.0)).copy_ms * layers
    yield Published(group, "copy at the whole link", table_1.COPY, whole_link, "ms", source, note="0.71 is reached")
    wait = phase.wait_ms * layers
    yield Published(group, "waiting", table_1.SYNCHRONISATION, wait, "ms", source, note="spread from table 3c")
    alone = replace(phase, reached=replace(phase.reached, power=replace(table_1.POWER, copying=0.0)))
    slower = alone.window_ms / (phase.dep_computing.total + phase.dep_slowed_ms)
    measured, title = round(table_1.COMPUTING_DWDP / table_1.COMPUTING, 3), "Computing, copies without power"
    yield Published(title, "DWDP4", measured, slower, SPEEDUP, source, note="draws of an H200")


def _notes() -> Iterator[Published]:
    """Yield the notes' arithmetic per layer of 61, which treats 1,800 GB/s both ways as if it were one way and
    assumes that the window never changes."""
    layers = DEEPSEEK_R1.layers
    copy, window = table_1.COPY / layers, (table_1.ATTENTION + table_1.GROUPED_GEMM) / layers
    window_dwdp = (table_1.ATTENTION_DWDP + table_1.GROUPED_GEMM_DWDP) / layers
    for case, published, ours in (("copy", 7, copy), ("DEP's window", 10, window), ("DWDP's window", 11, window_dwdp)):
        yield Published(
            "A layer, printed as µs", case, published, ours, "ms", "[N]", "arithmetic", "all that overlaps: 18.5 ms"
        )
    note = "a fixed window and GB/s both ways: right arithmetic, no prediction"
    for both_ways, published in ((1800, 7), (600, 21), (50, 250)):
        ours = copy * 1800 / both_ways
        yield Published("Copy by link", f"{both_ways} GB/s", published, ours, "ms", "[N]", "arithmetic", note)
    for both_ways, ratio in ((1800, 1.4), (600, 0.5), (50, 0.04)):
        ours = window / (copy * 1800 / both_ways)
        yield Published("Window over copy", f"{both_ways} GB/s", ratio, ours, "", "[N]", "arithmetic", note)


def _verdicts() -> Iterator[Published]:
    """Yield what the notes conclude from their fixed window, next to the actual window of that GPU."""
    r1 = r1_phase(Prompts.uniform(8192, 0.8))
    on_h100 = replace(r1, gpu=H100, layout=layout(DEEPSEEK_R1.experts, 8), dep_ranks=8)
    cross_node = replace(r1, gpu=replace(GB200, link_bytes_per_s=50e9))
    rows = (
        ("GB200 with NVLink 5", 1.4, "viable", r1),
        ("H100 with NVLink 4", 0.5, "infeasible", on_h100),
        ("GB200 at 50 GB/s", 0.04, "impossible", cross_node),
    )
    for case, ratio, verdict, phase in rows:
        note = f"[N] says {verdict}; here the copy is {'hidden' if phase.is_hidden else 'exposed'}"
        yield Published(VERDICT, case, ratio, phase.ratio, "", "[N]", note=note)


def _figure_3() -> Iterator[Published]:
    rows = ((1024, 0.19, 0.10), (8192, 0.62, 0.73), (16_384, 1.52, 1.27), (32_768, 4.77, 1.17))
    phases = {tokens: roofline(tokens) for tokens, _, _ in rows}
    for tokens, ratio, _ in rows:
        basis: Basis = "fitted" if tokens == 8192 else "predicted"
        note = "projections in BF16, chosen for 8192"
        ours, group = phases[tokens].ratio, "Computing over copy, one prompt"
        yield Published(group, f"{tokens}", ratio, ours, "", "[P] figure 3", basis, note)
    for tokens, _, gain in rows:
        phase = phases[tokens]
        ours = phase.dep_ms / max(phase.window_ms, phase.copy_ms)  # duration without contention
        yield Published("DEP over DWDP, one prompt", f"{tokens}", gain, ours, "", "[P] figure 3")


def _waiting() -> Iterator[Published]:
    for ranks, published in ((2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660)):
        ours = expected_max(ranks)
        yield Published(
            "Expected maximum of normals", f"{ranks}", published, ours, "", "order statistics", "arithmetic"
        )
    prompts = Prompts.uniform(8192, 0.8)
    rows = (
        ("Waiting, prompts up to 20 % shorter (CV 6.4 %)", 12.26, "[P] table 1", prompts),
        ("The same, about", 10, "[T]", prompts),
        ("Waiting at a CV of 20 %, about", 12, "[N]", Prompts(prompts.mean, 0.2)),
    )
    for title, published, source, lengths in rows:
        phase = r1_phase(lengths)
        share = phase.wait_ms / phase.dep_ms * 100
        yield Published(title, f"mean of {lengths.mean:,.0f}", published, share, "%", source)


def _table_2() -> Iterator[Published]:
    rows = ((3, 1, 50.0), (3, 2, 50.0), (4, 1, 44.44), (4, 2, 44.44), (4, 3, 11.11), (8, 3, 16.52), (16, 4, 5.05))
    for ranks, level, share in rows:
        case = f"{level} of DWDP{ranks}"
        yield Published(
            "Copies at one source", case, share, met(ranks)[level - 1] * 100, "%", "[P] table 2", "arithmetic"
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of table 3."""

    part: str
    case: str
    ttft: float
    tps: float  # TPS/GPU
    phase: Phase


def _rows_3() -> Iterator[_Row]:
    for isl, ttft, tps in ((1024, 1.27, 1.11), (8192, 1.16, 1.10), (16_384, 1.12, 1.09), (32_768, 1.11, 1.09)):
        yield _Row("3a", f"{isl}", ttft, tps, r1_phase(Prompts.uniform(isl, 0.8)))
    yield _Row("3b", "16384", 1.07, 1.01, r1_phase(Prompts.uniform(8192, 0.8), max_tokens=16_384))
    for std, ttft, tps in ((0, 1.12, 1.09), (1024, 1.11, 1.08), (2048, 1.13, 1.11), (4096, 1.18, 1.15)):
        yield _Row("3c", f"{std}", ttft, tps, r1_phase(Prompts(16_384, std / 16_384)))
    for ranks, ttft, tps in ((3, 0.86, 1.093), (4, 1.15, 1.091)):
        yield _Row("3d", f"DWDP{ranks}", ttft, tps, r1_phase(Prompts.uniform(16_384, 0.8), ranks=ranks))


_PARTS_3 = {
    "3a": "by prompt",
    "3b": "by MNT",
    "3c": "by deviation of a prompt of 16,384",
    "3d": "by GPUs",
}


def _table_3() -> Iterator[Published]:
    """Yield the gain of an iteration next to that of TTFT, and, with the time between iterations, next to TPS/GPU."""
    rows = tuple(_rows_3())
    for row in rows:
        gain = row.phase.gain
        basis: Basis = "fitted" if (row.part, row.case) == ("3c", "0") else "predicted"
        ours = gain * row.phase.layout.ranks / 4
        group = f"TTFT {_PARTS_3[row.part]}"
        note = "gain x N/4" if row.part == "3d" else ""
        yield Published(group, row.case, row.ttft, ours, SPEEDUP, f"[P] table {row.part}", basis, note)
    for row in rows:
        group = f"TPS/GPU {_PARTS_3[row.part]}"
        basis = "fitted" if (row.part, row.case) == ("3a", "8192") else "predicted"
        yield Published(group, row.case, row.tps, _throughput_gain(row.phase), SPEEDUP, f"[P] table {row.part}", basis)


def _table_4() -> Iterator[Published]:
    rows = (
        (0.5, 16_384, 0.995, 1.081),
        (0.5, 32_768, 1.140, 1.139),
        (0.8, 16_384, 1.039, 1.053),
        (0.8, 32_768, 1.098, 1.109),
    )
    for group, sliced in (("TPS/GPU, whole pulls", False), ("TPS/GPU, slices", True)):
        for ratio, max_tokens, whole, slices in rows:
            phase = r1_phase(Prompts.uniform(8192, ratio), max_tokens=max_tokens, sliced=sliced)
            case = f"{ratio}/{max_tokens}"
            yield Published(group, case, slices if sliced else whole, _throughput_gain(phase), SPEEDUP, "[P] table 4")


END_TO_END = {"least": 1.06, "mean": 1.088, "most": 1.12}  # TPS/GPU relative to the baseline, at comparable TPS/user
USERS = (20.0, 100.0)  # TPS/user


def within(found: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points with the published speeds for one user."""
    return [point for point in found if USERS[0] <= point.tokens_per_user <= USERS[1]]


GENERATION_GPUS = 8  # not published


def _table_6() -> Iterator[Published]:
    """Yield the gains of the curve. Groups are ignored, as neither side's number of GPUs is published."""
    demand = Demand(1.0, table_1.PROMPT, GENERATION_GPUS, 1.0, 1.0, 1000)
    found = within(points(r1_phase(Prompts.uniform(8192, 0.8)), demand, DEEPSEEK_R1.kv_bytes))
    gains = [point.even_gain for point in found]
    ours = {"least": min(gains), "mean": fmean(gains), "most": max(gains)}
    for case, published in END_TO_END.items():
        note = "generation is a roofline; its number of GPUs is not published"
        yield Published("TPS/GPU at 20 to 100 TPS/user", case, published, ours[case], SPEEDUP, "[P] table 6", note=note)


# By range of TPS/user: the number of clients at which DEP's best pool reaches it (the KV of 20 to 30 of them does not
# fit), TPS/GPU and TPS/user relative to DEP, and the median TTFT of DEP and of DWDP in seconds.
BY_USERS = (
    ("40-50", 2560, 1.08, 1.16, 1.919, 7.012),
    ("60-70", 1472, 1.12, 1.00, 0.965, 1.640),
    ("80-90", 576, 1.06, 1.00, 1.669, 2.280),
    ("170-180", 16, 0.97, 1.00, 0.494, 0.660),
)


def loop_of(clients: int, generation_gpus: int = GENERATION_GPUS) -> Loop:
    return Loop(clients, table_1.PROMPT, 0.9 * 1024, generation_gpus)


def _closed_loop() -> Iterator[Published]:
    """Yield the context GPUs with the most TPS/GPU for the same clients, DWDP's over DEP's."""
    phase = r1_phase(Prompts.uniform(8192, 0.8))
    rows = []
    for users, clients, tps, speed, *ttft_s in BY_USERS:
        dep, dwdp = (best(each) for each in pools(phase, loop_of(clients), DEEPSEEK_R1.kv_bytes))
        gain, faster = dwdp.tokens_per_gpu / dep.tokens_per_gpu, dwdp.tokens_per_user / dep.tokens_per_user
        rows.append((users, (tps, speed, *ttft_s), (gain, faster, dep.ttft_s, dwdp.ttft_s)))
    groups = (("TPS/GPU", SPEEDUP), ("TPS/user", "x"), ("TTFT of DEP", "s"), ("TTFT of DWDP", "s"))
    note = f"{GENERATION_GPUS} generation GPUs; clients chosen for TPS/user"
    for place, (group, unit) in enumerate(groups):
        for users, published, ours in rows:
            title = f"{group} by TPS/user, closed loop"
            yield Published(title, users, published[place], ours[place], unit, "[P] table 6", note=note)


def _sglang() -> Iterator[Published]:
    for isl, published in ((4096, 1.16), (8192, 1.37), (16_384, 1.18)):
        gain = gpt_oss_phase(Prompts(isl)).gain
        note = "R1's shares of the peaks on another engine, whose DEP gathers: not modelled"
        yield Published("gpt-oss-120b, 4 x B200, MNT 16,384", f"{isl}", published, gain, SPEEDUP, "[S]", note=note)
