"""`python -m router --instances …` runs the same router as a process, without Redis."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack

import httpx
import pytest

from router.policy.schema import document
from router.tests.engine import engine, first_then_wait, hang
from router.tests.plain_engine import plain

pytestmark = pytest.mark.slow

BODY = {"model": "llama", "prompt": "x" * 3000}


class Alone:
    """A router on a free port, which the test reads from its log."""

    def __init__(self, *arguments):
        environment = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
        argv = [sys.executable, "-m", "router", "--port", "0", *map(str, arguments)]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would stop it when it is full
        self.process = subprocess.Popen(argv, stderr=self.log, env=environment)
        while "listens on" not in self.logged():
            assert self.process.poll() is None, self.logged()
            time.sleep(0.02)
        self.url = self.logged().split("listens on ")[1].split()[0]

    def logged(self):
        return os.pread(self.log.fileno(), 1_000_000, 0).decode()

    async def health(self):
        async with httpx.AsyncClient(timeout=20) as client:
            while True:
                try:
                    return (await client.get(self.url + "/healthz")).json()
                except httpx.ConnectError:  # the router is checking the engines for the first time
                    await asyncio.sleep(0.02)

    async def until(self, true):
        for _ in range(1000):
            health = await self.health()
            if true(health):
                return health
            await asyncio.sleep(0.02)
        raise AssertionError(f"never came true: {health}")

    async def ready(self, count=1):
        return await self.until(lambda health: health["pools"]["default"]["ready"] == count)

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    async def ended(self):
        return await asyncio.to_thread(self.process.wait, 20)


@pytest.fixture
def alone():
    started = []

    def begin(*arguments):
        started.append(Alone(*arguments))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.wait()
        each.log.close()


@pytest.fixture
async def engines():
    async with AsyncExitStack() as stack:

        async def make(*behaviours):
            return [await stack.enter_async_context(engine(behaviour)) for behaviour in behaviours]

        yield make


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=20) as made:
        yield made


def urls(engines):
    return ",".join(each.url for each in engines)


def policy_file(folder, strategy="round_robin", **overrides):
    path = folder / "policy.json"
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    path.write_text(json.dumps(document.apply_overrides(document.default(strategy), values)))
    return path


async def test_requests_go_to_the_listed_instances_by_the_policy_of_the_file(alone, engines, client, tmp_path):
    made = await engines(plain(), plain())
    router = alone("--instances", urls(made), "--policy", policy_file(tmp_path))
    await router.ready(2)
    answers = [await client.post(router.url + "/v1/completions", json=BODY) for _ in range(4)]
    assert {answer.headers["x-weir-instance"] for answer in answers} == {each.url.split("//")[1] for each in made}
    assert answers[0].headers["x-weir-policy"] == "1"
    assert (await client.get(router.url + "/v1/models")).json()["data"][0]["id"] == "llama"
    router.process.send_signal(signal.SIGTERM)
    assert await router.ended() == 0


async def test_without_a_policy_the_default_applies(alone, engines, client):
    (made,) = await engines(plain())
    router = alone("--instances", made.url)
    health = await router.ready()
    assert (health["status"], health["degraded"]) == ("ok", [])
    assert (health["policy_file"]["path"], health["policy_file"]["version"]) == (None, 0)
    assert (await client.post(router.url + "/v1/completions", json=BODY)).status_code == 200


async def test_a_hangup_applies_the_changed_file(alone, engines, client, tmp_path):
    (made,) = await engines(plain())
    path = policy_file(tmp_path)
    router = alone("--instances", made.url, "--policy", path)
    await router.ready()
    policy_file(tmp_path, "lpwl")
    router.reload()
    health = await router.until(lambda health: health["policy_file"]["version"] == 2)
    assert health["policy_file"]["sha256"] == document.sha256(document.default("lpwl"))
    assert (await client.post(router.url + "/v1/completions", json=BODY)).headers["x-weir-policy"] == "2"


async def test_a_bad_file_is_reported_in_one_line_and_the_old_one_remains(alone, engines, client, tmp_path):
    (made,) = await engines(plain())
    router = alone("--instances", made.url, "--policy", policy_file(tmp_path))
    before = await router.ready()
    policy_file(tmp_path, classes__heavy_new_tokens=-1)
    router.reload()
    health = await router.until(lambda health: health["policy_file"]["refused"])
    refused = health["policy_file"]["refused"]
    assert "classes.heavy_new_tokens" in refused
    assert "-1" in refused
    assert "allowed" in refused or "from" in refused
    assert health["policy_file"]["sha256"] == before["policy_file"]["sha256"]
    assert f"the last reload was refused: {refused}" in health["degraded"]
    assert (await client.post(router.url + "/v1/completions", json=BODY)).headers["x-weir-policy"] == "1"
    policy_file(tmp_path)
    router.reload()
    health = await router.until(lambda health: not health["policy_file"]["refused"])
    assert health["policy_file"]["version"] == 1
    text = (await client.get(router.url + "/metrics")).text
    assert 'weir_router_reloads_total{result="refused"} 1.0' in text
    assert 'weir_router_reloads_total{result="taken"} 1.0' in text


async def test_a_hangup_adds_and_removes_the_instances_of_a_file(alone, engines, client, tmp_path):
    made = await engines(plain(), plain())
    path = tmp_path / "instances"
    path.write_text(f"# ours\n{made[0].url};id=one\n\n")
    router = alone("--instances", f"@{path}", "--policy", policy_file(tmp_path))
    await router.ready()
    path.write_text(f"{made[1].url};id=two\n")
    router.reload()
    health = await router.until(lambda health: [each["id"] for each in health["instances"]] == ["two"])
    await router.ready()
    assert health["instances"][0]["url"] == made[1].url
    assert (await client.post(router.url + "/v1/completions", json=BODY)).headers["x-weir-instance"] == "two"


async def test_receipts_are_shown_to_the_same_machine_only(alone, engines, client):
    (made,) = await engines(plain())
    router = alone("--instances", made.url)
    await router.ready()
    answer = await client.post(router.url + "/v1/completions", json=BODY, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    listed = (await client.get(router.url + "/receipts")).json()["receipts"]
    assert [each["request_id"] for each in listed] == ["mine"]
    whole = (await client.get(router.url + "/receipts/mine")).json()
    assert (whole["outcome"], len(whole["candidates"]["id"])) == ("ok", 1)
    assert (await client.get(router.url + "/receipts/another")).status_code == 404


async def test_both_receipts_of_two_requests_with_one_id_are_shown(alone, engines, client):
    (made,) = await engines(plain())
    router = alone("--instances", made.url)
    await router.ready()
    for _ in range(3):
        await client.post(router.url + "/v1/completions", json=BODY, headers={"x-request-id": "mine"})
    seen, name = [], "mine"
    while name:
        receipt = (await client.get(f"{router.url}/receipts/{name}")).json()
        seen.append((receipt["request_id"], receipt["own_id"]))
        name = receipt.get("earlier")
    assert len(set(seen)) == 3
    assert {request_id for request_id, _ in seen} == {"mine"}


async def test_a_running_stream_is_finished_after_the_signal(alone, engines, client):
    (made,) = await engines(plain(first_then_wait))
    router = alone("--instances", made.url, "--grace", "20")
    await router.ready()
    async with client.stream("POST", router.url + "/v1/completions", json={**BODY, "stream": True}) as running:
        chunks = running.aiter_raw()
        await anext(chunks)
        router.process.send_signal(signal.SIGINT)
        made.release.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert rest.endswith(b"data: [DONE]\n\n")
    assert await router.ended() == 0


def test_a_router_alone_imports_neither_redis_nor_django():
    code = (
        "import sys, json, router.process\n"
        "from router.options import arguments, source\n"
        "source(arguments(['--instances', 'http://127.0.0.1:1']), 'http://x')\n"
        "print(json.dumps([m for m in sys.modules if m in ('redis', 'django', 'celery', 'fleet', 'controlplane')]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert json.loads(ended.stdout) == []


async def test_a_key_file_admits_its_clients_and_is_reloaded(alone, engines, client, tmp_path):
    secrets = ["sk-weir-" + digit * 64 for digit in "12"]
    path = tmp_path / "keys.yaml"

    def write(*keys):
        made = [
            {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), "requests_per_min": limit}
            for name, secret, limit in keys
        ]
        path.write_text(json.dumps({"keys": made}))

    async def ask(secret):
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        answer = await client.post(router.url + "/v1/completions", json=BODY, headers=headers)
        return answer.status_code, answer.json().get("error", {}).get("code")

    write(("one", secrets[0], 1))
    router = alone("--instances", urls(await engines(plain())), "--keys", path)
    assert (await router.ready())["keys_file"]["keys"] == 1
    assert [await ask(None), await ask(secrets[1])] == [(401, "missing_api_key"), (401, "invalid_api_key")]
    assert [await ask(secrets[0]), await ask(secrets[0])] == [(200, None), (429, "rate_limit_exceeded")]
    path.write_text("keys: [")
    router.reload()
    assert "--keys" in (await router.until(lambda health: health["policy_file"]["refused"]))["policy_file"]["refused"]
    assert (await ask(secrets[1]))[0] == 401
    write(("one", secrets[0], 1), ("two", secrets[1], None))
    router.reload()
    await router.until(lambda health: health["keys_file"]["keys"] == 2)
    assert (await ask(secrets[1]))[0] == 200


async def test_an_engine_that_hangs_is_reported_while_its_health_page_answers_and_returns_later(
    alone, engines, client, tmp_path
):
    hanging = plain(hang)
    sound, made = await engines(plain(), plain())
    router = alone("--instances", urls([made, sound]), "--policy", policy_file(tmp_path))
    await router.ready(2)
    for _ in range(4):
        await client.post(router.url + "/v1/completions", json=BODY)
    made.behaviour = hanging
    asked = [asyncio.create_task(client.post(router.url + "/v1/completions", json=BODY)) for _ in range(2)]
    health = await router.until(lambda health: health["pools"]["default"]["ready"] == 1)
    told = {each["id"]: (each["state"], each["reason"]) for each in health["instances"]}
    name, other = (each.url.split("//")[1] for each in (made, sound))
    assert told == {name: ("stalled", "stalled: no token for 14 s with requests (limit 10 s)"), other: ("ready", "")}
    answers = [await client.post(router.url + "/v1/completions", json=BODY) for _ in range(4)]
    assert {answer.headers["x-weir-instance"] for answer in answers} == {other}
    made.release.set()
    await router.ready(2)
    assert {(await task).status_code for task in asked} == {200}
