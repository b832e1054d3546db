"""An engine that requires a key gets its pool's key, whatever the client sent; no other server gets it."""

import json
from pathlib import Path

import pytest

from router.contract.net import engine_key, whereabouts
from router.contract.net.engine_key import refusal
from router.pool.endpoint import Endpoint
from router.tests.certificates import Authority
from router.tests.conftest import entry, instance, key_entry
from router.tests.engine import engine, reply
from router.tests.values import everything
from router.upstream.connection_pool import ConnectionPool
from router.upstream.rank_numbering import counts_group
from router.workers.pace_probes import _compute

ROUTER = Path(engine_key.__file__).parents[2]
KEY = "sk-engine-1"
OWN = "sk-weir-" + "7" * 64
VARIABLE = "env:QWEN_API_KEY"


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Load the key, and make every file due for its next check."""
    monkeypatch.setenv("QWEN_API_KEY", KEY)
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)


def guarded(key=KEY):
    """An engine that answers 401 to requests without the key."""
    served, refused = reply(), reply({"error": "Unauthorized"}, 401)

    async def behave(engine, request, writer):
        shown = request.headers.get("authorization") == f"Bearer {key}"
        await (served if shown else refused)(engine, request, writer)

    return behave


def publish(world, *references):
    """Publish the world's engines, each with its key reference."""
    pairs = zip(world.engines, references, strict=True)
    entries = [
        entry(f"demo-{place}", engine.url, **({"engine_key": key} if key else {}))
        for place, (engine, key) in enumerate(pairs)
    ]
    world.published.fleet(*entries)


async def settled(world, *references):
    publish(world, *references)
    pool = world.router.pools.get("demo")
    wanted = list(references)
    await world.until(lambda: [one.engine_key for one in pool.endpoints.values()] == wanted, "keys are published")
    return pool


async def test_a_client_needs_no_key_of_the_engine(world):
    made = await world(guarded())
    await settled(made, VARIABLE)
    answer = await made.ask(headers={"authorization": "Bearer mine", "x-api-key": "mine"})
    assert answer.status_code == 200
    sent = made.engines[0].received[-1].headers
    assert (sent["authorization"], sent.get("x-api-key")) == (f"Bearer {KEY}", None)


async def test_a_client_with_a_weir_key_needs_no_engine_key(world):
    made = await world(guarded())
    await settled(made, VARIABLE)
    made.published.keys(key_entry(OWN), required=("*",))
    await made.until(lambda: made.router.pools.auth.ring and made.router.pools.auth.ring.required_everywhere)
    assert (await made.ask(headers={"authorization": f"Bearer {OWN}"})).status_code == 200
    assert (await made.ask()).status_code == 401  # from the router itself


async def test_a_pool_without_a_key_forwards_what_the_client_sent(world):
    made = await world(guarded())
    assert (await made.ask()).status_code == 401
    assert (await made.ask(headers={"authorization": f"Bearer {KEY}"})).status_code == 200


async def test_the_key_of_an_engine_is_never_sent_to_another_engine(world):
    made = await world(guarded(), None)
    await settled(made, VARIABLE, "")
    for _ in range(4):
        assert (await made.ask()).status_code == 200
    assert len(made.engines[1].received) == 2
    assert all("authorization" not in request.headers for request in made.engines[1].received)


async def test_an_engine_that_redirects_does_not_send_the_key_to_another_server(world):
    made = await world(reply({}, 307, "location: http://127.0.0.1:9/v1/completions"))
    await settled(made, VARIABLE)
    answer = await made.ask()
    assert (answer.status_code, "redirects are neither followed nor passed on" in answer.text) == (502, True)
    assert len(made.engines[0].received) == 1


async def test_a_changed_key_is_used_without_a_restart(world, tmp_path):
    path = tmp_path / "key"
    path.write_text("old")
    made = await world(guarded())
    await settled(made, f"file:{path}")
    assert (await made.ask()).status_code == 502
    path.write_text(KEY)
    assert (await made.ask()).status_code == 200


async def test_an_instance_without_its_key_gets_no_requests_and_the_reason_is_reported(world, tmp_path, caplog):
    path = tmp_path / "key"
    made = await world(guarded(), None)
    pool = await settled(made, f"file:{path}", "")
    why = engine_key.trouble(f"file:{path}")
    assert why.startswith(f"its engine key is missing: the file {path}")
    for _ in range(4):
        assert (await made.ask()).status_code == 200
    assert not made.engines[0].received
    assert pool.endpoints["demo-0"].refusal(0.0, 1.0) == f"ready: {why}"
    health = (await made.client.get("/healthz")).json()
    assert "pool demo: 1 of 2 instances lack an engine key or certificates here: the log says why" in health["degraded"]
    assert str(path) not in json.dumps(health)
    assert f"pool demo: {why}" in caplog.text
    path.write_text(KEY)
    pool.look_at_keys()
    assert pool.ready == 2
    for _ in range(4):
        assert (await made.ask()).status_code == 200
    assert len(made.engines[0].received) == 2


async def test_an_instance_without_its_certificates_gets_no_requests_and_the_reason_is_reported(
    world, monkeypatch, tmp_path
):
    made = await world(None, None)
    first, second = made.engines
    lacks = entry("demo-0", first.url, tls={"authorities": "env:ENGINES_TLS"})
    made.published.fleet(lacks, entry("demo-1", second.url))
    pool = made.router.pools.get("demo")
    await made.until(lambda: pool.ready == 1, "the certificates are missed")
    for _ in range(4):
        assert (await made.ask()).status_code == 200
    assert not first.received
    why = "its TLS authority is missing: the environment variable ENGINES_TLS is not set or empty"
    assert pool.endpoints["demo-0"].refusal(0.0, 1.0) == f"ready: {why}"
    monkeypatch.setenv("ENGINES_TLS", Authority(tmp_path).path.read_text())
    pool.look_at_keys()
    assert pool.ready == 2


async def test_a_key_that_disappears_during_a_request_counts_against_no_engine(world, monkeypatch):
    made = await world(guarded())
    pool = await settled(made, VARIABLE)
    monkeypatch.delenv("QWEN_API_KEY")
    answer = await made.ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_instance_ready")
    assert "the environment variable QWEN_API_KEY is not set or empty" in answer.text
    receipt = await made.receipt(answer)
    assert [receipt["result"], receipt["fault"], receipt["attempts"][0]["result"]] == ["refused", "nobody", "refused"]
    assert pool.endpoints["demo-0"].breaker.state == "closed"
    assert not made.engines[0].received


async def test_the_key_appears_in_no_value_and_no_answer(world, published):
    made = await world(guarded())
    await settled(made, VARIABLE)
    receipt = await made.receipt(await made.ask())
    pages = [(await made.client.get(path)).text for path in ("/healthz", "/metrics", "/v1/models")]
    values = everything(published.client)
    assert KEY not in json.dumps(receipt)
    assert not any(KEY in page for page in pages)
    assert VARIABLE in values["weir:fleet:demo"]
    assert [name for name, value in values.items() if KEY in value] == []


async def test_a_routers_own_requests_to_engines_carry_the_key():
    async with engine(guarded()) as made:
        upstream = ConnectionPool(made.url)
        assert await counts_group(upstream, "llama", 3, VARIABLE) is True
        assert await counts_group(upstream, "llama", 3) is None
        for key, tokens in ((VARIABLE, 36), ("", 0), ("env:NO_API_KEY", 0)):
            assert await _compute(Endpoint(instance("a", made.url, engine_key=key)), "llama") == tokens
        upstream.close()


async def test_a_pool_whose_engines_all_refuse_is_reported_on_the_public_page(world):
    made = await world(None)
    why = refusal(401, "/v1/models", "env:QWEN_API_KEY")
    url = made.engines[0].url
    made.published.fleet(entry("demo-0", url, state="loading", routable=False, reason=why))
    pool = made.router.pools.get("demo")
    await made.until(lambda: not pool.ready, "it is loading")
    health = (await made.client.get("/healthz")).json()
    assert health["degraded"] == ["pool demo: none of 1 instances is ready: 1 of them ask for a key (engine_key)"]
    made.published.fleet(entry("demo-0", url, state="draining", routable=False, reason="drained by ada: words of ada"))
    await made.until(lambda: pool.published[0].state == "draining", "it is drained")
    assert "words of ada" not in (await made.client.get("/healthz")).text


async def test_an_engine_that_rejects_its_pools_key_is_at_fault_and_not_the_client(world):
    made = await world(guarded("another"), None, failure__breaker_failures=2)
    pool = await settled(made, VARIABLE, VARIABLE)
    answers = [await made.ask() for _ in range(6)]
    assert {answer.status_code for answer in answers} == {200}
    assert pool.endpoints["demo-0"].breaker.state == "open"
    assert len(made.engines[0].received) == 2
    attempts = [(await made.receipt(answer))["attempts"] for answer in answers]
    first = next(two[0] for two in attempts if len(two) == 2)
    assert (first["instance"], first["error"], first["result"]) == (
        "demo-0",
        "answered 401 to its engine key",
        "failed_before_content",
    )


async def test_a_key_that_every_engine_rejects_is_reported_as_a_failure_of_the_pool(world):
    made = await world(guarded("another"), guarded("another"))
    await settled(made, VARIABLE, VARIABLE)
    answer = await made.ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert "answered 401 to its engine key" in answer.text
    receipt = await made.receipt(answer)
    assert (receipt["outcome"], len(receipt["attempts"])) == ("error", 2)


def test_every_module_that_sends_requests_to_engines_adds_the_key():
    """The other modules send to the web process and to a collector of spans."""
    sources = {path.relative_to(ROUTER): path.read_text() for path in ROUTER.rglob("*.py") if "tests" not in path.parts}
    without = {str(path) for path, text in sources.items() if "upstream.open(" in text and "with_key(" not in text}
    assert without == {"serving/web_relay.py", "telemetry/tracer.py"}


async def test_an_engine_that_asks_a_client_of_weir_for_a_key_is_at_fault_and_says_what_is_missing(world):
    made = await world(guarded(), None, failure__breaker_failures=5)
    made.published.keys(key_entry(OWN), required=("*",))
    await made.until(lambda: made.router.pools.auth.ring and made.router.pools.auth.ring.required_everywhere)
    for name, value in (("authorization", f"Bearer {OWN}"), ("x-api-key", OWN), ("api-key", OWN)):
        assert (await made.ask(headers={name: value})).status_code == 200
    pool = made.router.pools.get("demo")
    assert pool.endpoints["demo-0"].breaker.failures == len(made.engines[0].received) > 0
    made.published.fleet(entry("demo-0", made.engines[0].url))
    await made.until(lambda: len(pool.endpoints) == 1, "one is left")
    answer = await made.ask(headers={"api-key": OWN})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert "answered 401: it asks for a key, and none is named (engine_key)" in answer.text
    passed = await made.ask(headers={"api-key": OWN, "authorization": "Bearer wrong"})
    assert passed.status_code == 401, "the client's own credential is the client's mistake"
