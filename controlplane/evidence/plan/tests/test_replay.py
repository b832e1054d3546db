"""`weir replay`: the latencies that users would have seen, from a trace file alone."""

import json
import re
from dataclasses import replace

import pytest

from controlplane.evidence.plan import fleets, report
from controlplane.evidence.plan.command import main
from controlplane.evidence.plan.load import busy_s, least_instances
from controlplane.evidence.plan.replay import ALL_SHARED, AS_IN_FILE, NOTHING_SHARED, ReplayArm, replay
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.traces.types import LoadedTrace
from router.policy.schema import document

FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: f}
spec:
  prices: {gpu_hour: 2}
  pools:
    - name: chat
      model: m
      kind: sim
      replicas: 2
      engine: {tp: 2, model_profile: Qwen3-32B}
      slo: {ttft_p90_ms: {warm: 1500, medium: 4000, heavy: 12000}}
    - {name: shared, model: m, kind: sim-store}
"""


def arm(name: str) -> ReplayArm:
    return ReplayArm(name, document.parse(document.default(name)), name == "priced")


@pytest.fixture(scope="module")
def trace() -> LoadedTrace:
    made = generate(seed=3, duration_s=120)
    return replace(made, requests=made.requests[:60])


def test_each_policy_gets_a_row_per_class_with_its_cost_and_repeats_exactly(trace):
    fleet = fleets.of_text(FLEET)
    assert (fleet.gpus, fleet.per_hour, len(fleet.twin.instances)) == (4, 8, 2)
    arms = [arm("round_robin"), arm("priced")]
    found = replay(fleet, trace, arms, most=50, seed=1)
    assert [(one.arm.name, one.prefixes) for one in found.results] == [
        ("round_robin", AS_IN_FILE),
        ("priced", AS_IN_FILE),
    ]
    for one in found.results:
        felt = one.classes["all"]
        assert felt.n == 50 == sum(of_class.n for name, of_class in one.classes.items() if name != "all")
        assert felt.ttft_p50 <= felt.ttft_p90 <= felt.ttft_p99
        assert 0 <= felt.within <= 1
        assert one.per_million > 0
    text = report.markdown(found)
    assert "50 of 60 requests (generated, paced by closed_loop) on 2 engines, 4 GPUs, $8.00 an hour" in text
    assert "Expected error: TPOT" in text
    assert "| priced (Weir)" in text
    assert report.markdown(replay(fleet, trace, arms, most=50, seed=1)) == text


def test_a_trace_without_prefixes_is_bounded_from_both_sides(trace):
    bare = replace(trace, requests=tuple(replace(one, blocks=()) for one in trace.requests))
    found = replay(fleets.of_text(FLEET), bare, [arm("priced")], most=60, seed=1)
    nothing, everything = found.results
    assert (nothing.prefixes, everything.prefixes) == (NOTHING_SHARED, ALL_SHARED)
    (known,) = replay(fleets.of_text(FLEET), trace, [arm("priced")], most=60, seed=1).results
    assert nothing.classes["all"].cached == 0
    assert nothing.classes["all"].cached < known.classes["all"].cached < everything.classes["all"].cached
    text = report.markdown(found)
    assert "## If no prompt shares a prefix" in text
    assert "what caches save cannot be known" in text


def test_requests_too_large_for_the_engines_are_counted_and_refused_if_there_are_no_others(trace):
    far = replace(trace.requests[0], session="far", input_tokens=3_000_000)
    found = replay(
        fleets.of_text(FLEET), replace(trace, requests=(far, *trace.requests)), [arm("priced")], most=9, seed=1
    )
    assert f"Left out: 1 request of the file that does not fit {found.window:,} tokens" in report.markdown(found)
    with pytest.raises(fleets.NotPlayable, match="no request of the trace fits"):
        replay(fleets.of_text(FLEET), replace(trace, requests=(far,)), [arm("priced")], most=9, seed=1)


def test_the_page_loads_nothing_from_the_network_and_shows_a_picture_for_each_class(trace):
    found = replay(fleets.of_text(FLEET), trace, [arm("priced"), arm("llm_d")], most=40, seed=1)
    page = report.html(found)
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 2 * len(found.results[0].classes)


def test_an_assumed_fleet_is_named_and_grows_with_the_work(trace):
    few = fleets.assumed_for(trace.requests)
    engine = next(iter(few.twin.instances.values()))
    dense = [replace(one, at_s=one.at_s / 40) for one in trace.requests]
    assert least_instances(engine, dense) > least_instances(engine, trace.requests) >= 1
    assert few.assumed.startswith(f"No fleet was given. Assumed: {few.pool.replicas} H100 with Llama-3.1-8B")
    nothing_found = [0] * len(trace.requests)
    all_found = [one.input_tokens for one in trace.requests]
    assert busy_s(engine, trace.requests, nothing_found) > busy_s(engine, trace.requests, all_found) > 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("replicas: 2", "replicas: 0"), r"pool chat: replicas is 0 \(1 or more\)"),
        (("kind: sim-store", "kind: sim"), "the document has 2 pools that serve: name one of chat, shared"),
        (("kind: sim\n", "kind: vllm\n"), "engine"),
        (("tp: 2", "tp: 3"), "tp"),
        ((FLEET, "\udcd0"), "UTF-8 text, a fleet document"),
    ],
)
def test_a_fleet_that_cannot_be_played_is_refused_in_one_line(changed, said, tmp_path, capsys):
    (tmp_path / "fleet.yaml").write_text(FLEET.replace(*changed), errors="surrogateescape")
    assert main(["replay", "agentic-demo", "--fleet", str(tmp_path / "fleet.yaml"), "--requests", "5"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("weir replay: ")
    assert error.count("\n") == 1
    assert re.search(said, error)


def test_the_command_writes_its_reports_and_plays_a_given_policy(tmp_path, capsys):
    (tmp_path / "fleet.yaml").write_text(FLEET)
    policies = [tmp_path / name for name in ("mine.json", "a|b.json", "other/a|b.json")]
    (tmp_path / "other").mkdir()
    for policy in policies:
        policy.write_text(json.dumps({"strategy": {"name": "lpwl"}}))
    words = ["agentic-demo", "--fleet", str(tmp_path / "fleet.yaml"), "--present", "round_robin", "--requests", "20"]
    files = {name: str(tmp_path / name) for name in ("r.md", "r.html")}
    given = [word for policy in policies for word in ("--policy", str(policy))]
    given += ["--markdown", files["r.md"], "--html", files["r.html"]]
    assert main(["replay", *words, *given]) == 0
    out = capsys.readouterr().out
    assert out == (tmp_path / "r.md").read_text()
    assert [line.split()[1] for line in out.splitlines() if line.startswith("| ")][1:6] == [
        "round_robin",
        "priced",
        "mine",
        *(str(policy).replace("|", "\\|") for policy in policies[1:]),
    ], "files of one name are told apart by their paths, and no bar of a name ends a cell"
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_an_invalid_trace_policy_or_number_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []}\n')
    (tmp_path / "p.json").write_text("[")
    assert main(["replay", str(tmp_path / "t.jsonl")]) == 2
    assert "line 1, input_length: -1 (a whole number from 1" in capsys.readouterr().err
    assert main(["replay", "agentic-demo", "--policy", str(tmp_path / "p.json")]) == 2
    assert "p.json: one JSON object" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "missing.jsonl")]) == 2
    (tmp_path / "t.jsonl").write_text(
        '{"timestamp": 0, "input_length": 2000, "output_length": 1, "hash_ids": [1, 5, 9, 13]}\n'
    )
    monkeypatch.setattr("controlplane.evidence.traces.summary.MAX_INTERVALS", 3)
    assert main(["replay", str(tmp_path / "t.jsonl")]) == 2
    assert "too many gaps" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["replay", "agentic-demo", "--requests", "0"])
    assert "0 (a whole number from 1 to 200,000)" in capsys.readouterr().err
