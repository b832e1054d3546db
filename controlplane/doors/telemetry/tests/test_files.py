"""The files for Prometheus and Grafana name existing metrics, and the panels match those of the pages."""

import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path

import pytest
import yaml

from controlplane.doors.telemetry.tests.test_metrics import keda
from controlplane.tests import prometheus, real_up

CODE = Path(__file__).resolve().parents[4]
PROMETHEUS = CODE / "deploy" / "prometheus"
ALONE = {"weir_router_reloads_total"}  # only a router without a control plane has it
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
def test_an_alert_queries_existing_metrics_and_says_what_to_do(rule):
    assert unknown(rule["expr"]) == set()
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"].endswith(".")


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: panel["title"])
def test_a_panel_queries_existing_metrics(panel):
    assert panel["targets"]
    for target in panel["targets"]:
        assert METRIC.search(target["expr"])
        assert unknown(target["expr"]) == set()


def test_the_dashboard_has_the_panels_of_the_live_page():
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
    assert shutil.which("promtool"), prometheus.INSTALL
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def scraping(tmp_path):
    """Prometheus with the files of deploy/, except for ports and intervals, beside a demo with two routers and
    autoscaling advice."""
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    document = yaml.safe_load((CODE / "examples/fleet-demo.yaml").read_text())
    document["spec"]["pools"][0]["autoscale"] = {"mode": "advisory", "min": 0, "max": 8, "target_queue": 4}
    (tmp_path / "fleet.json").write_text(json.dumps(document))
    with real_up.running("--routers", "2", "--fleet", str(tmp_path / "fleet.json")) as weir:
        weir.wait_for("Weir is up", 200)
        shutil.copy(weir.folder / "token", tmp_path / "weir-token")
        routers = f'"127.0.0.1:{weir.router_port + 1}", "127.0.0.1:{weir.router_port + 2}"'
        config = (tmp_path / "prometheus.yml").read_text().replace("15s", "4s")
        config = config.replace("127.0.0.1:8000", f"127.0.0.1:{weir.web_port}").replace('"127.0.0.1:8080"', routers)
        (tmp_path / "prometheus.yml").write_text(config)
        server = prometheus.DebiansPrometheus(tmp_path)
        try:
            yield weir, server
        finally:
            server.stop()


def scraped(server):
    """Names of all metrics that Prometheus knows by a value or by their description, where counters have no _total."""
    told, valued = server.get("metadata") or (), server.get("label/__name__/values") or ()
    return {*told, *(f"{name}_total" for name in told), *(re.sub(r"_(bucket|sum|count)$", "", name) for name in valued)}


@pytest.mark.deploy
def test_prometheus_scrapes_every_documented_metric_and_can_evaluate_every_alert(scraping):
    weir, server = scraping
    weir.until(lambda: documented() - ALONE <= scraped(server), "metrics")
    weir.until(lambda: all(one["health"] == "up" for one in server.get("targets")["activeTargets"]), "every target")
    jobs = sorted(one["labels"]["job"] for one in server.get("targets")["activeTargets"])
    assert jobs == ["weir", "weir-router", "weir-router"]
    weir.until(lambda: all(one["health"] != "unknown" for one in server.get("rules")["groups"][0]["rules"]), "alerts")
    (group,) = server.get("rules")["groups"]
    assert [(one["name"], one["lastError"]) for one in group["rules"] if one["health"] != "ok"] == []
    assert len(group["rules"]) == len(rules())

    query = urllib.parse.quote(keda()["query"].replace('"chat"', '"demo"'))
    (advised,) = weir.until(lambda: (server.get(f"query?query={query}") or {}).get("result"), "what KEDA asks")
    assert 0 <= float(advised["value"][1]) <= 8
