"""The picker behind a real Envoy, in front of four simulated engines."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.tests.picker.gateway import SUBSET_HEADER, Gateway, divided, gateway, is_up

pytestmark = pytest.mark.deploy
SERVED = "x-gateway-destination-endpoint-served"
BODIES = "FULL_DUPLEX_STREAMED"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("plain")) as made:
        yield made


@pytest.fixture(scope="module", params=[BODIES, "BUFFERED"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Start a gateway configured as Istio does, and one that buffers request bodies."""
    of_request = {"request_body_mode": request.param}
    if request.param == "BUFFERED":
        of_request["request_trailer_mode"] = "SKIP"
    of_response = {"response_body_mode": BODIES, "response_trailer_mode": "SEND"}
    with gateway(tmp_path_factory.mktemp("other"), **of_request, **of_response) as made:
        yield made


ASKED: tuple[tuple[str, Callable[[str], dict[str, Any]], Callable[[dict[str, Any]], Any]], ...] = (
    ("/v1/chat/completions", lambda text: body(text, max_tokens=9), lambda said: said["choices"][0]["message"]),
    ("/v1/completions", lambda text: {"model": "llama", "prompt": text}, lambda said: said["choices"][0]["text"]),
    ("/v1/responses", lambda text: {"model": "llama", "input": text}, lambda said: said["output"][0]["content"]),
    ("/v1/messages", lambda text: body(text, max_tokens=9), lambda said: said["content"]),
)


def body(text: str = "hi", **further: Any) -> dict[str, Any]:
    return {"model": "llama", "max_tokens": 2, "messages": [{"role": "user", "content": text}], **further}


def ask(at: Gateway, text: str = "hi", headers: dict[str, str] | None = None, **further: Any) -> httpx.Response:
    return httpx.post(f"{at.url}/v1/chat/completions", json=body(text, **further), headers=headers, timeout=30)


async def ask_many(at: Gateway, count: int) -> list[httpx.Response]:
    numbers, responses = iter(range(count)), []

    async def work(client: httpx.AsyncClient) -> None:
        for n in numbers:
            asked = body(f"{n % 50} " * 200 + str(n), stream=bool(n % 2))
            responses.append(await client.post("/v1/chat/completions", json=asked))

    async with httpx.AsyncClient(base_url=at.url, timeout=60) as client:
        await asyncio.gather(*(work(client) for _ in range(16)))
    return responses


def test_requests_land_where_their_receipts_say(plain: Gateway) -> None:
    responses = asyncio.run(ask_many(plain, 1000))
    assert Counter(response.status_code for response in responses) == {200: 1000}
    landed = {response.headers["x-request-id"]: response.headers[SERVED] for response in responses}
    assert landed == {response.headers["x-request-id"]: response.headers["x-weir-instance"] for response in responses}
    assert len(Counter(landed.values())) == 4
    plain.until(lambda: len({receipt["request_id"] for receipt in plain.receipts()} & landed.keys()) >= 500)
    receipts = {one["request_id"]: one for one in plain.receipts() if one["request_id"] in landed}
    assert {name: one["instance"] for name, one in receipts.items()} == {name: landed[name] for name in receipts}
    assert {(one["outcome"], one["status"], one["ttft_ms"]) for one in receipts.values()} == {("ok", 200, None)}
    # Its load ends with the response
    lines = httpx.get(f"{plain.pages}/metrics").text.splitlines()
    left = {line for line in lines if line.startswith("weir_router_inflight_requests{")}
    assert len(left) == 4
    assert all(line.endswith(" 0.0") for line in left)


def test_a_subset_is_respected_and_an_empty_one_refused(plain: Gateway) -> None:
    two = [f"127.0.0.1:{port}" for port in plain.engines[1:3]]
    served = Counter(ask(plain, f"{n}", {SUBSET_HEADER: ",".join(two)}).headers[SERVED] for n in range(20))
    assert served.keys() <= set(two)
    refused = ask(plain, "hi", {SUBSET_HEADER: "127.0.0.1:1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_instance_ready")
    assert refused.headers["retry-after"]


def test_a_request_that_the_picker_refuses_gets_the_pickers_answer(plain: Gateway) -> None:
    response = httpx.post(f"{plain.url}/v1/chat/completions", content=b"{", timeout=10)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_the_gateway_tries_the_next_endpoint_and_the_receipt_records_it(plain: Gateway) -> None:
    prompt = "word " * 5000  # its KV stays on the engine
    at = plain.engines.index(int(ask(plain, prompt).headers[SERVED].rpartition(":")[2]))
    plain.stop_sim(at)
    response = ask(plain, prompt)
    assert (response.status_code, response.headers["x-weir-instance"]) == (200, response.headers[SERVED])
    receipt = receipt_of(plain, lambda one: one["request_id"] == response.headers["x-request-id"])
    assert [one["instance"] for one in receipt["attempts"]] == [
        f"127.0.0.1:{plain.engines[at]}",
        response.headers[SERVED],
    ]
    assert receipt["attempts"][0]["error"] == "the gateway gave it up"
    plain.start_sim(at)


def test_a_body_larger_than_a_message_arrives_whole_and_without_its_priority(other: Gateway) -> None:
    """Envoy buffers at most 1 MiB."""
    words = 300_000 if other.modes["request_body_mode"] == BODIES else 150_000
    response = ask(other, "word " * words, priority=3)
    assert response.status_code == 200, response.text[:300]
    assert response.json()["usage"]["prompt_tokens"] > words


def test_tokens_bypass_a_picker_even_if_they_are_offered_to_it(other: Gateway) -> None:
    asked = body(stream=True, max_tokens=2000, ignore_eos=True, stream_options={"include_usage": True})
    with httpx.stream("POST", f"{other.url}/v1/chat/completions", json=asked, timeout=30) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["usage"]["completion_tokens"] == 2000
    receipt = receipt_of(other, lambda one: one["stream"])
    assert (receipt["outcome"], receipt["status"], receipt["instance"]) == ("picked", 0, response.headers[SERVED])


def test_requests_are_refused_while_the_picker_is_down(plain: Gateway) -> None:
    plain.picker.kill()
    plain.picker.wait()
    assert 500 <= ask(plain).status_code <= 504
    plain.start_picker()
    plain.until(lambda: is_up(f"{plain.pages}/healthz"))
    assert plain.until(lambda: ask(plain).status_code == 200) <= 2


def test_a_decoders_sidecar_fetches_the_prompt_from_the_prefill_instance_that_the_picker_names(
    tmp_path: Path,
) -> None:
    with divided(tmp_path) as made:
        prefills = {f"127.0.0.1:{port}" for port in made.addressed[:2]}
        for path, asked, said in ASKED:
            for turn in range(2):
                prompt = f"{path} {turn} " + "word " * 500
                forged = {"x-prefiller-host-port": "127.0.0.1:1"}  # sent by the client
                response = httpx.post(made.url + path, json=asked(prompt), headers=forged, timeout=30)
                assert response.status_code == 200, response.text[:300]
                assert said(response.json()) == said(httpx.post(made.at(0) + path, json=asked(prompt)).json())
                receipt = receipt_called(made, response.headers["x-request-id"])
                assert (receipt["flow"], receipt["outcome"]) == ("offload_nixl", "ok")
                assert receipt["instance"] == response.headers[SERVED]
                assert receipt["prefill_instance"] in prefills
        told = [each for one in made.sidecars for each in one.prefillers]
        assert Counter(path for path, _ in told) == {path: 2 for path, *_ in ASKED}
        assert {prefiller for _, prefiller in told} == prefills
        pages = [httpx.get(made.at(at) + "/metrics").text for at in (2, 3)]
        assert all(
            re.search(r'prompt_tokens_by_source_total\{.*"external_kv_transfer"\} [1-9]', page) for page in pages
        )
        # The other prefill instance computes the prompts once the first has stopped
        made.stop_sim(0)
        made.until(lambda: all(ask(made, f"{n}").status_code == 200 for n in range(4)))


def receipt_called(at: Gateway, name: str) -> dict[str, Any]:
    return receipt_of(at, lambda one: bool(one["request_id"] == name))


def receipt_of(gateway: Gateway, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for the receipt, which is written shortly after the answer."""
    gateway.until(lambda: any(map(wanted, gateway.receipts())))
    return next(filter(wanted, gateway.receipts()))
