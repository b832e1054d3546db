"""Only pages from origins that the operator names may use the router."""

from typing import Any

import pytest

from router.http.cors import cors
from router.options import parse
from router.tests.engine import reply

PAGE = "https://chat.example"
ASKED = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
ALLOW = "access-control-allow-origin"


def of_cors(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def test_by_default_no_page_may_send_requests_or_read_answers_even_if_the_engine_allows_it(world: Any) -> None:
    w = await world(reply({}, 200, "access-control-allow-origin: *\r\naccess-control-allow-credentials: true"))
    asked = await w.client.options("/v1/chat/completions", headers={"origin": PAGE, **ASKED})
    assert (asked.status_code, asked.headers["allow"], of_cors(asked)) == (405, "POST", {})
    assert of_cors(await w.ask(headers={"origin": PAGE})) == {}


async def test_a_page_of_a_named_origin_may_send_requests_and_read_answers(world: Any) -> None:
    w = await world(reply({}, 200, "access-control-allow-origin: *"))
    w.router.cors = cors(f"https://other.example, {PAGE}")
    asked = await w.client.options("/v1/chat/completions", headers={"origin": PAGE, **ASKED})
    assert (asked.status_code, asked.content, asked.headers["vary"]) == (204, b"", "Origin")
    told = of_cors(asked)
    assert (told[ALLOW], told["access-control-allow-methods"]) == (PAGE, "POST")
    assert told["access-control-allow-headers"] == ASKED["access-control-request-headers"]
    for answer in (await w.ask(headers={"origin": PAGE}), await w.ask(model="none", headers={"origin": PAGE})):
        assert answer.headers.get_list(ALLOW) == [PAGE]
        assert "x-weir-instance" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
    models = await w.client.get("/v1/models", headers={"origin": PAGE})
    assert models.headers[ALLOW] == PAGE


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"{PAGE}.evil.example", f"{PAGE}:8443"])
async def test_a_page_of_another_origin_is_refused(world: Any, origin: str) -> None:
    w = await world(reply({}))
    w.router.cors = cors(PAGE)
    asked = await w.client.options("/v1/chat/completions", headers={"origin": origin, **ASKED})
    assert (asked.status_code, asked.json()["error"]["code"]) == (403, "origin_not_allowed")
    answer = await w.ask(headers={"origin": origin})
    assert ALLOW not in asked.headers
    assert ALLOW not in answer.headers


async def test_answers_to_any_origin_do_not_name_it(world: Any) -> None:
    w = await world(reply({}))
    w.router.cors = cors("*")
    assert (await w.ask(headers={"origin": "null"})).headers[ALLOW] == "*"
    assert of_cors(await w.ask()) == {}


@pytest.mark.parametrize(("path", "status"), [("/sleep", 404), ("/nowhere", 404), ("/v1/models", 204)])
async def test_only_served_paths_are_allowed(world: Any, path: str, status: int) -> None:
    w = await world(reply({}))
    w.router.cors = cors(PAGE)
    assert (await w.client.options(path, headers={"origin": PAGE, **ASKED})).status_code == status
    assert (await w.client.options(path)).status_code in (404, 405)


async def test_a_value_that_is_not_a_header_list_is_not_echoed(world: Any) -> None:
    w = await world(reply({}))
    w.router.cors = cors(PAGE)
    headers = {"origin": PAGE, **ASKED, "access-control-request-headers": "x: y"}
    assert (await w.client.options("/v1/models", headers=headers)).status_code == 400


@pytest.mark.parametrize("given", ["a.example", "https://a.example/", "https://A.example", "*,https://a.b", "ftp://a"])
def test_an_invalid_origin_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"^--cors-origins '.*': allowed is http"):
        cors(given)


@pytest.mark.parametrize("given", [None, ""])
def test_no_origin_is_allowed_without_the_option(given: str | None) -> None:
    assert cors(given) is None


def test_the_option_can_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_ROUTER_CORS_ORIGINS", PAGE)
    assert parse(["--instances", "http://127.0.0.1:1"]).cors_origins == PAGE
