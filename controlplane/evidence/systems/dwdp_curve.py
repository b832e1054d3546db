"""The curve of DWDP's page: TPS/GPU against TPS/user, with the published ratios beside it."""

from collections.abc import Iterator, Sequence

from controlplane.evidence.systems.dwdp_inputs import DwdpInputs, demand_of, kv_bytes_of, phase_of
from controlplane.evidence.systems.system import Axis, Chart, Series, Table
from fleet.engine.dwdp.phase import Phase
from fleet.systems.dwdp.pareto import ParetoPoint, points
from fleet.systems.dwdp.published import END_TO_END, within


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
