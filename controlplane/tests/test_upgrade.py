"""A database of an earlier version, with data, is migrated, and all its data is still there and readable."""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

DATA = Path(__file__).parent / "data"

# In a separate process, on the migrated database: what an administrator sees on its pages, and at the end of every link
LOOK = """
import html, json, os, re, django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
from django.urls import resolve
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="admin"))
ahead, answers = json.loads(os.environ["PATHS"]), {}
while ahead:
    path = ahead.pop()
    if path in answers or path == "/logout":
        continue
    answer = client.get(path, follow=True)
    content = answer.content.decode(errors="replace") if not answer.streaming else ""
    answers[path] = [answer.status_code, resolve(path.partition("?")[0]).view_name, content]
    links = re.findall(r'<a [^>]*?href="(/[^"#]*)', content)
    ahead += [link for link in map(html.unescape, links) if not link.startswith(("/api/", "/static/"))]
print(json.dumps(answers))
"""


def manage(folder, *command, **more):
    given = {
        **os.environ,
        "WEIR_DATA_DIR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder / 'weir.sqlite3'}",
        "REDIS_URL": "redis://127.0.0.1:1/0",  # no server
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        **more,
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=settings.BASE_DIR, env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(params=[pytest.param(path, id=path.name.removesuffix(".sql.gz")) for path in DATA.glob("database-*")])
def upgraded(request, tmp_path):
    """The data folder after the migration."""
    with sqlite3.connect(tmp_path / "weir.sqlite3") as database:
        database.executescript(gzip.decompress(request.param.read_bytes()).decode())
    manage(tmp_path, "manage.py", "migrate", "--no-input")
    return tmp_path


@pytest.fixture
def see(upgraded):
    def see(*paths):
        return json.loads(manage(upgraded, "-c", LOOK, PATHS=json.dumps(paths)))

    return see


API = (
    *("policies/default", "policies/default/versions", "policies/default/draft", "fleet", "audit", "experiments/2"),
    *("matrices/1/results", "policies/second/deliveries", "policies/default/tunings/1", "models", "budgets"),
    "use?from=2026-11-29T00:00:00Z&to=2026-11-30T00:00:00Z",
)
OF_DATA = {
    *("policy", "policy-version", "policy-compare", "policy-rollback", "draft", "draft-review", "draft-deliver"),
    *("preview", "tunings", "experiment", "experiment-start", "traces", "audit", "users", "tokens", "keys", "key"),
    *("fleet-pool", "fleet-edit-pool", "fleet-instance", "fleet-node", "live", "requests", "deliveries", "use"),
    *("delivery", "tuning", "matrix", "models", "models-version", "channel", "freezes"),
}  # pages of what the earlier version stored, by the name of their URL


@pytest.mark.slow
def test_everything_of_the_earlier_version_is_readable_after_the_upgrade(see):
    api = [f"/api/v1/{path}" for path in API]
    answers = see("/live", *api)
    assert {path: status for path, (status, _, _) in answers.items() if status != 200} == {}
    assert OF_DATA - {view for _, view, _ in answers.values()} == set()

    policy, versions, draft, fleet, audit, experiment, *of_0_2 = (json.loads(answers[path][2]) for path in api)
    assert policy["live"]["number"] == 3
    assert [version["number"] for version in versions] == [3, 2, 1]
    assert versions[1]["sha256"] == "a25b0903603cb0718f2b7ee4859da0a20cd4a75f1c954a2158051f9d9666abda"
    assert versions[1]["reason"] == "Try cache_aware here"
    assert draft["document"]["classes"]["heavy_new_tokens"] == 15000
    assert draft["document"]["strategy"]["name"] == "adaptive_v1"
    assert "demo" in json.dumps(fleet)
    assert "policy.rollback" in json.dumps(audit)
    assert experiment["status"] == "done"

    matrix, deliveries, tuning, models, budgets, use = of_0_2
    assert [row["state"] for row in deliveries] == ["ready", "aborted"]
    assert (tuning["status"], len(tuning["trials"])) == ("done", 4)
    assert (models["live"]["number"], budgets[0]["limit"]) == (1, 1_000_000)
    assert len(matrix["cells"]) == 2
    assert [(line["name"], line["input_tokens"]) for line in use["lines"]] == [("search", 9000)]
