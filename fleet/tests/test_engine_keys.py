"""An engine that requires a key: which callers send it, where it is stored, how a missing or wrong one is reported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core import serializers
from django.db import connection
from django.utils import timezone

from fleet import services
from fleet.control import adapters, sleep
from fleet.kinds import KINDS
from fleet.kubernetes.manifests import pod
from fleet.kubernetes.manifests import secret as secret_of
from fleet.kubernetes.pod_settings import PodSettings
from fleet.kubernetes.render import objects_of
from fleet.kubernetes.starts import start_of
from fleet.models import AdapterHome, Instance, InstanceEvent, Pool, State
from fleet.node import logs
from fleet.node.prepare import preview, shell_line
from fleet.spec.allow_lists import AllowLists, refusals
from fleet.spec.fleet_spec import InvalidFleet, parse_fleet
from fleet.tests.world import World
from router.contract.net import pinned_http, whereabouts
from router.contract.net.pinned_http import EngineTransport
from router.tests.engine import engine, reply
from router.tests.ports import free_port

KEY = "sk-engine-7f3a"
VARIABLE = "env:QWEN_API_KEY"
SETTINGS = PodSettings(namespace="weir")
MISSING = "the environment variable QWEN_API_KEY is not set or empty"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the key, and make every file and engine due for its next check."""
    monkeypatch.setenv("QWEN_API_KEY", KEY)
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)
    monkeypatch.setattr("fleet.observe.scrape.KEY_AGAIN_S", 0.0)


@pytest.fixture
def guarded() -> Iterator[str]:
    """Return the URL of an engine that someone else started with the key."""
    port = free_port()
    argv = [sys.executable, "-m", "fleet.simengine", "--port", str(port), "--model", "m"]
    process = subprocess.Popen(argv, env={**os.environ, "VLLM_API_KEY": KEY})
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def document(kind: str, **options: Any) -> dict[str, Any]:
    pool = {"name": "p", "model": "m", "kind": kind, "engine": options}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}


def reason_of(world: World, *words: str) -> Any:
    return lambda: all(word in world.states().get("p-0", "") for word in words)


def stored() -> str:
    """Return everything in the fleet's database tables and in the logs."""
    rows = [serializers.serialize("json", model.objects.all()) for model in (Pool, Instance, InstanceEvent)]
    dump = [path.read_text(errors="replace") for path in Path(logs.folder()).glob("**/*") if path.is_file()]
    with connection.cursor() as cursor:
        cursor.execute("SELECT config FROM fleet_poolversion")
        return "".join([*rows, *dump, *(str(row) for row in cursor.fetchall())])


def test_an_engine_that_requires_a_key_is_reported_until_its_pool_names_one(world: World, guarded: str) -> None:
    services.apply_fleet(document("external", urls=[guarded]), "ada")
    world.until(reason_of(world, "GET /v1/models answers 401", "none is named", "engine_key: env:NAME or file:/PATH"))
    assert world.one().state == State.LOADING
    services.apply_fleet(document("external", urls=[guarded], engine_key=VARIABLE), "ada")
    world.until_ready(1)
    assert (world.one().epoch, world.published()["p-0"]["engine_key"]) == (1, VARIABLE)
    assert KEY not in stored()
    assert KEY not in json.dumps(world.published())


def test_an_engine_that_rejects_a_key_leaves_routing_until_it_accepts_the_key_again(
    world: World, guarded: str, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text(KEY)
    services.apply_fleet(document("external", urls=[guarded], engine_key=f"file:{path}"), "ada")
    world.until_ready(1)
    path.write_text("another")
    world.until(world.is_in(State.UNREACHABLE))
    assert f"the engine does not take the key of file:{path}" in world.one().reason
    assert not world.published()["p-0"]["routable"]
    path.unlink()
    world.until(reason_of(world, f"its engine key is missing: the file {path}"))
    path.write_text(KEY)
    world.until_ready(1)
    assert world.one().epoch == 1


def test_an_engine_of_weir_is_started_with_its_key_and_serves_callers_that_send_it(world: World) -> None:
    services.apply_fleet(document("sim", engine_key=VARIABLE, time_scale=10, enable_lora=True), "ada")
    world.until_ready(1)
    row = world.one()
    assert httpx.get(f"{row.url}/v1/models", timeout=5).status_code == 401
    environ = Path(f"/proc/{row.pid}/environ").read_bytes().split(b"\0")
    assert f"VLLM_API_KEY={KEY}".encode() in environ
    assert not any(name.startswith(b"QWEN_API_KEY=") for name in environ)
    assert KEY.encode() not in Path(f"/proc/{row.pid}/cmdline").read_bytes()
    assert KEY not in stored()


def test_calls_for_sleep_and_adapters_carry_the_key(world: World, tmp_path: Path) -> None:
    services.apply_fleet(document("sim", engine_key=VARIABLE, time_scale=10, enable_lora=True), "ada")
    world.until_ready(1)
    row = world.one()
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    AdapterHome.objects.create(instance=row, epoch=row.epoch, name="lora", source=str(folder))
    assert adapters.adapt_instance(row.name, row.epoch)
    assert AdapterHome.objects.get().state == AdapterHome.State.LOADED, AdapterHome.objects.get().text
    Instance.objects.update(state=State.DRAINING, desired="asleep", ordered_at=timezone.now())
    assert sleep.sleep_instance(row.name, row.epoch)
    assert sleep.wake_instance(row.name, row.epoch)  # computes a token, which requires the key


def test_an_engine_whose_key_is_missing_is_not_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWEN_API_KEY")
    services.apply_fleet(document("sim", engine_key=VARIABLE), "ada")
    world.until(world.is_in(State.FAILED))
    assert MISSING in world.one().reason
    assert world.processes() == []


@pytest.mark.django_db
def test_a_preview_does_not_show_the_key() -> None:
    pool = parse_fleet(document("vllm", engine_key=VARIABLE)).pools[0]
    prepared = preview(pool)
    assert KEY not in f"{prepared.argv} {prepared.environment} {shell_line(prepared)}"
    assert KEY not in json.dumps(objects_of(pool, 0, SETTINGS))


@pytest.mark.django_db
def test_a_pod_gets_the_key_through_its_secret() -> None:
    pool = Pool.objects.create(name="p", model="m", kind="sim", engine={"engine_key": VARIABLE}, node="k")
    start = start_of(Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="k", epoch=1))
    made, secret = pod(start, SETTINGS), secret_of(start, SETTINGS)
    assert KEY not in json.dumps(made)
    of_secret = {"name": start.name, "key": "env.VLLM_API_KEY"}
    variables = made["spec"]["containers"][0]["env"]
    assert {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": of_secret}} in variables
    assert secret is not None
    assert secret["stringData"]["env.VLLM_API_KEY"] == KEY


@pytest.mark.parametrize("kind", ["vllm", "sim", "neuron", "external"])
@pytest.mark.parametrize("given", [KEY, "env:WEIR_SECRET_KEY", "env:DATABASE_URL", "file:relative", 5])
def test_a_key_in_plain_text_is_refused_and_not_repeated(kind: str, given: object) -> None:
    options = {"urls": ["http://a:1"]} if kind == "external" else {}
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document(kind, engine_key=given, **options))
    (problem,) = refused.value.problems
    assert problem.path == "spec.pools[0].engine.engine_key"
    assert "env:NAME, whose name has API_KEY or ENGINE_KEY in it, or file:/PATH" in problem.text
    assert KEY not in f"{problem} {problem.text} {problem.value}"


@pytest.mark.parametrize("kind", ["vllm", "external"])
def test_the_administrators_allow_lists_apply_to_keys(kind: str) -> None:
    def refused(lists: AllowLists, key: str) -> list[str]:
        given = {"engine_key": key} | ({"urls": ["http://a:1"]} if kind == "external" else {})
        found = refusals(lists, KINDS[kind], "org/model", given, "p")
        return [str(problem) for problem in found if "engine_key" in problem.path]

    lists = AllowLists(variables=("QWEN_*",), folders=("/etc/weir",))
    assert refused(lists, VARIABLE) == refused(lists, "file:/etc/weir/key") == refused(AllowLists(), "file:/k") == []
    assert "WEIR_ALLOWED_VARIABLES" in refused(lists, "env:LLAMA_API_KEY")[0]
    assert "WEIR_ALLOWED_FOLDERS" in refused(lists, "file:/etc/passwd")[0]


async def _ask(url: str, key: str, *paths: str) -> list[int | str]:
    said: list[int | str] = []
    async with httpx.AsyncClient(transport=EngineTransport(url, key), timeout=5) as client:
        for path in paths:
            try:
                said.append((await client.get(path)).status_code)
            except httpx.HTTPError as error:
                said.append(str(error))
    return said


async def test_a_client_of_an_engine_sends_the_key_to_that_engine_only() -> None:
    away = reply({}, 307, "location: http://127.0.0.1:9/v1/models")
    async with engine(away) as own, engine(reply({})) as other:
        said = await _ask(own.url, VARIABLE, f"{own.url}/v1/models", f"{other.url}/v1/models")
    assert said == [307, 200]
    assert own.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in other.received[0].headers


async def test_a_client_without_its_engines_key_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWEN_API_KEY")
    async with engine(reply({})) as own:
        (said,) = await _ask(own.url, VARIABLE, f"{own.url}/v1/models")
    assert MISSING in str(said)
    assert own.received == []


def test_every_client_of_an_engine_sends_its_key() -> None:
    """The other callers ask routers, etcd and Prometheus."""
    root = Path(pinned_http.__file__).parents[3]
    pinned = {
        str(path.relative_to(root))
        for package in ("router", "fleet", "controlplane")
        for path in (root / package).rglob("*.py")
        if "tests" not in path.parts and "PinnedTransport(ENGINES" in path.read_text()
    }
    assert pinned == {
        "controlplane/pages/playground/asking.py",
        "controlplane/traffic/batches/running.py",
        "controlplane/live/dashboard/step.py",
        "router/workers/discovery.py",
    }
