"""Run the compiled router as a real process: each test holds a fault of compilation that only a real request showed."""

import json
import runpy
import tomllib
import zipfile

import pytest

from router.compiled import ROOT
from router.request_path import ROUTER
from router.tests.plain_engine import plain
from router.tests.standalone.test_alone import alone, client, engines, urls  # noqa: F401 - fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROUTER.is_valid(), reason="needs the copy of `make compiled`"),
]
BODY = {"model": "llama", "prompt": "x" * 3000}


async def compiled(url, client):  # noqa: F811
    page = (await client.get(url + "/metrics")).text
    return "weir_router_compiled 1.0" in page


async def test_a_compiled_router_serves_targets_with_and_without_a_query(alone, engines, client):  # noqa: F811
    """When compiled, `url.query or b""` rejected None: every request got a 400."""
    made = await engines(plain())
    router = alone("--instances", urls(made))
    await router.ready()
    answers = [await client.post(f"{router.url}/v1/completions{query}", json=BODY) for query in ("", "?a=b", "?")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert [one.target for one in made[0].received if one.method == "POST"][1] == "/v1/completions?a=b"
    assert await compiled(router.url, client)


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "invalid_json"), (b'{"model":1}', "invalid_json")],
)
async def test_each_class_of_refusals_keeps_its_error_code(alone, engines, client, body, code):  # noqa: F811
    """When compiled, exceptions lost the attributes of their classes."""
    router = alone("--instances", urls(await engines(plain())))
    await router.ready()
    answer = await client.post(f"{router.url}/v1/completions", content=body)
    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (400, code)


async def test_each_class_of_engine_errors_keeps_its_error_code(alone, engines, client, tmp_path):  # noqa: F811
    (tmp_path / "policy.json").write_text(json.dumps({"strategy": {"name": "round_robin"}}))
    router = alone("--instances", "http://127.0.0.1:1", "--policy", tmp_path / "policy.json")
    answer = await client.post(f"{router.url}/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_instance_ready"


async def test_probes_whose_connection_is_a_subclass_find_the_engines(alone, engines, client):  # noqa: F811
    """An interpreted class could not inherit from the compiled connection."""
    made = await engines(plain(), plain())
    router = alone("--instances", urls(made))
    health = await router.until(lambda health: health["pools"]["default"]["ready"] == 2)
    assert health["pools"]["default"]["ready"] == 2
    assert await compiled(router.url, client)


async def test_a_wheel_contains_the_compiled_copy(alone, engines, client, tmp_path, monkeypatch):  # noqa: F811
    """A compiled copy is ignored once an installed source differs from its own."""
    packing = runpy.run_path(str(ROOT / "deploy" / "wheel.py"))
    project = packing["router_alone"](tomllib.loads((ROOT / "pyproject.toml").read_text()))
    packing["build"](tmp_path, ("router",), {"pyproject.toml": project}, compiled=True)
    (wheel,) = tmp_path.glob("weir_router-*-cp3*-none-linux_*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)  # `python -m router` looks for packages here first
    source = tmp_path / "router" / "source.py"
    for is_compiled in (True, False):
        router = alone("--instances", urls(await engines(plain())))
        await router.ready()
        assert (await client.post(f"{router.url}/v1/completions", json=BODY)).status_code == 200
        assert await compiled(router.url, client) is is_compiled
        source.write_text(f"{source.read_text()}\n")


async def test_with_compilation_switched_off_the_sources_run(alone, engines, client, monkeypatch):  # noqa: F811
    monkeypatch.setenv("WEIR_COMPILED", "0")
    router = alone("--instances", urls(await engines(plain())))
    await router.ready()
    assert not await compiled(router.url, client)
