"""All of Weir with PostgreSQL and Redis servers that another system runs."""

import json
import subprocess
import urllib.error
import urllib.request

import pytest

from controlplane.tests.postgres import postgres
from controlplane.tests.real_up import running
from controlplane.tests.test_up_whole import FLEET
from router.tests.ports import free_port

pytestmark = pytest.mark.deploy


@pytest.fixture
def server():
    with postgres(free_port()) as started:
        yield started


@pytest.fixture
def own_redis(tmp_path):
    """A Redis server reached over TCP with a password."""
    port = free_port()
    arguments = ("--bind", "127.0.0.1", "--port", str(port), "--requirepass", "s3cret", "--save", "")
    process = subprocess.Popen(["redis-server", *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL)
    yield f"redis://:s3cret@127.0.0.1:{port}/0"
    process.terminate()
    process.wait(timeout=30)


@pytest.fixture
def weir(server, own_redis, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    with running("--fleet", str(fleet), DATABASE_URL=server.url, REDIS_URL=own_redis) as started:
        started.wait_for("2/2 instances of pool demo are ready")
        yield started


def api(weir, path, body=None, method=None):
    token = (weir.folder / "token").read_text().strip()
    request = urllib.request.Request(f"http://127.0.0.1:{weir.web_port}/api/v1{path}", method=method)
    request.add_header("authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def publish(weir, heavy_new_tokens):
    api(weir, "/policies/default/draft", {})
    overrides = {"classes.heavy_new_tokens": heavy_new_tokens}
    api(weir, "/policies/default/draft", {"overrides": overrides}, method="PATCH")
    api(weir, "/policies/default/draft/publish", {"reason": "to have another version"})


def live_version(weir):
    """Return the number of the live version; None while the server does not answer."""
    try:
        return api(weir, "/policies/default")["live"]["number"]
    except urllib.error.HTTPError as refusal:
        if refusal.code < 500:
            raise
        return None


def completion(weir):
    request = urllib.request.Request(f"http://127.0.0.1:{weir.router_port}/v1/completions")
    request.data = json.dumps({"model": "llama-3.1-8b", "prompt": "hello", "max_tokens": 4}).encode()
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.headers["x-weir-policy"])


def test_a_crash_of_the_database_stops_no_request_and_loses_no_published_policy(weir, server):
    publish(weir, 12_000)
    weir.until(lambda: completion(weir) == 2, "version 2 at the router")
    server.stop("immediate")
    weir.until(lambda: live_version(weir) is None, "an answer that tells of the database")
    assert completion(weir) == 2
    server.start()
    weir.until(lambda: live_version(weir) == 2, "the published version again")
    publish(weir, 13_000)
    weir.until(lambda: completion(weir) == 3, "version 3 at the router")
    assert weir.stop() < 30.0
    assert weir.left() == []
