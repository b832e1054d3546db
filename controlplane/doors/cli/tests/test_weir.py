"""Experiments, fleet, previews and explanations from a pipeline, and how errors are reported."""

import io
import json
import subprocess
import sys
import urllib.error
from email.message import Message
from pathlib import Path

import pytest

from controlplane.doors.cli.weir import simulations, waiting
from controlplane.evidence.experiments import running
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.tests.conftest import body
from controlplane.evidence.traces import generated
from controlplane.evidence.tuning import running as tuning_running
from controlplane.evidence.tuning import search
from controlplane.evidence.tuning.models import Tuning
from controlplane.testing import api_caller
from fleet import subprocess as preview_subprocess
from fleet.models import Pool
from fleet.tests.discovery.other_engines import SERVERS, OtherEngine
from router.contract.installation import VERSION

pytestmark = pytest.mark.django_db
COMMANDS = (
    *("experiment run", "experiment wait", "policy export", "policy diff", "policy apply"),
    *("fleet apply", "preview", "tune", "explain"),
)


@pytest.fixture
def worker(monkeypatch):
    """Runs each queued task immediately."""
    monkeypatch.setattr("controlplane.celery.app.send_task", lambda name, args, queue: running.run_experiment(*args))


def experiment(tmp_path, expect, **changes):
    path = tmp_path / "experiment.json"
    asked = body(mode="twin", time_scale=1, duration_s=20, expect=expect, **changes)
    path.write_text(json.dumps(asked))
    return path


@pytest.mark.parametrize(
    ("expect", "status", "word"),
    [
        ([{"metric": "ttft_p90_ms", "max": 1e9}], 0, "pass"),
        ([{"metric": "ttft_p90_ms", "max": 0.001}], 1, "fail"),
        ([], 0, "done: nothing was expected"),
    ],
)
def test_the_exit_status_is_the_verdict(run, worker, demo, tmp_path, data_dir, expect, status, word):
    files = {name: tmp_path / name for name in ("junit", "report", "results")}
    flags = [f"--{name}={path}" for name, path in files.items()]
    got, told, error = run("experiment", "run", experiment(tmp_path, expect), "--wait", *flags)
    assert (got, told.strip().splitlines()[-1]) == (status, word), error
    assert files["junit"].read_text().startswith("<?xml")
    assert files["report"].read_text().startswith("#")
    assert json.loads(files["results"].read_text())["verdict"] == (word if expect else "none")


def test_an_inconclusive_verdict_is_reported_with_the_requests_that_would_decide_it():
    found = {
        "verdict": "inconclusive", "arm": "b", "class": "heavy", "metric": "ttft_p90_ms", "limits": "≤ 1.05 × a",
        "relative_to": "a", "ratio": 1.02, "value": 900.0, "low": 0.9, "high": 1.2, "needed_n": 4100,
    }  # fmt: skip
    text = "inconclusive: b, heavy, ttft_p90_ms ≤ 1.05 × a: 1.020 × a (0.9 to 1.2); 4,100 requests would decide it"
    assert simulations._expectation_line(found) == text
    assert simulations.VERDICTS["inconclusive"] == 2


def test_without_waiting_the_experiment_is_named_and_can_be_waited_for_later(run, demo, tmp_path, data_dir, sent):
    status, told, _ = run("experiment", "run", experiment(tmp_path, []))
    number = Experiment.objects.get().pk
    assert (status, told) == (0, f"experiment {number}: http://weir.test/experiments/{number}\n")
    running.run_experiment(number)
    assert run("experiment", "wait", number)[0] == 0


def test_an_interrupted_command_cancels_its_job(run, demo, tmp_path, data_dir, sent, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting.time, "sleep", interrupt)
    status, _, error = run("experiment", "run", experiment(tmp_path, []), "--wait")
    assert (status, error) == (3, "weir: stopped, and cancelled\n")
    assert Experiment.objects.get().status == "cancelled"


def test_after_its_time_limit_the_command_ends_and_the_experiment_continues(run, demo, tmp_path, data_dir, sent):
    status, told, error = run("experiment", "run", experiment(tmp_path, []), "--wait", "--timeout", "0")
    assert (status, "not ended after 0 s; it continues" in error) == (3, True)
    assert told.splitlines()[1] == "queued, next to run"
    assert Experiment.objects.get().status == "queued"


def test_each_invalid_field_is_reported_on_its_own_line(run, demo, tmp_path, data_dir, sent):
    path = experiment(tmp_path, [], trace="none", arms=["nothing"])
    status, _, error = run("experiment", "run", path)
    assert status == 3
    assert "422" in error
    assert "\n  trace: " in error
    assert "\n  arms.0: " in error


def test_a_fleet_document_is_tried_then_applied(run, ada, network, monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_TOKEN", api_caller(ada).token)
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "apiVersion: weir/v1\nkind: Fleet\nmetadata: {name: f}\nspec:\n  pools:\n"
        "  - {name: night, model: llama-3.1-8b, kind: sim, replicas: 1}\n"
    )
    status, told, error = run("fleet", "apply", path, "--dry-run")
    assert (status, "create night" in told, "none made" in told) == (0, True, True), error
    assert not Pool.objects.exists()
    assert run("fleet", "apply", path)[0] == 0
    assert Pool.objects.get().name == "night"


def test_a_request_without_a_receipt_is_an_error(run, live_redis):
    status, _, error = run("explain", "none")
    assert (status, "404" in error, "no receipt" in error) == (3, True, True)


def test_the_command_retries_unavailable_servers_but_not_refusals(run, default_policy, network):
    requests, faults = network
    faults += [
        urllib.error.URLError("connection refused"),
        urllib.error.HTTPError("", 503, "", Message(), io.BytesIO(b"<html>")),
    ]
    status, told, error = run("policy", "export", "default")
    assert (status, json.loads(told)["policy"], len(requests)) == (0, "default", 3)
    assert error.count("trying again in") == 2
    faults.append(urllib.error.HTTPError("", 302, "", Message(), io.BytesIO(b"")))
    status, _, error = run("policy", "export", "default")
    assert (status, len(requests)) == (3, 4)
    assert "302, which is no answer of Weir's API" in error


def test_a_misused_command_is_an_error_and_never_a_verdict(run):
    assert run("experiment", "run")[0] == 3
    assert run("nothing")[0] == 3


@pytest.mark.parametrize(("url", "token", "why"), [("ftp://x", "t", "must begin with http"), ("http://x", "", "empty")])
def test_settings_that_cannot_work_are_reported(weir_file, url, token, why):
    environment = {"WEIR_URL": url, "WEIR_TOKEN": token}
    argv = [sys.executable, "-I", str(weir_file), "policy", "export", "default"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (done.returncode, why in done.stderr) == (3, True), done.stderr


def test_the_server_offers_its_own_version_of_the_command_to_callers_with_a_token(client, ci, vera_client, tmp_path):
    assert client.get("/cli/weir").status_code == 401
    for answer in (
        client.get("/cli/weir", headers={"Authorization": f"Bearer {ci.token}"}),
        vera_client.get("/cli/weir"),
    ):
        assert answer.status_code == 200
        (tmp_path / "weir").write_bytes(answer.content)
        done = subprocess.run([sys.executable, "-I", tmp_path / "weir", "--version"], capture_output=True)
        assert done.stdout.decode().strip() == f"weir {VERSION}"
    assert client.post("/cli/weir").status_code in (403, 405)


def test_every_command_is_documented():
    text = (Path(__file__).parents[4] / "docs" / "ci.md").read_text()
    assert [name for name in COMMANDS if f"weir {name}" not in text] == []


@pytest.fixture
def tuned(demo, monkeypatch):
    """Tunings are computed at once, by a search without Optuna."""
    monkeypatch.setattr(search, "is_installed", lambda: False)
    monkeypatch.setitem(generated.BUILT_IN, "agentic-demo", lambda: generated.generate(duration_s=150))
    monkeypatch.setattr(preview_subprocess, "run_in_subprocess", lambda function, job, beat, take: function(job, take))
    monkeypatch.setattr("controlplane.celery.app.send_task", lambda name, args, queue: tuning_running.run_tuning(*args))


TUNE = ("tune", "default", "--trace", "agentic-demo", "--trials", 1, "--workers", 1)


def test_tuning_reports_the_winners_and_opens_a_draft_when_asked(run, tuned):
    words = (*TUNE, "--bound", "classes.heavy_new_tokens=8000:60000:500", "--bound", "load.request_tokens=:9000:log")
    words = (*words, "--held-out", "0.4", "--time", "600")
    status, told, error = run(*words, "--draft", "balanced")
    assert status == 0, error
    for text in (
        "held-out requests",
        "ttft_p90_ms: ",
        "not tested: real engines",
        "is the draft of default, not published",
    ):
        assert text in told
    status, told, error = run(*words, "--draft", "ttft")
    assert status == 3
    assert "has a draft of default open" in error
    kept = Tuning.objects.latest("pk")
    assert (kept.held_out, kept.time_limit_s, [each["step"] for each in kept.space]) == (0.4, 600, [500, 0.0])
    assert [each["log"] for each in kept.space] == [False, True]


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        ("load.request_tokens=a:b", "PATH=LOW:HIGH[:STEP|:log|:linear] with numbers"),
        ("load.request_tokens=1:2:3:4", "PATH=LOW:HIGH[:STEP|:log|:linear] with numbers"),
        ("load.request_tokens=2:1:log", "parameters.0.low"),
        ("nonsense", "cannot be tuned"),
    ],
)
def test_an_invalid_parameter_is_named(run, tuned, parameter, text):
    status, _, error = run(*TUNE, "--parameter", parameter)
    assert status == 3
    assert text in error


def test_running_engines_are_inspected_before_they_are_adopted(run, tmp_path, monkeypatch):
    engine = OtherEngine(SERVERS["vllm"])
    try:
        status, told, error = run("fleet", "discover", "--urls", engine.url)
        assert (status, told) == (0, f"{engine.url}  vLLM 0.32.0  m  KV events  role both\n"), error
        status, told, _ = run("fleet", "discover", "--urls", engine.url, "http://127.0.0.1:9")
        assert (status, told.splitlines()[1]) == (1, "http://127.0.0.1:9  does not answer")
        engine.key = "sk-engine-1"
        status, told, _ = run("fleet", "discover", "--urls", engine.url)
        assert (status, "does not answer: GET /v1/models answers 401: the engine asks for a key" in told) == (1, True)
        monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
        status, told, error = run("fleet", "discover", "--urls", engine.url, "--engine-key", "env:QWEN_API_KEY")
        assert (status, told) == (0, f"{engine.url}  vLLM 0.32.0  m  KV events  role both\n"), error
    finally:
        engine.close()
    assert not Pool.objects.filter(kind="external").exists()
    status, told, _ = run("fleet", "discover", "--file", tmp_path / "none.json")
    assert (status, "the source does not answer" in told) == (1, True)
    status, _, error = run("fleet", "discover", "--kubernetes", "llm", "app=vllm", "0")
    assert (status, "engine.kubernetes" in error) == (3, True)
    assert run("fleet", "discover")[0] == 3
