"""The shell scripts of the CI templates, run against a web process and a worker for experiments."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from controlplane.evidence.experiments.tests.conftest import body
from controlplane.testing_browser import ROOT, serving

pytestmark = pytest.mark.slow
CI = ROOT / "deploy" / "ci"
MAKE = """
from django.contrib.auth.models import User
from controlplane.people.accounts.models import ApiToken
from controlplane.people.permissions import scopes_of
from controlplane.traffic.policies import services
from fleet.models import Pool
services.ensure_default_policy()
ada = User.objects.get(username="ada")
Pool.objects.create(name="demo", model="llama-3.1-8b", kind="sim", policy="default", replicas=2)
print(ApiToken.issue(user=ada, name="ci", scopes=scopes_of(ada))[1])
"""


@pytest.fixture(scope="module")
def plane():
    """(URL, token) of a control plane with a pool, and a worker for experiments."""
    with serving() as web:
        argv = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", MAKE]
        made = subprocess.run(argv, cwd=ROOT, env=web.environment, capture_output=True, text=True, check=True)
        with (web.folder / "experiments.log").open("wb") as log:
            web.processes["experiments"] = subprocess.Popen(
                [sys.executable, "manage.py", "serve", "experiments"],
                cwd=ROOT, env=web.environment, stdout=log, stderr=log,
            )  # fmt: skip
        with (web.folder / "control.log").open("wb") as log:
            web.processes["control"] = subprocess.Popen(
                [sys.executable, "manage.py", "serve", "control"], cwd=ROOT, env=web.environment, stdout=log, stderr=log
            )
        yield web.url, made.stdout.strip()


@pytest.fixture
def job(plane, tmp_path):
    """job(template, *words) → (exit status, verdict, output)."""

    def run(template, *words, **more):
        url, token = plane
        given = {"WEIR_URL": url, "WEIR_TOKEN": token, "WEIR_COMMAND": " ".join(words), "WEIR_INCONCLUSIVE": "fail"}
        outputs = tmp_path / "outputs"
        runner = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(outputs)}
        done = subprocess.run(
            ["bash", "-c", SHELLS[template]], cwd=tmp_path, env={**runner, **given, **more},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert token not in done.stdout + done.stderr
        verdict = outputs.read_text().strip().rpartition("=")[2] if outputs.exists() else ""
        outputs.unlink(missing_ok=True)
        return done.returncode, verdict, done.stdout + done.stderr

    return run


def _shells():
    action = yaml.safe_load((CI / "github" / "action.yml").read_text())
    gitlab = yaml.safe_load((CI / "gitlab" / "weir.yml").read_text())
    return {"github": action["runs"]["steps"][0]["run"], "gitlab": gitlab[".weir"]["script"][0]}


SHELLS = _shells()


def _experiment(path: Path, limit: float) -> None:
    expect = [{"metric": "ttft_p90_ms", "max": limit}]
    path.write_text(json.dumps(body(mode="twin", time_scale=1, duration_s=20, arms=["round_robin"], expect=expect)))


def test_the_verdict_of_an_experiment_decides_the_job(job, tmp_path):
    words = ("experiment", "run", "experiment.json", "--wait", "--junit", "weir.xml", "--report", "'weir.md'")
    _experiment(tmp_path / "experiment.json", 1e9)
    status, verdict, told = job("github", *words)
    assert (status, verdict) == (0, "pass"), told
    assert (tmp_path / "weir.xml").exists()
    assert job("gitlab", *words)[0] == 0
    _experiment(tmp_path / "experiment.json", 0.001)
    assert job("github", *words)[:2] == (1, "fail")
    assert job("gitlab", *words)[0] == 1


def test_a_policy_in_git_is_applied_once(job, tmp_path):
    assert job("github", "policy export default -o policy.json")[0] == 0
    file = json.loads((tmp_path / "policy.json").read_text())
    file["document"]["classes"]["heavy_new_tokens"] = 12_345
    (tmp_path / "policy.json").write_text(json.dumps(file))
    assert job("gitlab", "policy diff policy.json")[0] == 1
    status, _, told = job("github", "policy apply policy.json --reason 'merge of 12,345'")
    assert (status, bool(re.search(r"v\d+ is live", told))) == (0, True), told
    assert "nothing to do" in job("gitlab", "policy apply policy.json")[2]


@pytest.fixture
def policy_file(job, tmp_path):
    """policy_file(heavy tokens, step…): the live policy with these values, and a plan of these steps."""

    def write(tokens, *steps, **more):
        assert job("github", "policy export default -o policy.json")[0] == 0
        file = json.loads((tmp_path / "policy.json").read_text())
        file["document"]["classes"]["heavy_new_tokens"] = tokens
        (tmp_path / "policy.json").write_text(json.dumps(file))
        (tmp_path / "plan.json").write_text(json.dumps({"steps": steps, **more}))

    return write


DELIVER = "deliver policy.json --plan plan.json --wait --timeout 100"
CANARY = {"mode": "canary", "share": 0.05, "for_s": 3600}
FULL = {"mode": "full", "bake_s": 0}
TITLE = 'Merge "12,346"; --emergency x'


def test_a_policy_in_git_is_delivered_once(job, policy_file, tmp_path):
    policy_file(12_346, FULL)
    before = (tmp_path / "policy.json").read_text()
    status, verdict, shown = job("github", DELIVER, WEIR_REASON=f"{TITLE}\n\nand more")
    assert (status, verdict) == (0, "pass"), shown
    assert f"baking, step 1 of 1: {TITLE}" in shown
    (tmp_path / "policy.json").write_text(before)  # the checkout of the job that runs again
    for template in ("github", "gitlab"):
        status, _, again = job(template, DELIVER)
        assert (status, again.splitlines()[-1]) == (0, shown.splitlines()[-1]), again


def test_a_delivery_that_a_person_ends_or_that_needs_one_fails_the_job(job, policy_file):
    policy_file(12_347, CANARY, approvals={"needed": 1})
    status, verdict, shown = job("github", f"{DELIVER} --timeout 0")
    assert (status, verdict) == (2, "inconclusive"), shown
    assert job("gitlab", f"{DELIVER} --timeout 0")[0] == 2
    assert job("gitlab", "deliver abort --policy default --reason 'nobody approves it'")[0] == 0
    assert job("github", DELIVER)[:2] == (1, "fail")
    assert job("gitlab", DELIVER)[0] == 1
    assert job("github", "deliver policy.json --plan missing.json")[:2] == (3, "error")


@pytest.mark.parametrize(
    ("template", "tokens", "stop"),
    [
        ("github", 12_348, lambda pid: os.kill(pid, signal.SIGTERM)),  # GitHub's runner ends the shell of the step
        ("gitlab", 12_349, lambda pid: os.killpg(pid, signal.SIGTERM)),  # GitLab's runner ends every process
    ],
)
def test_a_cancelled_job_reports_that_the_delivery_continues(plane, policy_file, template, tokens, stop, tmp_path):
    policy_file(tokens, CANARY, approvals={"needed": 1})
    url, token = plane
    environment = {
        "WEIR_URL": url, "WEIR_TOKEN": token, "WEIR_COMMAND": DELIVER, "WEIR_INCONCLUSIVE": "fail",
        "PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path),
    }  # fmt: skip
    process = subprocess.Popen(
        ["bash", "-c", SHELLS[template]], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        number = process.stdout.readline().split(":")[0].split()[1]
        assert "proposed" in process.stdout.readline()
        stop(process.pid)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
        subprocess.run(
            [sys.executable, tmp_path / "weir", "deliver", "abort", "--policy", "default"], env=environment, check=True
        )
    assert f"stopped; delivery {number} continues: weir deliver wait {number}" in error


def test_an_error_fails_the_job(job):
    status, verdict, told = job("github", "experiment run missing.json --wait")
    assert (status, verdict) == (3, "error"), told
    assert job("github", "policy diff x", WEIR_TOKEN="wrong")[0] not in (0, 1, 2)
    assert job("gitlab", "policy diff x", WEIR_TOKEN="wrong")[0] == 1
