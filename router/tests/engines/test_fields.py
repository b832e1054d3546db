"""Fields and headers by which a client could control engines are refused or removed, unless the pool trusts its key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from router.contract.api_paths import LIMITS, ROUTED, WITH_FILES
from router.contract.engine_fields import EXTRA, FIELDS, HEADERS, INSIDE
from router.contract.redis.api_keys import MARK
from router.http import headers as http_headers
from router.tests.conftest import World, entry, key_entry
from router.tests.engine import reply
from router.tests.engines.servers import FOLDER, SERVERS
from router.tests.http.test_forwarding import BODIES
from router.tests.picker.test_picking import DOCUMENT, Gateway
from router.tests.test_aliases import known
from router.tokenize import prompt

KEY = f"{MARK.decode()}a-scheduler"
BEARER = {"authorization": f"Bearer {KEY}"}
FIELD = "kv_transfer_params"
CLIENTS = set((FOLDER / "client_fields.txt").read_text().split())
CLIENT_HEADERS = {  # headers that affect only the answer, or that name the client
    *("x-anthropic-billing-header", "x-api-key", "x-request-id", "x-session-id", "x-exa-integration"),
    *("x-sglext-ids-framed", "x-sglext-return-input-ids", "x-sglext-return-output-ids"),
}


def taken() -> set[str]:
    """Return the fields that engines take on routed paths."""
    rows = (row for server in SERVERS.values() for path, row in server["paths"].items() if ("POST", path) in ROUTED)
    return {field for row in rows for field in row["fields"]}


def test_each_field_accepted_by_an_engine_is_classified() -> None:
    """A new field belongs in engine_fields.INSIDE or in client_fields.txt."""
    assert taken() - FIELDS - prompt.ROUTERS - CLIENTS == set()


def test_the_documentation_names_every_field() -> None:
    text = (Path(__file__).parents[3] / "docs" / "router.md").read_text()
    section = text.partition("### Fields that steer engines")[2].partition("###")[0]
    for name, fields in INSIDE.items():
        row = next(line for line in section.splitlines() if line.startswith(f"| {name} |"))
        assert set(re.findall(r"`(\w+)`", row)) - {EXTRA} == fields


def test_no_field_is_in_both_lists_and_each_is_known_to_an_engine() -> None:
    assert set() == CLIENTS & (FIELDS | prompt.ROUTERS)
    assert CLIENTS - taken() == set()
    assert sum(map(len, INSIDE.values())) == len(FIELDS)


def test_each_header_read_by_an_engine_is_classified() -> None:
    read = {name for server in SERVERS.values() for name in server["headers"]}
    dropped = {name.decode() for name in http_headers.NOT_FORWARDED}
    assert read - dropped - CLIENT_HEADERS == set()


async def refused(world: World, **body: Any) -> str:
    """Return the message of a refusal that happens before any engine has received the request."""
    answer = await world.ask(**body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "parameter_not_allowed")
    assert world.engines[0].received == []
    return str(error["message"])


@pytest.mark.parametrize("path", sorted(BODIES))
async def test_every_path_refuses_a_field_that_steers_engines(world: Any, path: str) -> None:
    w = await world(None)
    message = await refused(w, path=path, **{**BODIES[path], FIELD: {"remote_host": "10.0.0.1"}})
    assert message.startswith("kv_transfer_params: steers engines (vLLM)")


@pytest.mark.attacks
async def test_every_field_is_refused_whatever_its_value(world: Any) -> None:
    w = await world(None)
    for field in FIELDS:
        for value in (None, {}, "x"):
            assert field in await refused(w, **{field: value})


async def test_a_steering_field_within_vllms_extra_arguments_is_refused(world: Any) -> None:
    w = await world(None)
    assert "vllm_xargs.kv_transfer_params" in await refused(w, **{EXTRA: {FIELD: "x"}})
    assert (await w.ask(**{EXTRA: {"mine": 1}})).status_code == 200
    assert (await w.ask(**{EXTRA: "no map"})).status_code == 200


async def test_a_session_name_that_would_flood_the_engines_events_is_refused(world: Any) -> None:
    w = await world(None)
    assert "session_id: allowed is a text of up to 4,096 characters" in await refused(w, session_id="s" * 4097)
    assert "vllm_xargs.session_id" in await refused(w, **{EXTRA: {"session_id": "s" * 4097}})
    assert "vllm_xargs.session_id" in await refused(w, **{EXTRA: {"session_id": ["s"]}})
    assert (await w.ask(session_id="s" * 4096)).status_code == 200
    assert (await w.ask(session_id=7)).status_code == 200


@pytest.mark.parametrize("path", WITH_FILES)
async def test_a_field_of_a_form_is_refused(world: Any, path: str) -> None:
    w = await world(None)
    answer = await w.client.post(path, data={"model": "llama", FIELD: "{}"}, files={"file": b"RIFF"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "parameter_not_allowed")
    assert w.engines[0].received == []


async def trusting(world: Any, *names: str) -> World:
    made: World = await world(reply())
    made.published.keys(key_entry(KEY))
    made.published.fleet(entry("demo-0", made.engines[0].url), trusted_keys=list(names))
    pool = made.router.pools.get("demo")
    ring = made.router.pools.auth
    assert pool is not None
    await made.until(lambda: pool.trusted_keys == set(names) and ring.ring is not None and ring.ring.by_hash)
    return made


@pytest.mark.parametrize("path", sorted(LIMITS))
async def test_a_key_that_the_pool_trusts_may_steer_its_engines(world: Any, path: str) -> None:
    w = await trusting(world, "scheduler")
    body = {**BODIES[path], FIELD: {"do_remote_prefill": True}}
    assert (await w.ask(path, headers=BEARER, **body)).status_code == 200
    assert w.engines[0].received[0].document[FIELD] == body[FIELD]
    assert (await w.ask(path, **body)).status_code == 400


async def test_a_key_trusted_under_another_name_of_the_pool_may_not_steer_engines(world: Any) -> None:
    w = await trusting(world, "other")
    await refused(w, headers=BEARER, **{FIELD: {}})


async def test_a_field_is_refused_behind_a_name_of_the_document_models(world: Any) -> None:
    w = await world(None)
    await known(w, {"bot": {"pool": "demo"}})
    await refused(w, model="bot", **{FIELD: {}})


async def test_a_fleet_of_an_older_control_plane_trusts_no_key(world: Any) -> None:
    w = await world(None)
    pool = w.router.pools.get("demo")
    assert pool is not None
    assert pool.trusted_keys == frozenset()


async def test_the_picker_refuses_a_field_that_steers_engines_and_removes_the_headers(world: Any) -> None:
    w = await world(reply({}))
    gateway = Gateway(w)
    told = await gateway.picked({**DOCUMENT, FIELD: {}})
    assert (told.status, json.loads(told.body or b"")["error"]["code"]) == (400, "parameter_not_allowed")
    lines = {name.decode(): "x" for name in HEADERS}
    told = await gateway.picked(None, **lines)
    assert set(told.removed) >= set(lines)


@pytest.mark.attacks
async def test_headers_that_steer_engines_are_removed(world: Any) -> None:
    w = await world(reply())
    given = {name.decode(): "x" for name in HEADERS} | {"x-mine": "1"}
    assert (await w.ask(headers=given)).status_code == 200
    sent = w.engines[0].received[0].headers
    assert sent["x-mine"] == "1"
    assert not given.keys() - {"x-mine"} & sent.keys()
