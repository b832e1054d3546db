"""The page of DWDP against DEP."""

import html
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from django.contrib.auth.models import User
from django.test import Client

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.records import read
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.systems.dwdp import COMPARED, DWDP
from controlplane.evidence.systems.dwdp_inputs import DwdpInputs, phase_of
from controlplane.evidence.systems.dwdp_play import curve_of
from controlplane.evidence.systems.registry import ask, figures
from controlplane.evidence.systems.system import Answer, PoolFacts, Value
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor
from fleet import services as fleet
from fleet.engine.dwdp.phase import Prompts
from fleet.systems.dwdp.published import r1_phase, within
from router.contract.values.problem import InvalidInput

ROOT = Path(__file__).resolve().parents[4]
# Points of a preset's curve at which DWDP's first token is earlier; the time between iterations is that of a whole DEP
# group.
KNOWN_EARLIER = {"Context only, as published": 5, "Uneven prompts of 16,384": 11, "gpt-oss-120b on 4 B200": 13}


def preset(name: str) -> Answer:
    return ask(DWDP, dict(DWDP.presets[name]))


def fact(answer: Answer, label: str) -> Value:
    return next(one.value for one in answer.facts if one.label.startswith(label))


def test_the_verdict_answers_the_question_first_then_states_the_cost_in_ttft_and_the_reason() -> None:
    hidden = preset("DeepSeek-R1 on GB200 NVL72, DWDP4").verdict
    assert re.match(
        r"Yes: 4 context GPUs instead of 8, but the mean TTFT is [\d.]+ s instead of \d+ ms\. "
        r"DWDP4 has 1\.16 times the throughput of DEP4 per GPU\. The copy of 7\.4 ms is hidden by ",
        hidden,
    )
    exposed = preset("RoCE, 50 GB/s").verdict
    assert re.match(r"No: \d+ context GPUs against \d+, and ", exposed)
    assert exposed.endswith(". Of the copy of 133 ms, computing for 17.8 ms leaves 162 ms exposed.")
    assert fact(ask(DWDP, {"link_gb_per_s": 0.1, "slices": True}), "Smallest MNT") is None


def test_the_defaults_are_the_papers_set_up() -> None:
    """Rounding of the shares on the form is ignored."""
    own, paper = phase_of(DwdpInputs()), r1_phase(Prompts.uniform(8192, 0.8))
    assert own.prompts.mean == pytest.approx(paper.prompts.mean, rel=1e-3)
    assert own.prompts.cv == pytest.approx(paper.prompts.cv, rel=0.01)
    assert own.dwdp_ms == pytest.approx(paper.dwdp_ms, rel=2e-3)
    assert own.dep_ms == pytest.approx(paper.dep_ms, rel=2e-3)


def test_fewer_context_gpus_and_the_first_token_are_shown_together() -> None:
    answer = ask(DWDP, {})
    plan = next(table for table in answer.tables if table.title.startswith("Context GPUs"))
    dep, dwdp = (dict(zip(plan.columns, row, strict=True)) for row in plan.rows)
    assert (dep["GPUs"], dwdp["GPUs"]) == (8, 4)
    assert dwdp["TPS/GPU"] > dep["TPS/GPU"]  # type: ignore[operator]
    assert dwdp["TTFT, ms"] > dep["TTFT, ms"]  # type: ignore[operator]
    assert dwdp["TPS/user"] == dep["TPS/user"]
    assert dwdp["One prompt alone, ms"] > 2 * dep["One prompt alone, ms"]  # type: ignore[operator]
    assert fact(answer, "Context GPUs") == "8 → 4"


def test_fewer_context_gpus_let_the_same_clients_wait_and_are_faster_afterwards() -> None:
    def rows(**inputs: int | str) -> list[tuple[Value, ...]]:
        answer = ask(DWDP, dict(inputs))
        return [
            row for table in answer.tables if table.title.endswith("clients in a closed loop") for row in table.rows
        ]

    for mode in ("DEP4", "DWDP4"):
        fewest, *_, most = cast("list[tuple[str, int, float, float, float]]", [r for r in rows() if r[0] == mode])
        assert fewest[1] < most[1]
        assert fewest[2] > most[2]
        assert fewest[4] > 2 * most[4]
    assert rows(clients=0) == rows(generation_gpus=1) == []
    long = {"prompt_tokens": 100_000, "output_tokens": 131_072}
    assert rows(model="gpt-oss-120b", gpu="H100", generation_gpus=1, **long) == []


@pytest.mark.parametrize("name", DWDP.presets)
def test_every_answer_in_which_the_first_token_is_earlier_says_so(name: str) -> None:
    answer = preset(name)
    tables = {
        table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in answer.tables
    }
    dep, dwdp = (cast(float, row["TTFT, ms"]) for row in tables["Context GPUs for the same users"])
    curve = tables["Points of the curve"]
    earlier = sum(row["TTFT, DWDP, ms"] < row["TTFT, DEP, ms"] for row in curve)  # type: ignore[operator]
    (plan,) = (table for table in answer.tables if table.title == "Context GPUs for the same users")
    assert ("first token is earlier:" in plan.note) is (dwdp < dep)
    told = [one for one in answer.cautions if f"earlier at {earlier} of {len(curve)} points" in one]
    assert len(told) == (dwdp < dep or earlier > 0)
    assert earlier == KNOWN_EARLIER.get(name, 0)


def test_slices_expose_less_than_whole_pulls() -> None:
    whole, slices = (ask(DWDP, {"max_tokens": 16_384, "slices": sliced}) for sliced in (False, True))
    assert fact(whole, "Exposed") > fact(slices, "Exposed")  # type: ignore[operator]
    table = next(table for table in whole.tables if table.title.startswith("Copies"))
    assert table.rows[0][2] > table.rows[1][2] > table.rows[1][1]  # type: ignore[operator]


def test_a_hidden_copy_makes_no_layer_longer_by_rounding() -> None:
    for merged in (False, True):
        (table,) = (one for one in ask(DWDP, {"clients": 0, "merged": merged}).tables if one.title.startswith("Copies"))
        assert [row[4] for row in table.rows[:2]] == [0.0, 0.0]


def test_slices_and_an_all_gather_are_shown_beside_whole_pulls() -> None:
    answer = ask(DWDP, {"chunked": True, "chunk_tokens": 4_096, "slice_us": 20.0, "slice_mib": 3.0})
    slices = next(table for table in answer.tables if table.title == "Slices in flight")
    assert [row[0] for row in slices.rows][3:6] == ["2 MiB", "3 MiB", "4 MiB"]
    one, two, *_ = cast("list[float]", slices.rows[0][1:])
    assert one > two > 7
    ways = next(table for table in answer.tables if table.title.startswith("Copies"))
    gains = {str(row[0]): cast(float, row[-1]) for row in ways.rows}
    assert gains["all-gather by NCCL"] < 1 < gains["whole pulls"]
    assert gains["whole pulls, chunks of 4,096"] < 1


def test_the_result_for_divisible_gpus_is_shown_beside_that_for_whole_groups() -> None:
    answer = ask(DWDP, {"clients": 0})
    (plan,) = (table for table in answer.tables if table.title.startswith("Context GPUs"))
    dep, dwdp = (row[plan.columns.index("without whole groups")] for row in plan.rows)
    notes = {one.label: one.note for one in answer.facts}
    assert notes["Context GPUs"].endswith(f"{dep:.1f} → {dwdp:.1f} in parts")
    assert notes["TPS/GPU"].endswith(" in parts")


def test_fewer_gpus_explained_by_whole_groups_alone_are_reported() -> None:
    answer = ask(DWDP, {"link_gb_per_s": 250.0, "ranks": 3, "prompts_per_s": 10.2})
    assert any(caution.startswith("Fewer GPUs come from whole groups only") for caution in answer.cautions)
    assert not any(caution.startswith("Fewer GPUs") for caution in ask(DWDP, {}).cautions)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"prompt_tokens": 131_072, "max_tokens": 131_072, "prompt_variation": 100.0},
        {"link_gb_per_s": 25.0, "other_us": 0.0, "projection_pflops": 10.0},
        {"max_tokens": 256, "prompt_tokens": 256},
    ],
)
def test_the_bars_of_a_layer_add_up_and_none_is_below_zero(given: dict[str, Any]) -> None:
    phase = phase_of(DwdpInputs(**given))
    bars = next(chart for chart in ask(DWDP, {**given, "clients": 0}).charts if chart.title == "One MoE layer")
    totals = [sum(one.y[place] or 0 for one in bars.series) for place in (0, 1)]
    assert totals == pytest.approx([phase.dwdp_ms, phase.dep_ms])
    assert min(cast(float, value) for one in bars.series for value in one.y) >= 0


def test_given_sizes_replace_those_of_model_and_gpu() -> None:
    given = DwdpInputs(
        experts=64, top_k=4, bytes_per_weight=1.0, memory_gb=141.0, expert_pflops=2.0, link_gb_per_s=450.0
    )
    phase = phase_of(given)
    assert (phase.moe.experts, phase.moe.top_k, phase.layout.local) == (64, 4, 16)
    assert (phase.gpu.memory_bytes, phase.gpu.expert_flops, phase.gpu.link_bytes_per_s) == (141e9, 2e15, 450e9)
    assert phase_of(replace(given, held=19, copied=15)).layout.shared == 4


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ({"held": 60}, "held", "60 held leave 196 of 256 experts, which 3 GPUs cannot provide"),
        ({"copied": 65}, "copied", "65 must be 1 to 64"),
        ({"ranks": 40, "experts": 32}, "ranks", "must be 2 to 32"),
        ({"dep_ranks": 40, "experts": 32}, "dep_ranks", "more than there are experts; allowed: 2 to 32"),
        ({"top_k": 300}, "top_k", "more than there are; allowed: 1 to 256"),
        ({"moe_layers": 62}, "moe_layers", "more than there are; allowed: 1 to 61"),
    ],
)
def test_contradictory_sizes_are_refused(given: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ask(DWDP, given)
    (problem,) = refused.value.problems
    assert problem.path == path
    assert words in problem.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"chunked": True}, "in chunks of 8,192 tokens a layer waits 5"),
        ({"prompt_tokens": 40_000}, "Prompts of 40,000 tokens exceed an iteration of 32,768"),
        ({"max_tokens": 8_192}, "At 16,384 tokens an iteration the paper measured 1.01"),
        ({"max_tokens": 256, "prompt_tokens": 256}, "An iteration of 256 tokens is a decode step"),
        ({"link_gb_per_s": 50.0}, "A link of 50 GB/s one way is not NVLink"),
        ({"ranks": 2}, "Experts take 190 GB of the 186 GB"),
        ({"gpu": "B200"}, "here they are assumed"),
        ({"gpu": "H100", "ranks": 8}, "window of 10–11 ms as on GB200. Here a layer computes for 55 ms"),
        ({"link_gb_per_s": 300.0}, "A mean wait of the context GPUs above"),
    ],
)
def test_doubts_about_the_answer_are_shown(given: dict[str, Any], words: str) -> None:
    assert any(words in one for one in ask(DWDP, given).cautions)
    assert ask(DWDP, {}).cautions == ()


def test_throughput_over_user_speed_shows_the_published_gain_and_no_more_sequences_than_fit() -> None:
    answer = ask(DWDP, {"generation_gpus": 8})
    curve = next(table for table in answer.tables if table.title == "Points of the curve")
    rows = [dict(zip(curve.columns, row, strict=True)) for row in curve.rows]
    users, gains = ([cast(float, row[name]) for row in rows] for name in ("TPS/user", "without whole groups"))
    assert users == sorted(users, reverse=True)
    assert all(row["TPS/GPU, DWDP"] >= row["TPS/GPU, DEP"] for row in rows)  # type: ignore[operator]
    near = [gain for user, gain in zip(users, gains, strict=True) if 20 <= user <= 100]
    assert 1.05 < min(near) < fmean(near) < max(near) < 1.13
    assert max(cast(int, row["Sequences per generation GPU"]) for row in rows) < 512
    chart = next(chart for chart in answer.charts if chart.title == "TPS/GPU against TPS/user")
    assert [line.name for line in chart.series if line.dashed] == [
        f"published: DEP x {ratio}" for ratio in (1.06, 1.088, 1.12)
    ]
    assert all(row["TTFT, DWDP, ms"] > 1.5 * row["TTFT, DEP, ms"] for row in rows)  # type: ignore[operator]
    none = ask(DWDP, {"generation_gpus": 1})
    assert not any(chart.title == "TPS/GPU against TPS/user" for chart in none.charts)
    assert any(one.startswith("No curve: 1 generation GPUs") for one in none.cautions)


def test_the_gain_ends_where_a_user_is_served_fastest_and_both_modes_have_whole_groups() -> None:
    curve = next(table for table in ask(DWDP, {}).tables if table.title == "Points of the curve")
    rows = [dict(zip(curve.columns, row, strict=True)) for row in curve.rows]
    gpus = [(cast(int, row["Context GPUs, DEP"]), cast(int, row["DWDP"])) for row in rows]
    assert all(dep % 4 == dwdp % 4 == 0 for dep, dwdp in gpus)
    gains = [cast(float, row["without whole groups"]) for row in rows]
    assert gains == sorted(gains)
    assert gains[0] < 1.02
    assert rows[0]["DWDP over DEP"] == 1.0
    assert fmean(cast(float, row["DWDP over DEP"]) for row in rows[-6:]) == pytest.approx(1.12, abs=0.03)


def test_the_page_of_findings_has_the_gains_of_the_curve_with_and_without_whole_groups() -> None:
    text = (ROOT / "docs/findings/reproduced.md").read_text()
    curves = [within(curve_of(DwdpInputs(generation_gpus=gpus))) for gpus in (4, 8, 32)]
    four, eight, many = ([point.even_gain for point in curve] for curve in curves)
    spans = [f"{min(gains):.2f} to {max(gains):.2f}" for gains in (four, eight)]
    assert f"with 4 generation GPUs {spans[0]}, with 8 {spans[1]}, with 32 {fmean(many):.2f}." in text
    whole = [[point.gain for point in curve] for curve in curves[:2]]
    jumps = [f"{min(gains):.1f} to {max(gains):.1f}" for gains in whole]
    assert f"In whole groups of four it jumps: {jumps[0]} and {jumps[1]}." in text


@dataclass(frozen=True)
class PlayedPoint:
    """A row of the points played in docs/findings/reproduced.md; pairs are of DEP and DWDP."""

    prompts_per_s: str
    gpus: str
    of_curve: tuple[str, str]  # TPS/GPU, mean TTFT in s
    played: tuple[str, str]


def played_points() -> list[PlayedPoint]:
    text = (ROOT / "docs/findings/reproduced.md").read_text()
    rows = text.partition("* **Points played**")[2].partition("![")[0].split("|---|")[-1]
    lines = (re.split(r" *\| *", line.strip(" |")) for line in rows.splitlines() if "→" in line)
    return [PlayedPoint(rate, gpus, (tps, ttft), (played, late)) for rate, gpus, tps, played, ttft, late in lines]


def pair(dep: float, dwdp: float, form: str) -> str:
    return f"{dep:{form}} → {dwdp:{form}}"


def test_the_page_of_findings_has_the_curve_at_the_points_played() -> None:
    rows = played_points()
    assert len(rows) == 3
    points = {f"{point.demand.prompts_per_s:#.3g}": point for point in curve_of(DwdpInputs())}
    for row in rows:
        dep, dwdp = points[row.prompts_per_s].dep, points[row.prompts_per_s].dwdp
        assert row.gpus == pair(dep.gpus, dwdp.gpus, "d")
        assert row.of_curve == (
            pair(dep.tokens_per_gpu, dwdp.tokens_per_gpu, ",.0f"),
            pair(dep.ttft_s, dwdp.ttft_s, ".2f"),
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.django_db
@pytest.mark.parametrize("row", played_points(), ids=lambda row: row.prompts_per_s)
def test_the_page_of_findings_has_the_points_as_they_are_played(data_dir: Path, otto: User, row: PlayedPoint) -> None:
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / "fleet-pd-dwdp.yaml").read_text()), "ada")
    pool = PoolFacts("r1", "sim", "deepseek-r1", {"context_servers": "dwdp"})
    assert DWDP.playable is not None
    rate = f"{float(row.prompts_per_s):.3g} prompts/s"
    (play,) = (play for play in DWDP.playable.plays(DwdpInputs(), [pool]) if rate in play.title)
    experiment = services.start_experiment(ExperimentIn.model_validate(play.body), Actor("user", "otto"))
    running.run_experiment(experiment.pk)
    experiment.refresh_from_db()
    arms = cast("list[dict[str, Any]]", results_of(experiment)["arms"])
    dep, dwdp = (cast(float, arm["tokens_per_gpu_s"]) for arm in arms)
    waits = [
        fmean(one.ttft_ms or 0.0 for one in read(run.records_path)) / 1e3 for run in experiment.runs.order_by("pk")
    ]
    assert row.played == (pair(dep, dwdp, ",.0f"), pair(waits[0], waits[1], ".2f"))


def test_a_point_is_played_with_the_gpus_of_the_curve() -> None:
    pool = PoolFacts("r1", "sim", "deepseek-r1", {"context_servers": "dwdp"})
    assert DWDP.playable is not None
    plays = list(DWDP.playable.plays(DwdpInputs(), [pool]))
    assert len(plays) == 7
    points = curve_of(DwdpInputs())[: len(plays)]
    for play, point in zip(plays, points, strict=True):
        dep, dwdp = (arm.rpartition("name=")[2] for arm in cast("list[str]", play.body["arms"]))
        assert (dep, dwdp) == (f"DEP4x{point.dep.gpus // 4}", f"DWDP4x{point.dwdp.gpus // 4}")
        assert f"{point.dep.gpus} context GPUs in DEP, {point.dwdp.gpus} in DWDP" in play.title
    assert not list(DWDP.playable.plays(DwdpInputs(ranks=2), [pool]))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("model", "gpu", "ranks"),
    [("gpt-oss-120b", "B200", 4), ("Kimi-K2.5-NVFP4", "B300", 8), ("Mixtral-8x7B-v0.1", "H100", 4)],
)
def test_a_point_of_each_model_of_the_catalogue_is_played_on_simulated_groups(
    data_dir: Path, otto: User, model: str, gpu: str, ranks: int
) -> None:
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / "fleet-pd-dwdp.yaml").read_text()), "ada")
    pool = PoolFacts("r1", "sim", "deepseek-r1", {"context_servers": "dwdp"})
    real = PoolFacts("real", "trtllm", "deepseek-r1", {"prefill_instances": 4})
    assert DWDP.playable is not None
    inputs = DwdpInputs(model=model, gpu=gpu, ranks=ranks, dep_ranks=ranks, max_tokens=16_384, hot_experts=1.2)
    first, *_ = DWDP.playable.plays(inputs, [pool, real])
    assert first.pool == "r1"
    assert all("fleet.context_hot_experts=1.2" in str(arm) for arm in cast("list[str]", first.body["arms"]))
    body = ExperimentIn.model_validate({**first.body, "duration_s": 8})
    number = services.start_experiment(body, Actor("user", "otto")).pk
    running.run_experiment(number)
    records = {run.arm: read(run.records_path) for run in Experiment.objects.get(pk=number).runs.all()}
    assert len(records) == 2
    assert {one.outcome for found in records.values() for one in found} == {"ok"}
    assert not list(DWDP.playable.plays(replace(inputs, layers=30, moe_layers=30), [pool]))


@pytest.mark.django_db
@pytest.mark.parametrize("example", ["fleet-dwdp", "fleet-pd-dwdp"])
def test_a_point_of_the_curve_is_played_from_the_page(
    data_dir: Path, example: str, vera_client: Client, otto_client: Client
) -> None:
    nothing = otto_client.get("/systems/dwdp/").content.decode()
    assert "examples/fleet-pd-dwdp.yaml is a simulated one" in nothing
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / f"{example}.yaml").read_text()), "ada")
    assert 'disabled aria-describedby="locked">Play this' in vera_client.get("/systems/dwdp/").content.decode()
    page = otto_client.get("/systems/dwdp/").content.decode()
    (form,) = re.findall(r'<form[^>]*action="/experiments/new".*?</form>', page, re.DOTALL)
    assert "csrfmiddlewaretoken" in form
    bodies = [html.unescape(body) for body in re.findall(r'<option value="([^"]*)"', form)]
    assert len(bodies) == 7
    for body in bodies:
        services.settled(ExperimentIn.model_validate_json(body), Actor("user", "otto"))
    assert vera_client.post("/experiments/new", {"body": bodies[3]}).status_code == 403
    assert otto_client.post("/experiments/new", {"body": "[]"}).status_code == 422
    started = otto_client.post("/experiments/new", {"body": json.dumps({**json.loads(bodies[3]), "duration_s": 8})})
    number = Experiment.objects.get().pk
    assert started.headers["Location"] == f"/experiments/{number}/"
    assert AuditEntry.objects.filter(action="experiment.start", actor_name="otto").count() == 1
    running.run_experiment(number)
    records = {run.arm: read(run.records_path) for run in Experiment.objects.get().runs.all()}
    assert list(records) == ["DEP4x2", "DWDP4x2"]
    assert {one.outcome for found in records.values() for one in found} == {"ok"}
    assert all(one.cached_pulled for found in records.values() for one in found)  # computed on context servers
    dep, dwdp = (fmean(one.ttft_ms or 0.0 for one in found) for found in records.values())
    assert dwdp > 1.5 * dep


@pytest.mark.django_db
def test_hot_experts_are_also_played_on_a_pool_of_the_kind_trtllm(data_dir: Path, otto: User) -> None:
    fleet.apply_fleet(yaml.safe_load((ROOT / "examples" / "fleet-dwdp.yaml").read_text()), "ada")
    pool = PoolFacts("r1", "trtllm", "deepseek-r1", {"prefill_instances": 4})
    assert DWDP.playable is not None
    first, *_ = DWDP.playable.plays(DwdpInputs(hot_experts=1.2), [pool])
    arms = services.settled(ExperimentIn.model_validate(first.body), Actor("user", "otto")).arms
    assert [arm["fleet"]["engine"]["hot_experts"] for arm in arms] == [1.2, 1.2]


@pytest.mark.django_db
def test_the_documented_comparison_computes_every_prompt_on_context_servers_of_its_arm(data_dir: Path) -> None:
    (link,) = DWDP.links
    (body,) = parse_qs(urlsplit(link.href).query)["body"]
    assert json.loads(body) == COMPARED
    assert all(f'"{arm}"\n' in (ROOT / "docs" / "systems.md").read_text() for arm in COMPARED["arms"])  # type: ignore[union-attr]
    document = yaml.safe_load((ROOT / "examples" / "fleet-dwdp.yaml").read_text())
    fleet.apply_fleet(document, "ada")
    asked = ExperimentIn.model_validate({**COMPARED, "pool": "r1", "duration_s": 60})
    number = services.start_experiment(asked, Actor("user", "otto")).pk
    running.run_experiment(number)
    runs = {run.arm: run for run in Experiment.objects.get(pk=number).runs.all()}
    assert {name: len(run.facts["instances"]) for name, run in runs.items()} == {"DWDP4": 5, "DEP4": 2}
    records = {name: read(run.records_path) for name, run in runs.items()}
    for name, server in {"DWDP4": "r1-4", "DEP4": "r1-1"}.items():
        assert {(one.outcome, one.instance) for one in records[name]} == {("ok", server)}
        assert all(one.cached_pulled for one in records[name])  # computed on a context server
    dwdp, dep = (fmean(one.ttft_ms or 0.0 for one in records[name]) for name in runs)
    assert abs(dwdp / dep - 1) > 0.05


@pytest.mark.parametrize(("prompt_tokens", "filled"), [(922, 98.6), (7_373, 90.0), (14_746, 90.0), (29_491, 90.0)])
def test_the_preset_of_the_context_phase_alone_has_the_published_throughput(prompt_tokens: int, filled: float) -> None:
    given = {**DWDP.presets["Context only, as published"], "prompt_tokens": prompt_tokens, "filled": filled}
    answer = ask(DWDP, given)
    assert fact(answer, "Throughput per context GPU") == pytest.approx(1.1, abs=0.02)
    assert fact(ask(DWDP, {**given, "between_ms": 0.0}), "Throughput per context GPU") > 1.11  # type: ignore[operator]


def test_deviations_are_reported_beside_the_published_values() -> None:
    told = {figure.name: figure.note for figure in figures("dwdp")}
    assert told["TPS/GPU by MNT: 16384"] == "missed"
    assert told["TPS/GPU, whole pulls: 0.5/16384"] == "missed"
    assert not told["TTFT by prompt: 8192"].startswith("missed")
    by_basis = Counter(figure.basis for figure in figures("dwdp"))
    assert (by_basis["fitted"], by_basis["arithmetic"]) == (7, 21)
