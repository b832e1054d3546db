"""The router's own errors: status, shape and a code that tells the client what to do."""

import pytest

from router.contract.net.retry_after import LONGEST_S
from router.http.body import MAX_BODY
from router.http.errors import ErrorResponse, saying_when
from router.tests.conftest import entry


def code_of(response):
    return response.json()["error"]["code"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"model": 1}'])
async def test_only_a_json_object_is_accepted(world, body):
    w = await world(None)
    response = await w.client.post("/v1/chat/completions", content=body)
    assert (response.status_code, code_of(response)) == (400, "invalid_json")
    assert not w.engines[0].received


async def test_an_error_has_the_shape_that_openai_clients_expect(world):
    w = await world(None)
    response = await w.client.post("/v1/chat/completions", content=b"{")
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "not JSON" in error["message"]
    assert error["request_id"] == response.headers["x-request-id"]


async def test_an_error_on_messages_has_the_shape_that_anthropic_clients_expect(world):
    w = await world(None)
    response = await w.client.post("/v1/messages", content=b"{")
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("after_s", "told"), [(1, None), (LONGEST_S, None), (LONGEST_S + 1, b"false"), (86_400, b"false")]
)
def test_no_retry_after_is_longer_than_client_libraries_wait(after_s, told):
    refusal = ErrorResponse(429, "rate_limit_exceeded", "later", retry_after_s=after_s)
    sent = dict(refusal.headers())
    assert (sent[b"retry-after"], sent.get(b"x-should-retry")) == (b"%d" % after_s, told)


PAST, FAR = (b"retry-after: Sat, 28 Nov %d 08:00:00 GMT\r\n" % year for year in (2026, 2099))
NOT_AGAIN = b"x-should-retry: false\r\n"


@pytest.mark.parametrize(
    ("status", "lines", "sent"),
    [
        (429, b"", b"retry-after: 5\r\n"),
        (500, b"", b""),
        (503, b"retry-after: 120\r\n", b"retry-after: 120\r\n"),
        (503, b"a: b\r\nretry-after: 121\r\n", b"a: b\r\nretry-after: 121\r\nx-should-retry: false\r\n"),
        (408, b"retry-after: 9999999999999\r\n", b"retry-after: 9999999999999\r\nx-should-retry: false\r\n"),
        (429, b"retry-after: 600\r\nx-should-retry: true\r\n", b"retry-after: 600\r\nx-should-retry: false\r\n"),
        *((429, line, line) for line in (PAST, b"retry-after: soon\r\n", b"retry-after: 1e1\r\n")),
        *((503, line, line + NOT_AGAIN) for line in (FAR, b"retry-after: 1e9\r\n", b"retry-after: inf\r\n")),
        (503, b"retry-after-ms: 900\r\n", b"retry-after-ms: 900\r\nretry-after: 5\r\n"),
        (503, b"retry-after-ms: 121000\r\n" + FAR, b"retry-after-ms: 121000\r\n" + FAR + NOT_AGAIN),
    ],
)
def test_an_engines_retry_after_is_passed_on_and_a_long_one_is_capped(status, lines, sent):
    assert saying_when(status, lines) == sent


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(world):
    w = await world(None)
    response = await w.ask(model="gpt-9")
    assert (response.status_code, code_of(response)) == (404, "model_not_found")
    assert "gpt-9" in response.json()["error"]["message"]
    assert "llama" in response.json()["error"]["message"]


async def test_an_unknown_pool_in_the_header_is_a_404(world):
    w = await world(None)
    response = await w.ask(headers={"x-weir-pool": "nope"})
    assert (response.status_code, code_of(response)) == (404, "pool_not_found")


async def test_a_body_that_declares_too_large_a_size_is_refused(world):
    w = await world(None)
    response = await w.client.post("/v1/completions", content=b"x" * (MAX_BODY + 1))
    assert (response.status_code, code_of(response)) == (413, "body_too_large")


async def test_a_body_that_turns_out_too_large_is_refused(world):
    w = await world(None)

    async def parts():
        for _ in range(MAX_BODY // (1 << 20) + 2):
            yield b"x" * (1 << 20)

    response = await w.client.post("/v1/completions", content=parts())
    assert (response.status_code, code_of(response)) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/chat/completions", "POST"), ("HEAD", "/v1/messages", "POST"), ("POST", "/v1/models", "GET, HEAD")],
)
async def test_a_wrong_method_is_refused_with_the_allowed_one(world, method, path, allow):
    w = await world(None)
    response = await w.client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow


async def test_the_page_of_a_model_equals_its_entry_in_the_list(world):
    w = await world(None)
    one, listed = await w.client.get("/v1/models/llama"), await w.client.get("/v1/models")
    assert one.json() == listed.json()["data"][0]


async def test_the_page_of_an_unknown_model_is_a_404(world):
    w = await world(None)
    response = await w.client.get("/v1/models/meta/none")
    assert (response.status_code, code_of(response)) == (404, "model_not_found")
    assert "llama" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/llama", "/healthz", "/metrics"])
async def test_every_page_carries_the_request_id(world, path):
    w = await world(None)
    response = await w.client.get(path, headers={"x-request-id": "mine"})
    assert (response.status_code, response.headers["x-request-id"]) == (200, "mine")


async def test_an_unknown_path_is_refused_with_the_known_paths(world):
    w = await world(None)
    response = await w.client.get("/v2/x")
    assert (response.status_code, code_of(response)) == (404, "not_found")
    assert "/v1/chat/completions" in response.json()["error"]["message"]


async def test_without_a_ready_instance_the_error_says_why_and_when_to_retry(world):
    w = await world(None)
    w.published.fleet(entry("demo-0", w.engines[0].url, state="loading", routable=False, reason="reads its weights"))
    await w.until(lambda: w.router.pools.get("demo").ready == 0)
    response = await w.ask()
    assert (response.status_code, code_of(response)) == (503, "no_instance_ready")
    assert response.headers["retry-after"] == "1"
    assert "reads its weights" in response.json()["error"]["message"]
