"""The files for Prometheus and Grafana name metrics that exist, and the panels are those of the pages."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CODE = Path(__file__).resolve().parents[3]
PROMETHEUS = CODE / "deploy" / "prometheus"
METRIC = re.compile(r"\bweir_[a-z_]+")


def documented():
    told = (CODE / "docs" / "monitoring.md").read_text() + (CODE / "docs" / "router.md").read_text()
    return set(re.findall(r"^\| `(weir_[a-z_]+)` \|", told, re.M))


def unknown(expression):
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(expression)}
    return names - documented()


def rules():
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return group["rules"]


def dashboard():
    return json.loads((CODE / "deploy" / "grafana" / "weir.json").read_text())


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_that_exist_and_says_what_to_do(rule):
    assert unknown(rule["expr"]) == set()
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"].endswith(".")


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_exist(panel):
    assert panel["targets"]
    for target in panel["targets"]:
        assert METRIC.search(target["expr"])
        assert unknown(target["expr"]) == set()


def test_the_dashboard_has_what_the_live_page_has():
    titles = {panel["title"] for panel in dashboard()["panels"]}
    page = (CODE / "templates" / "live" / "live.html").read_text()
    for title in ("Instances", "Needs attention"):
        assert f">{title}</h2>" in page
        assert title in titles
    assert {f"{name} {figure}" for name in ("Warm", "Medium", "Heavy") for figure in ("TTFT", "TPOT")} <= titles
    assert {"KV usage", "Running", "Waiting", "Prefix hit rate", "Policy version"} <= titles


@pytest.mark.deploy
@pytest.mark.parametrize(
    "arguments", [("check", "config", "--syntax-only", "prometheus.yml"), ("check", "rules", "alerts.yml")]
)
def test_prometheus_takes_the_file(arguments):
    assert shutil.which("promtool"), "promtool is not installed here: apt-get install prometheus"
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
