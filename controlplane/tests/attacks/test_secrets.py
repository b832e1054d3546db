"""A search for secrets: none appears in a page, answer, log or process list that unauthorized people can read."""

import json
import re
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path

import pytest
import redis
from django.test import Client

from controlplane.tests.attacks.conftest import CANARY, ENGINE_KEY
from controlplane.tests.real_up import CODE, environment
from router.tests.values import everything

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(400)]

CLIENT_KEY = "sk-weir-canary-4e1f-of-a-client-of-the-router"
CHANNEL = "canary-77c1-in-the-url-of-a-channel"
TYPED = "canary-9d27-typed-as-a-password"
ALIKE_MAX = 10
ADD_VIEWER = """
import django; django.setup()
from django.contrib.auth.models import User
from controlplane.people.accounts.services import SYSTEM, create_user
user = User.objects.filter(username="spy").first() or create_user("spy", "Of-no-use-4711", "viewer", SYSTEM)
from controlplane.people.accounts.models import ApiToken
from controlplane.people.permissions import ROLE_SCOPES
print(ApiToken.issue(user=user, name="spy", scopes=ROLE_SCOPES["viewer"])[1])
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
session = import_module(settings.SESSION_ENGINE).SessionStore()
session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
session.create()
print(session.session_key)
"""


class Spy:
    """A viewer with a session and a token."""

    def __init__(self, target):
        self.target = target
        told = environment(target.weir.folder, DJANGO_SETTINGS_MODULE="controlplane.settings")
        done = subprocess.run(
            [sys.executable, "-c", ADD_VIEWER], cwd=CODE, env=told, capture_output=True, text=True, check=True
        )
        self.token, session = done.stdout.split()
        self.cookie = f"sessionid={session}"

    def page(self, path):
        return self.target.request("web", "GET", path, Cookie=self.cookie, Host=f"127.0.0.1:{self.target.web}")

    def call(self, path):
        return self.target.request("web", "GET", path, Authorization=f"Bearer {self.token}")


@pytest.fixture(scope="module")
def spy(target):
    """A target after traffic that contains secrets."""
    for header in ({"Authorization": f"Bearer {CLIENT_KEY}"}, {"x-api-key": CLIENT_KEY}):
        body = '{"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}'
        target.request("router", "POST", "/v1/chat/completions", body, **header)
    target.request("web", "POST", "/login", f"username=admin&password={TYPED}")
    made = json.loads(target.api("POST", "/channels", {"name": "pager", "url": f"https://hooks.invalid/{CHANNEL}"})[2])
    target.api("POST", f"/channels/{made['id']}/test")  # the test notice fails, which is logged
    target.channel_secret = made["secret"]
    return Spy(target)


def crawled(spy):
    """Return what a viewer reaches by links: every page, and the first ten of pages that differ only in a number or
    query.
    """
    ahead, seen, alike = deque(["/live", "/wall"]), {}, Counter()
    while ahead:
        path = ahead.popleft()
        shape = re.sub(r"\?.*|[^/]*\d[^/]*", "0", path)
        if path in seen or alike[shape] == ALIKE_MAX:
            continue
        alike[shape] += 1
        status, _, text = spy.page(path)
        seen[path] = (status, text.decode(errors="replace"))
        for link in re.findall(r'(?:href|hx-get)="(/[^"#]*)', seen[path][1]):
            found = link.replace("&amp;", "&")
            if found not in seen and not found.startswith(("/static/", "/logout")):
                ahead.append(found)
    return seen


def secrets_of(target):
    return {
        "the environment of an engine": CANARY,
        "the key of an engine": ENGINE_KEY,
        "the local token": target.token,
        "a client's key": CLIENT_KEY,
        "a password that somebody typed": TYPED,
        "the url of a channel": CHANNEL,
        "the secret of a channel": target.channel_secret,
        "the secret key": (target.weir.folder / "secret_key").read_text().strip(),
    }


def leaks(target, texts):
    """Return (source, secret) for each secret in `texts`, which are keyed by source."""
    secrets = secrets_of(target)
    return [(where, name) for where, text in texts.items() for name, secret in secrets.items() if secret in text]


def test_no_page_shows_a_viewer_a_secret(target, spy):
    pages = crawled(spy)
    assert len(pages) > 25
    assert {path: status for path, (status, _) in pages.items() if status >= 500} == {}
    assert "/fleet/pools/real/" in pages
    assert leaks(target, {path: text for path, (_, text) in pages.items()}) == []


def test_no_answer_of_the_api_shows_a_viewer_a_secret(target, spy):
    document = target.request("web", "GET", "/api/v1/openapi.json")[2]
    paths = [path for path, methods in json.loads(document)["paths"].items() if "get" in methods]
    names = {"name": ("default", "real", "demo", "demo-1", "local"), "number": ("1", "2"), "request_id": ("x",)}
    texts = {}
    for path in paths:
        part = re.search(r"{(\w+)}", path)
        for value in names.get(part[1], ("1",)) if part else ("",):
            called = re.sub(r"{\w+}", value, path)
            texts[called] = spy.call(called)[2].decode(errors="replace")
    assert len(texts) > 30
    assert leaks(target, texts) == []


def test_no_receipt_no_metric_and_no_health_answer_holds_a_secret(target, spy):
    texts = {path: target.request("router", "GET", path)[2].decode() for path in ("/metrics", "/healthz", "/v1/models")}
    for receipt in json.loads(spy.call("/api/v1/receipts")[2])["receipts"]:
        name = receipt["request_id"]
        texts[name] = spy.call(f"/api/v1/receipts/{name}")[2].decode()
    assert len(texts) > 3
    assert leaks(target, texts) == []


def test_no_log_holds_a_secret(target, spy):
    logs = {
        str(path): path.read_text(errors="replace") for path in target.weir.folder.glob("logs/**/*") if path.is_file()
    }
    assert logs
    assert leaks(target, logs) == []


def test_no_command_line_holds_a_secret(target, spy):
    pids = {pid for pid, _ in target.weir.everything()}
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in pids}
    assert len(lines) > 6
    found = leaks(target, lines)
    print(f"{len(found)} secrets on {len(lines)} command lines")
    assert found == []


def test_neither_the_database_nor_redis_nor_a_file_holds_the_key_of_an_engine(target, spy):
    values = everything(redis.Redis(unix_socket_path=str(next(target.weir.folder.rglob("*.sock")))))
    files = {str(path): path.read_bytes() for path in target.weir.folder.rglob("*") if path.is_file()}
    assert "env:ATTACKED_ENGINE_KEY" in values["weir:fleet:demo"]  # the reference to the key is stored
    assert any(name.endswith("sqlite3") for name in files)
    found = [name for name, text in values.items() if ENGINE_KEY in text]
    assert [*found, *(name for name, data in files.items() if ENGINE_KEY.encode() in data)] == []


def test_other_users_of_the_host_cannot_read_the_data_folder(target):
    assert target.weir.folder.stat().st_mode & 0o077 == 0
    private = [path for path in target.weir.folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o007]
    assert [str(path) for path in private] == []


def test_a_stranger_learns_nothing_from_errors(db):
    client = Client(raise_request_exception=False)
    for path in ("/nowhere", "/api/v1/nowhere", "/static/nowhere"):
        text = client.get(path).content.decode()
        assert "Traceback" not in text
        assert str(CODE) not in text
