"""A database of an earlier version, with data in it, is migrated and everything in it is still there and readable."""

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

# In a process of its own, on the migrated database: what an administrator sees
LOOK = """
import json, os, django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="admin"))
answers = {path: client.get(path) for path in json.loads(os.environ["PATHS"])}
print(json.dumps({path: [answer.status_code, answer.content.decode()] for path, answer in answers.items()}))
"""


def manage(folder, *command, **more):
    given = {
        **os.environ,
        "WEIR_DATA_DIR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder / 'weir.sqlite3'}",
        "REDIS_URL": "redis://127.0.0.1:1/0",  # away
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


@pytest.mark.slow
def test_everything_of_the_earlier_version_is_readable_after_the_upgrade(see):
    pages = ["/live", "/policies/default/", "/policies/default/draft", "/policies/default/versions/2/", "/audit/"]
    pages += ["/fleet/", "/fleet/pools/demo/", "/fleet/instances/demo-1/", "/experiments/2/", "/keys/"]
    named = "policies/default policies/default/versions policies/default/draft fleet audit experiments/2"
    api = [f"/api/v1/{path}" for path in named.split()]
    answers = see(*pages, *api)
    assert {path: status for path, (status, _) in answers.items() if status != 200} == {}

    policy, versions, draft, fleet, audit, experiment = (json.loads(answers[path][1]) for path in api)
    assert policy["live"]["number"] == 3
    assert [version["number"] for version in versions] == [3, 2, 1]
    assert versions[1]["sha256"] == "a25b0903603cb0718f2b7ee4859da0a20cd4a75f1c954a2158051f9d9666abda"
    assert versions[1]["reason"] == "Try cache_aware here"
    assert draft["document"]["classes"]["heavy_new_tokens"] == 15000
    assert draft["document"]["strategy"]["name"] == "adaptive_v1"
    assert "demo" in json.dumps(fleet)
    assert "policy.rollback" in json.dumps(audit)
    assert experiment["status"] == "done"
