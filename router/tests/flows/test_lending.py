"""Decoders lend the blocks of a session's last answer to the prefill of its next turn: only as far as tokens agree."""

import asyncio
import dataclasses
import json
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from router.policy.types import Rates
from router.pool.load.lent import KEPT_S, MOST_BYTES, Lendings, LentBlocks
from router.request import lending
from router.serving.kv_location import LocationFilter
from router.tests.flows.conftest import PER_TOKEN, PROMPT, Build, Pair
from router.tests.kv_events.conftest import quick

__all__ = ["quick"]
pytestmark = pytest.mark.usefixtures("quick")

REPLY = 400  # tokens
BLOCK = 16


async def lending_pair(pair: Build, roles: tuple[str, ...] = ("prefill", "decode"), **flags: object) -> Pair:
    """A pool with an exact index, whose decoder has already shown that it lends."""
    world = await pair("nixl", roles, {"events_port": 0, "replay_port": 0, "kv_lend_s": 6000, **flags})
    for one in world.entries:
        one |= {"events": one["url"], "tokenizer": "sim"}
    world.publish()
    endpoints = world.pool.endpoints
    await world.until(lambda: all(one.belief.index == "exact" for one in endpoints.values()))
    for stream in (False, True):
        assert (await world.ask("hello " * 200, stream=stream)).status_code == 200
        await world.until(lambda: sum(len(one.lends) for one in endpoints.values()) == 1 + stream)  # noqa: B023
    return world


PATH = "/v1/completions"


async def turn(world: Pair, prompt: str, **body: Any) -> tuple[str, dict[str, Any], httpx.Response]:
    """What was said, the receipt and the answer."""
    answer = await world.ask(prompt, max_tokens=REPLY, user="ada", **body)
    assert (answer.status_code, answer.headers["x-weir-flow"]) == (200, "offload_nixl"), answer.text
    said = answer.json()["choices"][0]["text"] if not body.get("stream") else "".join(_texts(answer.text))
    return said, await world.receipt(answer), answer


def _texts(events: str) -> list[str]:
    lines = [line[6:] for line in events.splitlines() if line.startswith("data: {")]
    return [choice["text"] for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prefill_of_the_next_turn_computes_only_what_is_new(pair: Build, stream: bool) -> None:
    world = await lending_pair(pair)
    said, first, answer = await turn(world, PROMPT, stream=stream)
    assert len(said) == 4 * REPLY
    assert "remote_host" not in answer.text
    assert '_ids":[' not in answer.text
    assert "lent_by" not in first
    world.pool.rates = FAST
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    whole = (2000 + REPLY - 1) // BLOCK * BLOCK
    assert (second["lent_by"], second["lent_tokens"], second["offload"]) == ("demo-1", whole, "ok")
    assert second["cached_tokens"] == whole  # at the prefill, which held 2,000 of them
    page = (await world.client.get("/metrics")).text
    assert f'weir_router_tokens_total{{kind="lent",pool="demo"}} {float(whole)}' in page
    await world.until(lambda: not any(one.requests for one in world.pool.endpoints.values()))


async def test_another_prefill_instance_is_as_near_and_may_be_chosen(pair: Build) -> None:
    world = await lending_pair(pair, ("prefill", "prefill", "decode"))
    said, first, _ = await turn(world, PROMPT)
    name = first["prefill_instance"]
    of_name: dict[str, Any] = {name.replace("-", "_"): {"routable": False, "state": "draining"}}
    world.publish(**of_name)
    await world.until(lambda: not world.pool.endpoints[name].routable)
    world.pool.rates = FAST
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    assert second["prefill_instance"] != name
    assert second["cached_tokens"] == second["lent_tokens"] > 2000


async def test_blocks_are_lent_only_as_far_as_the_tokens_are_the_same(pair: Build) -> None:
    """A client that shortens or changes an answer, as by leaving out what a model thought."""
    world = await lending_pair(pair)
    said, _, _ = await turn(world, PROMPT)
    kept = said[: 4 * 100]
    world.pool.rates = FAST
    _, second, _ = await turn(world, PROMPT + kept + "something else " * 40)
    assert second["lent_tokens"] == 2100 // BLOCK * BLOCK == second["cached_tokens"]
    other = "another conversation of the same name " * 60
    _, third, _ = await turn(world, other)
    assert "lent_by" not in third
    assert third["cached_tokens"] == 0


async def test_blocks_that_are_gone_are_computed_and_counted_against_nobody(pair: Build) -> None:
    world = await lending_pair(pair, kv_lend_s=20)  # 0.2 s
    said, _, _ = await turn(world, PROMPT)
    decoder = world.pool.endpoints["demo-1"]
    assert decoder.lends_s == KEPT_S
    await asyncio.sleep(0.5)
    world.pool.rates = FAST
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    assert (second["offload"], second["result"], second["retries"]) == ("ok", "served", 0)
    assert "lent_by" not in second
    assert decoder.lends_s < 30
    assert {one.breaker.state for one in world.pool.endpoints.values()} == {"closed"}
    await world.nothing_is_left()


async def test_a_decoder_that_left_or_began_anew_is_not_asked_for_its_blocks(pair: Build) -> None:
    world = await lending_pair(pair, ("prefill", "decode", "decode"))
    said, first, _ = await turn(world, PROMPT)
    of_name: dict[str, Any] = {first["instance"].replace("-", "_"): {"epoch": 2}}
    world.publish(**of_name)
    await world.until(lambda: world.pool.endpoints[first["instance"]].epoch == 2)
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    assert "lent_by" not in second


async def test_a_client_that_asks_for_tokens_itself_gets_them(pair: Build) -> None:
    world = await lending_pair(pair)
    for asked, told in ((True, (2000, 20)), (False, (0, 0))):
        answer = await world.ask(PROMPT, user=f"ada {asked}", return_token_ids=asked)
        body = answer.json()
        assert (len(body.get("prompt_token_ids", ())), len(body["choices"][0].get("token_ids", ()))) == told
    assert list(world.pool.lendings.by_session) == ["ada True"]


def lent(words: int, size: int = 16, where: bytes = b"{}") -> LentBlocks:
    return LentBlocks("d", 1, size, tuple(range(words)), where, time.monotonic())


GOOD = {"remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h", "remote_port": 1}
GOOD |= {"do_remote_decode": True, "remote_block_ids": [list(range(32))], "remote_num_tokens": 500}


@pytest.mark.parametrize(
    ("where", "ids", "kept"),
    [
        (GOOD, [7] * 500, True),
        ({**GOOD, "remote_block_ids": "x"}, [7] * 500, False),
        ({**GOOD, "remote_num_tokens": -1}, [7] * 500, False),
        ({**GOOD, "remote_host": None}, [7] * 500, False),
        ({**GOOD, "remote_block_ids": [[1], [2]]}, [7] * 500, False),
        (GOOD, [1.5] * 500, False),
        (GOOD, [2**40] * 500, False),
        (GOOD, ["x"], False),
        (GOOD, [7] * 499, False),
        ({}, [7] * 500, False),
    ],
)
def test_what_a_decoder_says_wrongly_of_its_blocks_is_ignored(where: object, ids: object, kept: bool) -> None:
    located = LocationFilter(ids=True)
    located.feed(json.dumps({"kv_transfer_params": where, "prompt_token_ids": ids}).encode())
    endpoint = SimpleNamespace(id="d", epoch=1, feed=None, block_size=16, lends=set())
    state = SimpleNamespace(known=SimpleNamespace(seed=1))
    pool = SimpleNamespace(endpoints={"d": endpoint}, lendings=Lendings(), kv_event_state=state)
    request = SimpleNamespace(prompt=SimpleNamespace(stream=False, document={}))
    call: Any = SimpleNamespace(pool=pool, instance="d", api_path=PATH, session="s", adapter="", request=request)
    lending.learn(call, located)
    assert [blocks.decoder for blocks in pool.lendings.by_session.values()] == ["d"] * kept


FAST = Rates(prefill_tokens_per_s=1000.0, kv_bytes_per_token=PER_TOKEN, transfer_bytes_per_s=1e12)
SLOW = dataclasses.replace(FAST, transfer_setup_s=10.0)


def test_moving_costs_what_could_be_computed_meanwhile() -> None:
    assert lending._worth(1000, 200, Rates()) == 1000
    assert lending._worth(1000, 200, FAST) == 1000 - round(800 * PER_TOKEN / 1e12 * 1000)
    assert lending._worth(1000, 200, SLOW) < 0


@pytest.mark.parametrize(
    ("rates", "held", "counts"),
    [
        (Rates(), {}, {"p0": 144, "p1": 144}),
        (Rates(), {"p0": 160, "d": 144}, {"p0": 160, "p1": 144, "d": 144}),
        (FAST, {"p0": 96}, {"p0": 144, "p1": 144}),
        (SLOW, {"p0": 96}, {"p0": 96}),
    ],
)
def test_what_is_lent_counts_as_held_where_only_prompts_are_computed(
    rates: Rates, held: dict[str, int], counts: dict[str, int]
) -> None:
    roles = {"p0": "prefill", "p1": "prefill", "d": "decode", "other": "decode"}
    endpoints = {
        name: SimpleNamespace(
            id=name,
            epoch=1,
            role=role,
            connector="nixl",
            asleep=False,
            is_suspect=False,
            lends_s=60.0,
            takes_requests=True,
        )
        for name, role in roles.items()
    }
    pool = SimpleNamespace(endpoints=endpoints, lendings=Lendings())
    pool.lendings.keep("s", lent(9))
    prediction = SimpleNamespace(block_hashes=((16, range(20)),))
    call: Any = SimpleNamespace(pool=pool, session="s", prediction=prediction)
    assert lending.priced(call, held, rates) == counts
    endpoints["d"].epoch = 2
    assert lending.priced(call, held, rates) == held


async def test_what_is_sooner_computed_than_moved_is_computed(pair: Build) -> None:
    world = await lending_pair(pair)
    said, _, _ = await turn(world, PROMPT)
    world.pool.rates = SLOW
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    assert ("lent_by" in second, second["offload"]) == (False, "ok")
    assert second["cached_tokens"] == 2000 // BLOCK * BLOCK  # what the prefill held before


@pytest.mark.parametrize("length", range(12))
@pytest.mark.parametrize("same", range(12))
def test_the_shared_prefix_is_found(length: int, same: int) -> None:
    prompt = [*range(same), *range(100, 100 + max(0, length - same))][:length]
    assert lent(9).shared(prompt) == min(9, same, length) * 16


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    lendings, large = Lendings(), b"x" * (MOST_BYTES // 4)
    for name in ("a", "b", "c", "a", "d"):
        lendings.keep(name, lent(1, where=large))
    assert list(lendings.by_session) == ["c", "a", "d"]
    assert lendings.take("a") is not None
    assert lendings.take("a") is None
