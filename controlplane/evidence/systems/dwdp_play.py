"""The points of DWDP's curve as experiments in the twin: DEP against DWDP, on a pool of context servers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controlplane.evidence.systems.dwdp_inputs import DwdpInputs, demand_of, gpu_of, kv_bytes_of, moe_of, phase_of
from controlplane.evidence.systems.system import Axis, Chart, Play, Playable, PoolFacts, Series, Table
from controlplane.evidence.traces.prompts_8k import MEAN_TOKENS, PER_S, REQUESTS
from fleet.counted import counted
from fleet.engine.dwdp.layout import LayoutError
from fleet.engine.dwdp.machine import GPUS
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.dwdp.phase import Phase
from fleet.engine.dwdp.servers import MOE, R1, Machine, TooLarge, dep_server, dwdp_server
from fleet.engine.profiles import MEMORY_USED
from fleet.systems.dwdp.closed_loop import Loop, pools
from fleet.systems.dwdp.known_models import experts_of
from fleet.systems.dwdp.pareto import ParetoPoint, points
from fleet.systems.dwdp.published import END_TO_END, within
from router.contract.values.json_value import JsonObject

TRACE = "prompts-8k"
MOST_GPUS = 64  # GPUs per generation server
LOADS = (0.05, 20.0)  # factors accepted by an experiment
# Most requests in flight; the rest count as the fill of the generation server that the point states
IN_FLIGHT = REQUESTS // 4
POLICY = "lpwl flow.heavy=offload"


# The curve of DWDP's page: TPS/GPU against TPS/user, beside the published ratios


def curve_of(inputs: DwdpInputs) -> tuple[ParetoPoint, ...]:
    return points(phase_of(inputs), demand_of(inputs), kv_bytes_of(inputs))


def curve_chart(phase: Phase, curve: Sequence[ParetoPoint]) -> Iterator[Chart]:
    if not curve:
        return
    users = tuple(point.tokens_per_user for point in curve)
    near = within(curve)
    at, of_dep = tuple(point.tokens_per_user for point in near), [point.dep.tokens_per_gpu for point in near]
    claimed = [
        Series(f"published: DEP x {ratio:g}", at, tuple(ratio * one for one in of_dep), dashed=True)
        for ratio in END_TO_END.values()
        if near
    ]
    yield Chart(
        "TPS/GPU against TPS/user",
        Axis("TPS/user while an answer is written", "tokens/s"),
        Axis("TPS/GPU, context and generation", "tokens/s"),
        (
            Series(f"DEP{phase.dep_ranks}", users, tuple(point.dep.tokens_per_gpu for point in curve)),
            Series(f"DWDP{phase.layout.ranks}", users, tuple(point.dwdp.tokens_per_gpu for point in curve)),
            *claimed,
        ),
        note="Each point: a number of sequences. Published: 6 to 12 % more TPS/GPU at 20 to 100 TPS/user.",
    )


def curve_table(curve: Sequence[ParetoPoint]) -> Iterator[Table]:
    columns = (
        "TPS/user", "Sequences per generation GPU", "Prompts/s", "Context GPUs, DEP", "DWDP", "TPS/GPU, DEP",
        "TPS/GPU, DWDP", "DWDP over DEP", "without whole groups", "TTFT, DEP, ms", "TTFT, DWDP, ms",
    )  # fmt: skip
    rows = tuple(
        (
            point.tokens_per_user,
            point.sequences,
            point.demand.prompts_per_s,
            point.dep.gpus,
            point.dwdp.gpus,
            point.dep.tokens_per_gpu,
            point.dwdp.tokens_per_gpu,
            point.gain,
            point.even_gain,
            point.dep.ttft_s * 1e3,
            point.dwdp.ttft_s * 1e3,
        )
        for point in curve
    )
    if rows:
        note = (
            "Context GPUs come in whole groups, which makes steps in the ratio. TTFT: prompts at random times, each "
            "server computes what waits there. Published between 20 and 100 TPS/user: 1.06 to 1.12, 1.088 on average."
        )
        yield Table("Points of the curve", columns, rows, note)


def loop_table(inputs: DwdpInputs) -> Iterator[Table]:
    """Yield the experience of the same clients with more and with fewer context GPUs."""
    phase = phase_of(inputs)
    loop = Loop(inputs.clients, inputs.prompt_tokens, inputs.output_tokens, inputs.generation_gpus)
    names = f"DEP{phase.dep_ranks}", f"DWDP{phase.layout.ranks}"
    try:
        both = pools(phase, loop, kv_bytes_of(inputs)) if inputs.clients else ([], [])
    except TooLarge:
        return
    rows = tuple(
        (name, one.context_gpus, one.tokens_per_user, one.tokens_per_gpu, one.ttft_s * 1e3)
        for name, points in zip(names, both, strict=True)
        for one in points
    )
    if rows:
        note = (
            "Each client sends its next prompt when its answer has ended, as in the paper's runs. Fewer context GPUs: "
            "clients wait for their first token, and answers, of which fewer are written at a time, come faster."
        )
        columns = ("Context", "GPUs", "TPS/user", "TPS/GPU", "TTFT, median, ms")
        yield Table(f"{counted(inputs.clients, 'client')} in a closed loop", columns, rows, note)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of context GPUs."""

    count: int
    gpus: int  # GPUs per group

    @property
    def total(self) -> int:
        return self.count * self.gpus


def groups_of(gpus: int, ranks: int) -> Groups:
    return Groups(gpus // ranks, ranks)


def fits(pool: PoolFacts, machine: Machine) -> bool:
    """Return whether a pool fits: simulated groups accept every model of the page, a calibrated pool only its own."""
    if pool.kind == "sim":
        return str(pool.engine.get("context_servers", "plain")) != "plain"
    model = str(pool.engine.get("model") or pool.model)
    of_r1 = "deepseek" in model.lower() and experts_of(model) == MOE.experts
    return machine == R1 and pool.kind == "trtllm" and bool(pool.engine.get("prefill_instances")) and of_r1


def plays(inputs: DwdpInputs, pools: Sequence[PoolFacts]) -> Iterator[Play]:
    """Yield the experiments; none for custom sizes or rates, or if a group cannot hold the experts. The numbers of GPUs
    are those of the curve.
    """
    machine = _machine(inputs)
    if machine is None or inputs.generation_gpus > MOST_GPUS:
        return
    for pool in pools:
        for point in curve_of(inputs) if fits(pool, machine) else ():
            load = point.demand.prompts_per_s * inputs.prompt_tokens / MEAN_TOKENS / PER_S
            if LOADS[0] <= load <= LOADS[1] and point.sequences * inputs.generation_gpus <= IN_FLIGHT:
                yield _play(inputs, point, pool, round(load, 3))


def _machine(inputs: DwdpInputs) -> Machine | None:
    moe = MOES[inputs.model]
    named = Machine(moe, GPUS[inputs.gpu].serving(moe))
    if Machine(moe_of(inputs), gpu_of(inputs)) != named:
        return None
    try:
        dwdp_server(inputs.ranks, of=named).kv_tokens(MEMORY_USED)
        dep_server(inputs.dep_ranks, 0, named).kv_tokens(MEMORY_USED)
    except (LayoutError, TooLarge):
        return None
    return named


def _play(inputs: DwdpInputs, point: ParetoPoint, pool: PoolFacts, load: float) -> Play:
    dep, dwdp = groups_of(point.dep.gpus, inputs.dep_ranks), groups_of(point.dwdp.gpus, inputs.ranks)
    arm = _sim_arm if pool.kind == "sim" else _trtllm_arm
    names = f"DEP{dep.gpus}x{dep.count}", f"DWDP{dwdp.gpus}x{dwdp.count}"
    body: JsonObject = {
        "name": f"{names[1]} against {names[0]}",
        "question": f"What do {dwdp.total} context GPUs in DWDP give and take against {dep.total} in DEP?",
        "pool": pool.name,
        "trace": TRACE,
        "mode": "twin",
        "load_factor": load,
        "arms": [
            arm(inputs, dep, names[0], is_dwdp=False),
            arm(inputs, dwdp, names[1], is_dwdp=True),
        ],
    }
    title = (
        f"{point.tokens_per_user:.0f} tokens/s for a user, {point.demand.prompts_per_s:.3g} prompts/s: "
        f"{dep.total} context GPUs in DEP, {dwdp.total} in DWDP"
    )
    return Play(title, pool.name, body)


def _sim_arm(inputs: DwdpInputs, groups: Groups, name: str, *, is_dwdp: bool) -> str:
    mode = ("dwdp-slices" if inputs.slices else "dwdp") if is_dwdp else "dep"
    hot = f"fleet.context_hot_experts={inputs.hot_experts:g} " if inputs.hot_experts else ""
    return (
        f"{POLICY} fleet.replicas={groups.count + 1} fleet.prefill_instances={groups.count} "
        f"fleet.context_servers={mode} fleet.prefill_tp={groups.gpus} fleet.tp={inputs.generation_gpus} "
        f"fleet.context_model={inputs.model} fleet.context_gpu={inputs.gpu} "
        f"{hot}fleet.max_num_batched_tokens={inputs.max_tokens} name={name}"
    )


def _trtllm_arm(inputs: DwdpInputs, groups: Groups, name: str, *, is_dwdp: bool) -> str:
    servers = groups.total if is_dwdp else groups.count
    size, parallel = (groups.gpus, 1) if is_dwdp else (1, groups.gpus)
    slices = str(inputs.slices and is_dwdp).lower()
    hot = f"fleet.hot_experts={inputs.hot_experts:g} " if inputs.hot_experts else ""
    return (
        f"{POLICY} fleet.replicas={servers + 1} fleet.prefill_instances={servers} fleet.dwdp_size={size} "
        f"fleet.dwdp_groups={groups.count if is_dwdp else 1} fleet.dwdp_contention_opt={slices} "
        f"fleet.prefill_tensor_parallel={parallel} fleet.tensor_parallel={inputs.generation_gpus} "
        f"{hot}fleet.attention_dp=true fleet.chunked_prefill=false fleet.max_num_tokens={inputs.max_tokens} name={name}"
    )


PLAYABLE = Playable(
    "Play a point in the twin",
    plays,
    f"It takes the published sizes of model and GPU, up to {MOST_GPUS} generation GPUs, at most {IN_FLIGHT} answers "
    "at a time, and a pool of context servers: examples/fleet-pd-dwdp.yaml is a simulated one.",
)
