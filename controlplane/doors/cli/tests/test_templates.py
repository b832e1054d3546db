"""The command accepts every command line of the CI templates and of docs/ci.md."""

import re
import shlex
import subprocess

import pytest
import yaml

from controlplane.doors.cli.weir.main import joined, parser
from controlplane.testing_browser import ROOT

CI = ROOT / "deploy" / "ci"
DOCS = (ROOT / "docs" / "ci.md").read_text()
LINES = [
    *re.findall(r"^# +(?:WEIR_COMMAND|command): (.+)$", (CI / "gitlab" / "weir.yml").read_text(), re.MULTILINE),
    *re.findall(r"^# +(?:WEIR_COMMAND|command): (.+)$", (CI / "github" / "action.yml").read_text(), re.MULTILINE),
    *re.findall(r"^ *(?:WEIR_COMMAND|command): (.+)$", DOCS, re.MULTILINE),
    *re.findall(r"^(?:python3 )?weir ([^#\n]+)", DOCS, re.MULTILINE),
]


def test_there_are_command_lines_to_check():
    assert len(LINES) > 8
    assert any(line.startswith("deliver ") and "--wait" in line for line in LINES)


@pytest.mark.parametrize("line", LINES)
def test_the_command_accepts_the_templates(line):
    assert parser().parse_args(joined(shlex.split(line))).run


def test_the_templates_are_valid_yaml_with_valid_shell():
    action = yaml.safe_load((CI / "github" / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
    used = set(re.findall(r"inputs\.(\w+)", str(step["env"])))
    assert used == action["inputs"].keys()
    jobs = yaml.safe_load((CI / "gitlab" / "weir.yml").read_text())
    subprocess.run(["bash", "-n"], input=jobs[".weir"]["script"][0], text=True, check=True)
    assert jobs[".weir-deliver"]["extends"] == ".weir"
    assert jobs[".weir"]["allow_failure"] == {"exit_codes": [2]}
    assert jobs[".weir-deliver"]["allow_failure"] is False
