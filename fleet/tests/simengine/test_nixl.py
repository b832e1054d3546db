"""Two engines work as a pair over `kv_transfer_params`, in the protocol of vLLM's NixlConnector."""

import asyncio
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from fleet.simengine.kv.connector import TransferFailed
from fleet.simengine.kv.peers import ask
from fleet.simengine.kv.wire import BlocksMoved, Lookup
from fleet.tests.simengine.conftest import Sim, start

PROMPT = "the quick brown fox " * 400  # 2,000 tokens
PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Sim, Sim]]:
    first, second = start(kv="nixl", kv_hold_s=2000), start(kv="nixl")
    yield first, second
    first.close()
    second.close()


def prefill(sim: Sim, prompt: str, **fields: object) -> dict[str, object]:
    answer = sim.complete(prompt, 1, kv_transfer_params=PREFILL, **fields)
    params = answer["kv_transfer_params"]
    assert isinstance(params, dict)
    return params


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def holds_nothing(sim: Sim) -> Callable[[], bool]:
    return lambda: sim.metrics()["vllm:kv_cache_usage_perc"] == 0


def text(answer: dict[str, object]) -> str:
    return str(answer["choices"][0]["text"])  # type: ignore[index]


def test_the_decoder_gives_the_same_answer_as_one_engine(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    params = prefill(one, PROMPT)
    decoded = other.complete(PROMPT, 20, kv_transfer_params=params)
    assert text(decoded) == text(one.complete(PROMPT, 20))


def test_the_prefill_reports_where_its_blocks_are_and_holds_them(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    params = prefill(one, "held " + PROMPT)
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert one.url == f"http://{params['remote_host']}:{params['remote_port']}"
    assert len(params["remote_block_ids"][0]) == 126  # type: ignore[index]
    assert one.metrics()["vllm:kv_cache_usage_perc"] > 0
    other.complete("held " + PROMPT, 4, kv_transfer_params=params)
    until(holds_nothing(one))


def test_tokens_from_another_engine_are_counted_as_external(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    prompt = "counted " + PROMPT
    before = other.metrics()
    decoded = other.complete(prompt, 4, kv_transfer_params=prefill(one, prompt))
    after = other.metrics()
    assert decoded["usage"]["prompt_tokens_details"]["cached_tokens"] == 2001  # type: ignore[index]

    def more(name: str) -> float:
        return after[f"vllm:{name}"] - before[f"vllm:{name}"]

    assert more("prompt_tokens_by_source_total{source=external_kv_transfer}") == 2001
    assert more("prompt_tokens_by_source_total{source=local_compute}") == 1
    assert more("external_prefix_cache_queries_total") == 2002
    assert more("external_prefix_cache_hits_total") == 2001
    assert more("nixl_xfer_time_seconds_count") == 1
    assert more("nixl_bytes_transferred_sum") == 2002 * 131_072
    # 5 ms and 262 MB at 9.7 GB/s: the sender was otherwise idle
    assert more("nixl_xfer_time_seconds_sum") == pytest.approx(0.005 + 2002 * 131_072 / 9.7e9)


def test_only_blocks_that_the_decoder_lacks_are_transferred(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    first = "again " + PROMPT
    other.complete(first, 1)
    before = other.metrics()["vllm:nixl_bytes_transferred_sum"]
    longer = first + "and more " * 100
    other.complete(longer, 4, kv_transfer_params=prefill(one, longer))
    moved = (other.metrics()["vllm:nixl_bytes_transferred_sum"] - before) / 131_072
    assert moved == 2227 - 2000


def test_a_decoder_that_holds_the_whole_prompt_releases_the_prefills_blocks(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    prompt = "whole " + PROMPT
    other.complete(prompt + "x" * 64, 1)
    other.complete(prompt, 4, kv_transfer_params=prefill(one, prompt))
    until(holds_nothing(one))


@pytest.mark.parametrize(
    "changes",
    [{"remote_engine_id": "of an earlier life"}, {"remote_request_id": "cmpl-unknown"}, {"remote_port": 9}],
    ids=["the engine was restarted", "the blocks are gone", "the engine is gone"],
)
def test_kv_that_does_not_arrive_fails_the_request(pair: tuple[Sim, Sim], changes: dict[str, object]) -> None:
    one, other = pair
    prompt = f"lost {changes} " + PROMPT
    params = prefill(one, prompt)
    before = other.metrics()["vllm:nixl_num_failed_transfers_total"]
    body = {"prompt": prompt, "max_tokens": 4, "kv_transfer_params": {**params, **changes}}
    answer = other.post("/v1/completions", body)
    assert answer.status_code == 500
    assert "KV load failed" in answer.json()["error"]["message"]
    assert other.metrics()["vllm:nixl_num_failed_transfers_total"] == before + 1
    until(holds_nothing(other))
    with other.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        events = stream.read().decode()
    assert "KV load failed" in events.split("\n\n")[0]
    other.complete(prompt, 1, kv_transfer_params=params)  # releases what is still held


def test_another_prompt_under_the_same_name_is_detected(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    params = prefill(one, "mixed up " + PROMPT)
    body = {"prompt": "something else " + PROMPT, "max_tokens": 4, "kv_transfer_params": params}
    answer = other.post("/v1/completions", body)
    assert "holds another prompt" in answer.json()["error"]["message"]


def test_a_pull_that_names_no_key_is_refused(pair: tuple[Sim, Sim]) -> None:
    answer = pair[0].post("/kv/pull", {})
    assert (answer.status_code, answer.json()) == (400, {"error": "Object missing required field `key`"})


def test_a_source_that_is_not_an_engine_makes_the_transfer_fail() -> None:
    async def asked() -> None:
        page = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>"))
        async with httpx.AsyncClient(transport=page) as client:
            await ask(client, "http://other/kv/pull", Lookup("key", 0), BlocksMoved)

    with pytest.raises(TransferFailed, match="http://other/kv/pull: JSON is malformed"):
        asyncio.run(asked())


def test_an_engine_can_recompute_blocks_that_did_not_arrive(start_sim: Callable[..., Sim]) -> None:
    alone = start_sim(kv="nixl", kv_failure="recompute")
    params = {
        "do_remote_prefill": True,
        "remote_host": "127.0.0.1",
        "remote_port": 9,
        "remote_request_id": "a",
        "remote_engine_id": "b",
    }
    answer = alone.complete(PROMPT, 4, kv_transfer_params=params)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # type: ignore[index]
    assert text(answer) == text(alone.complete(PROMPT, 4))


def test_blocks_that_are_not_pulled_are_freed_after_a_while(start_sim: Callable[..., Sim]) -> None:
    alone = start_sim(kv="nixl", kv_hold_s=50)  # half a second of real time
    prefill(alone, PROMPT)
    until(holds_nothing(alone))


def test_a_decoder_whose_client_leaves_releases_the_prefills_blocks(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    prompt = "left " + PROMPT
    body = {"prompt": prompt, "max_tokens": 100_000, "ignore_eos": True, "kv_transfer_params": prefill(one, prompt)}
    with pytest.raises(httpx.TimeoutException):
        other.http.post("/v1/completions", json=body, timeout=0.1)
    until(holds_nothing(one))
    until(holds_nothing(other))


def test_every_api_hands_its_blocks_over(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/responses", {"input": PROMPT}),
        ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}]}),
    ):
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        answer = one.post(path, {**body, limit: 1, "kv_transfer_params": PREFILL})
        params = answer.json()["kv_transfer_params"]
        before = other.metrics()["vllm:nixl_xfer_time_seconds_count"]
        assert other.post("/reset_prefix_cache", {}).json() == {"success": True}
        assert other.post(path, {**body, limit: 5, "kv_transfer_params": params}).status_code == 200
        assert other.metrics()["vllm:nixl_xfer_time_seconds_count"] == before + 1
