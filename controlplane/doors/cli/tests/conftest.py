"""The command in this process, which sends its requests through Django's test client."""

import io
import json
import time
import urllib.error
import urllib.parse
from email.message import Message
from types import SimpleNamespace

import pytest
from django.test import Client

from controlplane.doors.cli.views import archive
from controlplane.doors.cli.weir import api as api_module
from controlplane.doors.cli.weir import deliveries, waiting
from controlplane.doors.cli.weir import main as main_module
from controlplane.evidence.experiments.tests.conftest import sent as sent  # a fixture
from controlplane.traffic.policies import services
from fleet.models import Pool


class Answer(io.BytesIO):
    def __init__(self, body, headers):
        super().__init__(body)
        self.headers = headers


@pytest.fixture
def network(monkeypatch):
    """The requests sent so far; an error put into `faults` makes the next one fail."""
    client, requests, faults = Client(raise_request_exception=False), [], []

    def opened(self, request, timeout):
        requests.append((request.method, urllib.parse.urlsplit(request.full_url).path))
        if faults:
            raise faults.pop(0)
        path = request.full_url.removeprefix("http://weir.test")
        kind = {"content_type": request.get_header("Content-type")} if request.data else {}
        headers = {name: value for name, value in request.header_items() if name != "Content-type"}
        answer = client.generic(request.method, path, request.data or b"", headers=headers, **kind)
        if answer.status_code >= 300:
            raise urllib.error.HTTPError(
                request.full_url, answer.status_code, "", Message(), io.BytesIO(answer.content)
            )
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content
        return Answer(content, answer.headers)

    monkeypatch.setattr(api_module.Api, "__init__", _init(opened))
    # The clock of the command only: the control plane in the same process sleeps as usual.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    for module in (api_module, deliveries, waiting):
        monkeypatch.setattr(module, "time", clock)
    return requests, faults


def _init(opened):
    def init(self, url, token):
        self._url, self._token, self._open = url, token, lambda request, timeout: opened(self, request, timeout)

    return init


@pytest.fixture
def run(network, ci, monkeypatch, capsys):
    """run("policy", "export", "default") → (exit status, standard output, standard error)."""
    monkeypatch.setenv("WEIR_URL", "http://weir.test")
    monkeypatch.setenv("WEIR_TOKEN", ci.token)

    def ran(*words):
        monkeypatch.setattr("sys.argv", ["weir", *map(str, words)])
        try:
            status = main_module.main()
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return ran


@pytest.fixture(scope="session")
def weir_file(tmp_path_factory):
    """The command in the form that a pipeline downloads."""
    path = tmp_path_factory.mktemp("cli") / "weir"
    path.write_bytes(archive())
    return path


@pytest.fixture
def default_policy(db, live_redis):
    return services.ensure_default_policy()


@pytest.fixture
def demo(default_policy):
    return Pool.objects.create(name="demo", model="llama-3.1-8b", kind="sim", policy="default", replicas=2)


@pytest.fixture
def default_file(run, default_policy, tmp_path):
    """The default policy as a file, changed by default_file(path=value)."""

    def make(**changes):
        path = tmp_path / "default.json"
        if not path.exists():
            assert run("policy", "export", "default", "-o", path)[0] == 0
        found = json.loads(path.read_text())
        for name, value in changes.items():
            section, _, field = name.partition("__")
            found["document"][section][field] = value
        path.write_text(json.dumps(found))
        return path

    return make
