"""`weir plan`: the cheapest fleets that meet an SLO, from a trace file alone."""

import json
import re
from dataclasses import asdict, replace

import pytest

from controlplane.evidence.plan import fleets, planned, question, search
from controlplane.evidence.plan.command import main
from controlplane.evidence.plan.fleets import NotPlayable
from controlplane.evidence.plan.question import PlanCandidate, PlanQuestion, busiest, fingerprint, space_of
from controlplane.evidence.plan.search import best, cheapest, halved, plan
from controlplane.evidence.plan.tests.test_replay import FLEET
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.twin.expected_error import ExpectedError
from fleet import subprocess
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.spec.document import load
from fleet.spec.fleet_spec import FleetSpec, PoolSpec, parse_fleet

SLO = {"all": {"ttft_ms": 3_000, "tpot_ms": 60}}
VLLM_FLEET = FLEET.replace("kind: sim\n", "kind: vllm\n", 1)
QUESTION = PlanQuestion("Llama-3.1-8B", {"h100_sxm": 5.0}, SLO, 0.9, ("priced",), 2)


@pytest.fixture(scope="module")
def requests():
    return busiest(generate(seed=3, duration_s=240).requests, 40)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(question, "PARALLEL", (1, 2))
    for name, value in (("GO_ON", 3), ("FINAL", 2)):
        monkeypatch.setattr(search, name, value)
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take, **_: function(job, take))


def candidate(replicas: int, dollars: float, policy: str = "priced") -> PlanCandidate:
    return PlanCandidate(PoolSpec("plan", "m", "sim", replicas, policy, engine={"tp": 1}), replicas, dollars)


def test_a_plan_finds_a_fleet_that_meets_the_slo_and_repeats_byte_for_byte(requests, few):
    done = []
    answer = plan(QUESTION, requests, "closed_loop", lambda at, total: done.append((at, total)))
    assert answer.holds is not None
    assert answer.holds.low >= 0.9 <= answer.holds.if_slower <= answer.holds.low
    prices = [row.candidate.per_hour for row in answer.rows]
    assert prices == sorted(prices)
    for loads in (list(row.at_load.items()) for row in answer.rows):
        *held, last = loads
        assert [load for load, _ in loads] == [1.0, 1.1, 1.25, 1.5][: len(loads)]
        assert all(share >= 0.9 for _, share in held)
        assert len(loads) == 4 or last[1] < 0.9, "greater loads are not played"
    assert all(at <= total for at, total in done)
    again = plan(QUESTION, requests, "closed_loop")
    assert planned.as_json(QUESTION, again) == planned.as_json(QUESTION, answer)
    text = planned.markdown(planned.as_json(QUESTION, answer))
    assert "Simulated: no engine was started. 40 requests" in text
    assert "Expected error: TPOT" in text
    assert answer.fingerprint in text
    assert fingerprint(replace(QUESTION, share=0.8), requests, "closed_loop") != answer.fingerprint


def test_a_fleet_that_meets_the_slo_only_if_engines_are_as_fast_as_predicted_is_undecided(requests, few, monkeypatch):
    unsure = ExpectedError(tpot=99.0, e2e=None, ttft_mean=None, ttft_p99=None)
    monkeypatch.setattr(fleets.expected_error, "of_built_in", lambda *_: unsure)
    answer = plan(QUESTION, requests, "closed_loop")
    assert answer.holds is None
    assert answer.undecided == next(row for row in answer.rows if row.low >= 0.9 > row.if_slower)
    said = planned.verdict(planned.as_json(QUESTION, answer))
    assert "with the expected error counted" in said
    assert "; undecided: 1 × h100_sxm, TP2, priced, $10.00 an hour, holds it unless engines are slower;" in said
    monkeypatch.setattr(fleets.expected_error, "of_built_in", lambda *_: {**unsure, "tpot": 0.0})
    sure = plan(QUESTION, requests, "closed_loop")
    assert (sure.holds, sure.undecided) == (sure.rows[0], None)
    both = {**planned.as_json(QUESTION, sure), "undecided": {**planned.as_json(QUESTION, sure)["holds"], "replicas": 9}}
    assert planned.verdict(both).endswith("an hour, holds it unless engines are slower.")
    assert "undecided" not in planned.verdict(planned.as_json(QUESTION, sure))


def test_no_fleet_meets_a_limit_that_no_engine_reaches(requests, few):
    hopeless = replace(QUESTION, slo={"all": {"tpot_ms": 0.1}}, most_gpus=2)
    answer = plan(hopeless, requests, "closed_loop")
    assert answer.holds is None
    assert "No fleet of at most 2 GPUs holds the SLO for 90% of each class" in planned.markdown(
        planned.as_json(hopeless, answer)
    )
    assert "TPOT at ×1" in answer.rows[0].breaks_first


def test_a_layout_too_small_for_a_request_is_named_and_more_work_needs_more_instances(requests, few):
    strict = replace(QUESTION, slo={"all": {"e2e_ms": 1_000}}, most_gpus=512)
    dense = [replace(one, at_s=one.at_s / 200) for one in requests]
    least, of_dense = (
        min(one.pool.replicas for one in space_of(strict, part, "timestamps").candidates) for part in (requests, dense)
    )
    assert of_dense > least >= 1
    no_limit_of_tpot = replace(QUESTION, slo={"all": {"ttft_ms": 1}})
    assert min(one.pool.replicas for one in space_of(no_limit_of_tpot, dense, "timestamps").candidates) == 1
    long = [replace(requests[0], input_tokens=3_000_000)]
    assert "does not fit" in space_of(QUESTION, long, "timestamps").left_out[0]


def test_measured_layouts_of_ranks_and_dealt_experts_are_candidates(requests, few):
    mixture = replace(QUESTION, model="Qwen3-30B-A3B", most_gpus=8)
    ranked = [
        one
        for one in space_of(mixture, requests, "closed_loop").candidates
        if one.pool.engine.get("data_parallel_size") == 2 and one.pool.engine["tp"] == 1
    ]
    assert {one.gpus for one in ranked} == {2 * one.pool.replicas for one in ranked} >= {2, 4}
    assert {one.pool.policy for one in ranked} == {"priced"}, "simulated ranks move no KV"
    first = ranked[0].fleet
    assert (len(first.twin.instances), first.gpus, first.per_hour) == (2, 2, 10.0)
    row = {"replicas": 1, "engine": {**ranked[0].pool.engine}}
    assert planned.fleet_text(row) == "1 × h100_sxm, TP1, DP2, EP"
    played = search.simulate(first.twin, ranked[0].policy, requests[:3], pacing="closed_loop", seed=1)
    assert all(one.outcome == "ok" for one in played.requests)
    engine = next(iter(first.twin.instances.values()))
    both, rank = (question.PlanLayout("", pool, engine, 2, 5.0) for pool in (ranked[0].pool, candidate(1, 5).pool))
    bound = question.PlanBound(((requests, [0] * len(requests)),), 0.01)
    least = question._least(mixture, rank, bound)
    assert question._least(mixture, both, bound) == (least + 1) // 2 < least


def test_no_fleet_is_excluded_because_of_work_that_may_wait(requests, few):
    dense = [replace(one, at_s=one.at_s / 200) for one in requests]

    def too_small(pacing, *classes):
        strict = replace(QUESTION, slo={name: {"e2e_ms": 1_000} for name in classes}, most_gpus=512)
        return space_of(strict, dense, pacing).too_small

    assert too_small("timestamps", "all") > 0 == too_small("closed_loop", "all")
    assert too_small("timestamps", "medium") < too_small("timestamps", "all")
    sizes = [one.pool.replicas for one in space_of(replace(QUESTION, most_gpus=512), dense, "closed_loop").candidates]
    assert min(sizes) == 1 < 4 < max(sizes), "small fleets and those that the work keeps busy"


def test_a_window_is_long_enough_for_the_limits_of_the_slo(requests, few, monkeypatch):
    monkeypatch.setattr(search, "LEAST", 1)
    played, simulate = [], search.simulate
    monkeypatch.setattr(
        search, "simulate", lambda *given, **more: played.append(len(given[2])) or simulate(*given, **more)
    )
    small = replace(requests[0], input_tokens=100, blocks=())
    late = [*(replace(small, index=at) for at in range(4)), replace(small, index=4, input_tokens=60_000)]
    of_heavy = replace(QUESTION, slo={"heavy": {"ttft_ms": 60_000}}, most_gpus=1)
    assert plan(of_heavy, late, "closed_loop").holds is not None
    assert {*played} == {5}
    with pytest.raises(NotPlayable, match=r"limits for heavy \(of the classes of the requests: warm; or all\)"):
        plan(of_heavy, late[:4], "closed_loop")


def test_a_robust_fleet_is_listed_beside_an_equally_cheap_fleet_that_needs_fast_engines():
    loads = dict.fromkeys(search.HEADROOM, 0.95)
    holds = search.PlanRow(candidate(2, 5), 0.95, 0.95, 0.92, loads, "", ())
    barely = replace(holds, if_slower=0.5, at_load=dict.fromkeys(search.HEADROOM, 1.0))
    worse = replace(holds, at_load={**loads, 1.5: 0.9})
    assert search.frontier([barely, holds, worse, holds]) == (barely, holds)
    broken = replace(holds, low=0.5, high=0.5, if_slower=0.5, at_load={1.0: 0.5})
    assert search.frontier([broken, holds]) == (holds,)
    assert search.frontier([replace(broken, candidate=candidate(1, 5)), holds])[1:] == (holds,)


def test_the_cheapest_of_each_shape_is_tried_first():
    scored = [(1.0, candidate(3, 5)), (0.95, candidate(2, 5)), (0.5, candidate(1, 5)), (1.0, candidate(4, 5, "lpwl"))]
    kept = best(scored, 0.9, 2)
    assert [(one.pool.policy, one.pool.replicas) for one in kept] == [("priced", 2), ("lpwl", 4)]
    assert [one.pool.replicas for one in best([(0.1, candidate(1, 5)), (0.2, candidate(2, 5))], 0.9, 1)] == [2]


def test_halving_plays_few_sizes_of_each_shape_and_finds_the_smallest_that_holds_the_share():
    rounds = []

    def shares(fleets):
        rounds.append([(one.pool.policy, one.pool.replicas) for one in fleets])
        return [one.pool.replicas / (10 if one.pool.policy == "lpwl" else 1000) for one in fleets]

    every = [candidate(size, 5, policy) for policy in ("priced", "lpwl") for size in (8, 7, 6, 5, 4, 3, 2, 1)]
    found = {(one.pool.policy, one.pool.replicas): share for share, one in halved(every, 0.3, shares)}
    held = {size: share for (policy, size), share in found.items() if policy == "lpwl" and share >= 0.3}
    assert held == {3: 0.3, 4: 0.3, 5: 0.5, 6: 0.3, 7: 0.3, 8: 0.3}, (
        "a larger fleet counts as the smallest, if unplayed"
    )
    assert {size for policy, size in found if policy == "priced"} == {5, 7, 8}, "the nearest, if none holds it"
    assert sum(map(len, rounds)) == 6 < 16


def test_no_fleet_dearer_than_enough_that_hold_the_share_is_played():
    every = [candidate(size, 5, policy) for size in (4, 3, 2, 1) for policy in ("priced", "lpwl")]
    played = []

    def shares(fleets):
        played.extend(one.pool.replicas for one in fleets)
        return [one.pool.replicas / 10 for one in fleets]

    whole = [(one.pool.replicas / 10, one) for one in every]
    for least, sizes in ((0.2, {1, 2}), (0.5, {1, 2, 3, 4})):
        played.clear()
        assert best(cheapest(every, least, 2, shares), least, 2) == best(whole, least, 2)
        assert ({*played}, len(played)) == (sizes, 2 * len(sizes))


def test_the_busiest_sequence_of_requests_is_played():
    slow = generate(seed=3, duration_s=240).requests[:40]
    later = [replace(one, at_s=1_000 + one.at_s / 50) for one in slow]
    part = busiest([*slow, *later], 40)
    assert part[0].at_s == 0
    assert part[-1].at_s == pytest.approx((slow[-1].at_s - slow[0].at_s) / 50)
    assert [one.index for one in part] == list(range(40))


def test_the_command_writes_json_and_the_draft_of_a_row_with_its_difference(tmp_path, capsys, few, monkeypatch):
    current = FLEET.replace("{tp: 2,", "{tp: 2, kv: nixl, prefill_instances: 1,")
    current = current.replace("      slo:", "      autoscale: {min: 2, max: 3, target_kv: 0.8}\n      slo:")
    (tmp_path / "fleet.yaml").write_text(current)
    files = {name: tmp_path / name for name in ("a.json", "draft.yaml")}
    words = ["plan", "agentic-demo", "--requests", "40", "--slo", "ttft=3000,tpot=60", "--most-gpus", "2"]
    words += ["--fleet", str(tmp_path / "fleet.yaml")]
    given = ["--json", str(files["a.json"]), "--draft", str(files["draft.yaml"])]
    assert main([*words, *given]) == 0
    out = capsys.readouterr().out
    row = json.loads(files["a.json"].read_text())["rows"][0]
    pool = next(one for one in parse_fleet(load(files["draft.yaml"].read_text())).pools if one.name == "chat")
    assert pool.replicas == row["replicas"]
    assert dict(pool.engine) == row["engine"], "of the current engine nothing stays that was not played"
    assert pool.autoscale["min"] == min(2, pool.replicas) <= pool.replicas <= pool.autoscale["max"]
    assert "+++ draft" in out
    assert "+      model_profile: Llama-3.1-8B" in out
    assert "-      prefill_instances: 1" in out
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda *_, **__: json.loads(files["a.json"].read_text()))
    assert main([*words, *given, "--row", "99"]) == 2
    told = capsys.readouterr()
    assert told.out in out, "a wrong row does not lose the answer"
    assert "--row: 99 (1 to " in told.err


def test_the_autoscaler_may_add_as_many_instances_as_meet_the_slo_at_more_load():
    shares = {1: (0.9, 0.8, 0.5, 0.1), 2: (1, 1, 0.9, 0.5), 4: (1, 1, 1, 0.8)}
    rows = [
        {"replicas": count, "engine": {"tp": 1}, "at_load": dict(zip(("1", "1.1", "1.25", "1.5"), held, strict=True))}
        for count, held in shares.items()
    ]
    rows.append({**rows[-1], "replicas": 9, "engine": {"tp": 2}})
    assert [planned.most_instances({"rows": rows, "share": 0.9}, row) for row in rows] == [2, 2, 4, 9]


def test_the_difference_shows_no_secret():
    pool = PoolSpec("chat", "m", "vllm", 1, "p", engine={"environment": {"HF_TOKEN": "s3cret"}})
    row = {"replicas": 2, "engine": {"tp": 1}}
    made, changes = planned.draft({"rows": [row]}, row, FleetSpec("f", (pool, replace(pool, name="code"))), "chat")
    assert "-        HF_TOKEN: (hidden)" in changes
    assert ("s3cret" in changes, made.count("s3cret")) == (False, 1)


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run_in_subprocess", interrupted)
    assert main(["plan", "agentic-demo", "--slo", "ttft=9"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_row_cannot_become_the_draft_of_a_pool_of_real_engines(tmp_path, capsys):
    (tmp_path / "fleet.yaml").write_text(
        re.sub("engine: .*", "engine: {tensor_parallel: 8, attention_dp: true}", FLEET).replace(
            "m\n      kind: sim\n", "DeepSeek-R1\n      kind: trtllm\n"
        )
    )
    words = ["plan", "agentic-demo", "--slo", "ttft=9", "--fleet", str(tmp_path / "fleet.yaml"), "--draft", "never"]
    assert main(words) == 2
    assert "--fleet: pool chat has the kind trtllm (only sim" in capsys.readouterr().err


@pytest.fixture
def measured(tmp_path):
    """A pool of vLLM in a fleet document, and the REST answer for one of its instances."""
    (tmp_path / "fleet.yaml").write_text(re.sub("engine: .*", "engine: {max_num_seqs: 64}", VLLM_FLEET))
    row = {name: None for name in ("ttft_error", "tpot_error", "held_out", "load_range", "ended_at")}
    row |= {"instance": "chat-0", "kind": "vllm", "model": "m", "config_hash": "old", "n": 9, "notes": ["noted"]}
    row |= {"asked_at": "2026-01-01T00:00:00Z", "constants": {**asdict(law_of(profile())), "api_s": 0.01}}
    limits = {"kv_blocks": 16_384, "block_size": 16, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    row["limits"] = {**limits, "window": 262_144, "async_scheduling": True}

    def given(change=lambda row: {"measured": row, "stale": []}):
        (tmp_path / "measured.json").write_text(json.dumps(change(row)))
        return ["--calibration", str(tmp_path / "measured.json")]

    return given


def test_a_plan_without_a_control_plane_scales_measured_engines(tmp_path, capsys, few, measured):
    draft = tmp_path / "draft.yaml"
    words = ["plan", "agentic-demo", "--requests", "40", "--slo", "ttft=3000,tpot=60", "--most-gpus", "2", *measured()]
    words += ["--fleet", str(tmp_path / "fleet.yaml"), "--draft", str(draft), "--json", str(tmp_path / "a.json")]
    assert main(words) == 0, capsys.readouterr().err
    out, answer = capsys.readouterr().out, json.loads((tmp_path / "a.json").read_text())
    assert "The engines are those of the pool chat, calibrated on chat-0 on 2026-01-01" in out
    assert "the engine's settings have changed since the calibration" in out
    assert "Caution: noted." in out
    assert {row["replicas"] for row in answer["rows"]} <= {1, 2}
    pool = next(one for one in parse_fleet(load(draft.read_text())).pools if one.name == "chat")
    assert (pool.replicas, dict(pool.engine)) == (answer["rows"][0]["replicas"], {"max_num_seqs": 64})


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        (lambda row: {"measured": None}, [], "--calibration: measured is null (a finished calibration)"),
        (lambda row: [], [], "--calibration: Expected `object`, got `array` (the answer of GET"),
        (lambda row: {"measured": {**row, "model": "x"}}, [], "--calibration: model x (pool chat has m)"),
        (lambda row: {"measured": {**row, "kind": "sglang"}}, [], "--calibration: kind sglang (pool chat has vllm)"),
        (lambda row: {"measured": {**row, "limits": {}}}, [], "measured.limits lacks block_size, kv_blocks, max_num"),
        (lambda row: {"measured": {**row, "constants": {"api_s": -1}}}, [], "Expected `float` >= 0.0 - at `$.measured"),
        (
            lambda row: {"measured": {**row, "limits": {**row["limits"], "kv_blocks": True}}},
            [],
            "`bool` - at `$.measured",
        ),
        (
            lambda row: {"measured": {**row, "limits": {**row["limits"], "window": 0}}},
            [],
            ">= 1 - at `$.measured.limit",
        ),
        (lambda row: {"measured": {**row, "load_range": {"in_flight": [1, 2]}}}, [], "required field `new_tokens`"),
        (
            lambda row: {"measured": {**row, "asked_at": "2026-01-01T00:00:00"}},
            [],
            "timezone component - at `$.measured",
        ),
        (
            lambda row: {"measured": {**row, "ended_at": "2026-01-01T00:00:00"}},
            [],
            "timezone component - at `$.measured",
        ),
        (lambda row: {"measured": row}, ["--host-gb", "8"], "its engines have one GPU and their own host memory"),
        (lambda row: {"measured": row}, ["--fleet", ""], "--calibration: needs --fleet FILE"),
    ],
)
def test_a_calibration_that_does_not_match_is_refused_in_one_line(tmp_path, capsys, measured, change, more, said):
    words = ["plan", "agentic-demo", "--slo", "ttft=9", "--fleet", str(tmp_path / "fleet.yaml")]
    assert main([*words, *measured(change), *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_calibration_plans_for_equal_instances_without_a_store_that_weir_starts(tmp_path, capsys, measured):
    given = ["plan", "agentic-demo", "--slo", "ttft=9", "--fleet", str(tmp_path / "fleet.yaml")]
    document = tmp_path / "fleet.yaml"
    plain = document.read_text()
    document.write_text(plain.replace("max_num_seqs: 64", "kv: nixl, prefill_instances: 1"))
    assert main([*given, *measured()]) == 2
    assert "pool chat: its instances differ, or share a store" in capsys.readouterr().err
    document.write_text(re.sub("engine: .*", "engine: {}", plain).replace("vllm", "sim"))
    assert main([*given, *measured(lambda row: {"measured": {**row, "kind": "sim"}})]) == 2
    assert "--calibration: pool chat has the kind sim (only engines, not simulated ones)" in capsys.readouterr().err
    document.write_text(
        re.sub("engine: .*", "engine: {urls: ['http://a:1', 'http://b:1']}", plain).replace("vllm", "external")
    )
    external = measured(lambda row: {"measured": {**row, "kind": "external"}})
    assert main([*given, *external, "--draft", "never"]) == 2
    assert "--draft: Weir does not start instances of pool chat, of the kind external" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slo", "ttft=abc"], "--slo: ttft=abc (a number above 0"),
        (["--slo", "light:ttft=5"], "--slo: light:ttft=5 (a class of all,"),
        (["--slo", "ttft=5", "--slo", "all:e2e=9"], "--slo: all (once)"),
        (["--slo", "ttft=5,ttft=6"], "--slo: ttft=5,ttft=6: ttft_ms (once)"),
        (["--slo", "ttft=5", "--gpu", "h100_sxm=1", "--gpu", "h100_sxm=2"], "--gpu: h100_sxm (once)"),
        (["--slo", "itl=5"], "--slo: itl=5 (limits of ttft, tpot, e2e in ms"),
        (["--slo", "ttft=5", "--gpu", "abacus=1"], "--gpu: abacus (one of "),
        (["--slo", "ttft=5", "--gpu", "h100_sxm"], "--gpu: h100_sxm (a number above 0"),
        (["--slo", "ttft=5", "--share", "1.5"], "--share: 1.5 (more than 0, at most 1)"),
        (["--slo", "ttft=5", "--model", "GPT-9"], "--model: GPT-9 (one of "),
        (["--slo", "ttft=5", "--host-gb", "-1"], "--host-gb: -1 (0 to "),
    ],
)
def test_an_invalid_option_is_refused_in_one_line_with_its_value_and_what_is_allowed(words, said, capsys):
    assert main(["plan", "agentic-demo", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
