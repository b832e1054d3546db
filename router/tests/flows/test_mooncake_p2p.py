"""Prefill and decode run at the same time, with Mooncake's peer-to-peer parameters."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.flows import mooncake
from router.flows.mooncake import PrefillFailed
from router.pool.endpoint import Endpoint
from router.tests.certificates import Authority
from router.tests.conftest import instance
from router.tests.engine import engine, reply
from router.tests.flows.conftest import PROMPT, Build
from router.tests.flows.test_nixl import alone, text


async def test_the_decoder_fetches_kv_while_the_prefill_computes_it(pair: Build) -> None:
    world = await pair("mooncake_p2p")
    response = await world.ask()
    receipt = await world.receipt(response)
    assert (receipt["flow"], receipt["offload"]) == ("offload_mooncake_p2p", "ok")
    assert (receipt["instance"], receipt["prefill_instance"]) == ("demo-1", "demo-0")
    assert world.sims[1].external() == 1999
    (moved,) = [w.moved for w in world.router.recorder.classes(time.time())["demo"].values() if w.moved]
    assert moved["demo-0"]["demo-1"].n == 1
    await world.nothing_is_left()
    assert text(response) == await alone(world.sims[0])


@pytest.mark.slow
async def test_a_restarted_engine_is_asked_for_its_new_id(pair: Build, sims: Callable[..., Any]) -> None:
    world = await pair("mooncake_p2p")
    await world.ask()
    port = world.sims[0].port
    known = world.pool.endpoints["demo-0"].engine_id
    assert known
    world.sims[0].stop()
    world.sims[0] = sims("demo-0", kv="mooncake_p2p", role="prefill", port=port)
    first = await world.receipt(await world.ask("one " + PROMPT))
    assert (first["status"], first["offload"]) == (200, "fallback")
    assert "it was restarted" in first["offload_reason"]
    second = await world.receipt(await world.ask("two " + PROMPT))
    assert second["offload"] == "ok"
    assert world.pool.endpoints["demo-0"].engine_id != known
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_new_epoch_discards_the_engine_id(pair: Build) -> None:
    world = await pair("mooncake_p2p")
    await world.ask()
    world.entries[0]["epoch"] = 2
    world.publish()
    await world.until(lambda: world.pool.endpoints["demo-0"].epoch == 2)
    assert world.pool.endpoints["demo-0"].engine_id == ""


@pytest.mark.slow
@pytest.mark.parametrize(("fallback", "status"), [("local", 200), ("fail", 502)])
async def test_a_decoder_is_not_left_waiting_when_the_prefill_is_dead(pair: Build, fallback: str, status: int) -> None:
    world = await pair("mooncake_p2p", failure__offload_fallback=fallback)
    await world.ask()
    world.sims[0].stop()
    response = await world.ask("again " + PROMPT)
    assert response.status_code == status
    assert (await world.receipt(response))["offload"] in ("fallback", "failed")
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_decoder_is_not_left_waiting_when_the_prefill_is_slow(pair: Build) -> None:
    world = await pair("mooncake_p2p", failure__prefill_timeout_s=0.3)
    await world.ask()
    world.sims[0].suspend()
    receipt = await world.receipt(await world.ask("again " + PROMPT))
    assert (receipt["status"], receipt["offload"]) == (200, "fallback")
    world.sims[0].stop()
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_client_that_leaves_ends_both_halves(pair: Build) -> None:
    world = await pair("mooncake_p2p", flags={"time_scale": 1, "kv_hold_s": 2})
    asking = asyncio.ensure_future(world.ask("a longer prompt " * 5000))
    await world.until(lambda: world.pool.endpoints["demo-0"].requests == 1)
    asking.cancel()
    await world.nothing_is_left()


@pytest.mark.slow
async def test_requests_are_served_in_one_place_if_the_fleet_names_no_bootstrap_server(pair: Build) -> None:
    world = await pair("mooncake_p2p")
    world.entries[0]["kv"] = {}
    world.publish()
    await world.until(lambda: not world.pool.endpoints["demo-0"].kv.bootstrap)
    receipt = await world.receipt(await world.ask())
    assert receipt["offload_reason"] == "demo-0: its fleet entry has no kv.bootstrap (address of its bootstrap server)"


async def test_a_bootstrap_server_that_sends_without_end_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "LARGEST", 100_000)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not writer.is_closing():
                writer.write(b'{"0":' * 10_000)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    endpoint = Endpoint(instance("demo-0", "http://127.0.0.1:1"))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(PrefillFailed, match=r"demo-0: its bootstrap server .* did not return an engine id"):
        await mooncake._engine_id(endpoint, url)
    server.close()


@pytest.mark.parametrize("kv", ["mooncake_p2p", "neuron", "nixl"])
async def test_requests_with_the_same_id_are_not_paired_with_each_other(pair: Build, kv: str) -> None:
    world = await pair(kv)

    async def ask(prompt: str) -> str:
        body = {"model": "llama", "prompt": prompt, "max_tokens": 20, "ignore_eos": True, "stream": True}
        answer = await world.client.post("/v1/completions", json=body, headers={"x-request-id": "same"})
        assert answer.headers["x-weir-flow"] == f"offload_{kv}"
        return answer.text

    texts = await asyncio.gather(*(ask(f"{number} " + PROMPT * (number + 1)) for number in range(3)))
    assert not any('"error"' in one for one in texts)
    await world.until(lambda: sum(world.counted().values()) == 3)
    assert world.counted() == {("demo", kv, "ok"): 3}
    await world.nothing_is_left()


async def test_another_prefill_takes_over_under_another_id(servers: Any) -> None:
    """The decoder may still be waiting for blocks of the first prefill, under the first transfer id."""
    done = reply({"choices": [{"index": 0, "text": "one", "finish_reason": "length"}]})
    turns = iter((reply({"error": {"message": "no"}}, 500), done))

    async def once_broken(engine: Any, request: Any, writer: Any) -> None:
        is_query = request.target == "/query"
        await (reply({"0": {"engine_id": "e"}}) if is_query else next(turns))(engine, request, writer)

    async def never(engine: Any, *_: Any) -> None:
        await engine.release.wait()

    made = await servers([once_broken, once_broken], [done], "mooncake_p2p")
    made.generation[0].script = [never]
    assert (await made.world.ask()).status_code == 200
    ids = [(one.document["kv_transfer_params"]["transfer_id"], one.headers["x-request-id"])
           for one in made.generation[0].received]  # fmt: skip
    assert len({part for pair in ids for part in pair}) == 4
    prefills = [one for half in made.context for one in half.received if one.target != "/query"]
    halves = {(one.document["kv_transfer_params"]["transfer_id"], one.headers["x-request-id"]) for one in prefills}
    assert halves == set(ids)


async def test_a_bootstrap_server_over_tls_is_trusted_like_its_engine(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = {"authorities": f"file:{authority.path}"}
    answer = reply({"0": {"engine_id": "e"}})
    async with engine(answer, secure=authority.issue("127.0.0.1").server()) as bootstrap:
        trusting = Endpoint(instance("demo-0", "https://127.0.0.1:1", tls=tls))
        assert await mooncake._engine_id(trusting, bootstrap.url) == "e"
        with pytest.raises(PrefillFailed, match="no authority that is trusted here has signed it"):
            await mooncake._engine_id(Endpoint(instance("demo-0", "https://127.0.0.1:1")), bootstrap.url)
