"""A decoder lends the blocks of a session's last answer to the prefill of the next turn, as far as tokens agree."""

import asyncio
import dataclasses
import json
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from router.flows import prefill
from router.policy.types import Rates
from router.pool.load.lent import KEPT_S, LONGEST, MOST_BYTES, Lendings, LentBlocks, worth
from router.request import lending
from router.serving.answer.kv_location import LocationFilter
from router.tests.conftest import entry
from router.tests.engine import Behaviour, hang, hang_up, reply
from router.tests.flows.conftest import PER_TOKEN, PROMPT, Build, Pair
from router.tests.flows.test_prefill_answers import offloading
from router.tests.kv_events.conftest import quick
from router.upstream.errors import FirstByteTimeout

__all__ = ["quick"]
pytestmark = pytest.mark.usefixtures("quick")

REPLY = 400  # tokens
BLOCK = 16


async def lending_pair(pair: Build, roles: tuple[str, ...] = ("prefill", "decode"), **flags: object) -> Pair:
    """Build a pool with an exact index whose decoder has already shown that it lends blocks."""
    world = await pair("nixl", roles, {"events_port": 0, "replay_port": 0, "kv_lend_s": 6000, **flags})
    for one in world.entries:
        kv = {**one["kv"], "takes_lent": one["role"] == "prefill"}
        one |= {"events": one["url"], "tokenizer": "sim", "kv": kv}
    world.publish()
    endpoints = world.pool.endpoints
    await world.until(lambda: all(one.belief.index == "exact" for one in endpoints.values()))
    for stream in (False, True):
        assert (await world.ask("hello " * 200, stream=stream)).status_code == 200
        await world.until(lambda: sum(len(one.lends) for one in endpoints.values()) == 1 + stream)  # noqa: B023
    return world


PATH = "/v1/completions"


async def turn(world: Pair, prompt: str, **body: Any) -> tuple[str, dict[str, Any], httpx.Response]:
    """Send a turn; return the conversation, the receipt and the answer."""
    answer = await world.ask(prompt, max_tokens=REPLY, user="ada", **body)
    assert (answer.status_code, answer.headers["x-weir-flow"]) == (200, "offload_nixl"), answer.text
    said = answer.json()["choices"][0]["text"] if not body.get("stream") else "".join(_texts(answer.text))
    return said, await world.receipt(answer), answer


def _texts(events: str) -> list[str]:
    lines = [line[6:] for line in events.splitlines() if line.startswith("data: {")]
    return [choice["text"] for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prefill_of_the_next_turn_computes_only_the_new_tokens(pair: Build, stream: bool) -> None:
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
    assert second["cached_tokens"] == whole  # at the prefill instance, which already held 2,000 of them
    page = (await world.client.get("/metrics")).text
    assert f'weir_router_tokens_total{{kind="lent",pool="demo"}} {float(whole)}' in page
    await world.until(lambda: not any(one.requests for one in world.pool.endpoints.values()))


async def test_another_prefill_instance_has_the_same_cost_and_may_be_chosen(pair: Build) -> None:
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
    """A client may shorten or change an answer, for example by leaving out the model's reasoning."""
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


async def test_blocks_that_were_freed_are_recomputed_without_blaming_an_instance(pair: Build) -> None:
    world = await lending_pair(pair, kv_lend_s=20)  # blocks are kept for 0.2 s
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


async def test_a_decoder_that_left_or_restarted_is_not_asked_for_its_blocks(pair: Build) -> None:
    world = await lending_pair(pair, ("prefill", "decode", "decode"))
    said, first, _ = await turn(world, PROMPT)
    of_name: dict[str, Any] = {first["instance"].replace("-", "_"): {"epoch": 2}}
    world.publish(**of_name)
    await world.until(lambda: world.pool.endpoints[first["instance"]].epoch == 2)
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    assert "lent_by" not in second


async def test_a_client_that_requests_token_ids_itself_gets_them(pair: Build) -> None:
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
def test_false_claims_of_a_decoder_about_its_blocks_are_ignored(where: object, ids: object, kept: bool) -> None:
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


def test_a_transfer_costs_as_many_tokens_as_could_be_computed_meanwhile() -> None:
    assert worth(1000, 200, Rates()) == 1000
    assert worth(1000, 200, FAST) == 1000 - round(800 * PER_TOKEN / 1e12 * 1000)
    assert worth(1000, 200, SLOW) < 0


@pytest.mark.parametrize(
    ("rates", "held", "counts"),
    [
        (Rates(), {}, {"p0": 144, "p1": 144}),
        (Rates(), {"p0": 160, "d": 144}, {"p0": 160, "p1": 144, "d": 144}),
        (FAST, {"p0": 96}, {"p0": 144, "p1": 144}),
        (SLOW, {"p0": 96}, {"p0": 96}),
    ],
)
def test_lent_blocks_count_as_held_by_prefill_instances(
    rates: Rates, held: dict[str, int], counts: dict[str, int]
) -> None:
    roles = {"p0": "prefill", "p1": "prefill", "p2": "prefill", "d": "decode", "other": "decode"}
    endpoints = {
        name: SimpleNamespace(
            id=name,
            epoch=1,
            role=role,
            connector="nixl",
            takes_lent=name != "p2",
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


async def test_a_prefix_is_computed_if_that_is_faster_than_transferring_it(pair: Build) -> None:
    world = await lending_pair(pair)
    said, _, _ = await turn(world, PROMPT)
    world.pool.rates = SLOW
    _, second, _ = await turn(world, PROMPT + said + "and then?")
    assert ("lent_by" in second, second["offload"]) == (False, "ok")
    assert second["cached_tokens"] == 2000 // BLOCK * BLOCK  # the tokens that the prefill instance held before


@pytest.mark.parametrize("length", range(12))
@pytest.mark.parametrize("same", range(12))
def test_the_shared_prefix_of_two_turns_is_measured(length: int, same: int) -> None:
    prompt = [*range(same), *range(100, 100 + max(0, length - same))][:length]
    assert lent(9).shared(prompt) == min(9, same, length) * 16


def test_the_number_of_kept_entries_is_bounded_and_the_oldest_is_dropped_first() -> None:
    lendings, large = Lendings(), b"x" * (MOST_BYTES // 4)
    for name in ("a", "b", "c", "a", "d"):
        lendings.keep(name, lent(1, where=large))
    assert list(lendings.by_session) == ["c", "a", "d"]
    assert lendings.take("a") is not None
    assert lendings.take("a") is None


COMPUTED = reply({"choices": [{"text": "x"}], "kv_transfer_params": {"do_remote_prefill": True}})
ERRED, BUSY = reply({"error": "x"}, 500), reply({"error": "x"}, 503)
LENT = 160  # tokens


@pytest.fixture
def offering(world: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build a pool from prefill and decode engines; the last decoder has lent blocks to Ada's session."""

    async def build(prefills: list[Behaviour], decodes: list[Behaviour], takes: Any = (0,), **policy: Any) -> Any:
        w = await offloading(world, "nixl", *prefills, *decodes[:-1], **policy)
        w.engines[-1].behaviour = decodes[-1]
        w.publish = lambda epoch=1: w.published.fleet(
            *(
                entry(
                    f"demo-{place}",
                    made.url,
                    epoch=epoch,
                    role="prefill" if place < len(prefills) else "both" if len(decodes) == 1 else "decode",
                    connector="nixl",
                    kv={"takes_lent": place in takes},
                )
                for place, made in enumerate(w.engines)
            )
        )
        w.pool = w.router.pools.get("demo")
        w.publish()
        await w.until(lambda: [at for at, one in enumerate(w.pool.endpoints.values()) if one.takes_lent] == list(takes))
        w.decoder = list(w.pool.endpoints.values())[-1]
        w.blocks = LentBlocks(w.decoder.id, 1, 16, range(32), json.dumps(GOOD).encode(), time.monotonic())
        w.pool.lendings.keep("ada", w.blocks)
        return w

    def found(call: Any) -> tuple[LentBlocks, int] | None:
        blocks = call.pool.lendings.by_session.get(call.session)
        return blocks and (blocks, LENT)

    monkeypatch.setattr(lending, "lent", found)
    return build


def offers(engine: Any) -> list[bool]:
    """Return, for each prefill request that the engine received, whether it offered blocks."""
    return [bool(one.document["kv_transfer_params"]["remote_block_ids"]) for one in engine.received]


def script(*answers: Behaviour) -> Behaviour:
    left = list(answers)

    async def behave(*given: Any) -> None:
        await left.pop(0)(*given)

    return behave


async def asked(w: Any, before: str = "") -> dict[str, Any]:
    receipt: dict[str, Any] = await w.receipt(await w.ask(prompt=before + PROMPT, user="ada"))
    return {name: receipt.get(name) for name in ("result", "offload", "lent_by", "lent_tokens", "prefill_instance")}


async def test_only_prefills_that_are_known_to_take_lent_blocks_are_offered_them(offering: Any) -> None:
    w = await offering([COMPUTED], [reply()], takes=())
    assert (await asked(w))["lent_by"] is None
    assert offers(w.engines[0]) == [False]
    assert w.pool.lendings.by_session == {"ada": w.blocks}


async def silent(*given: Any) -> bytes:
    raise FirstByteTimeout("no byte came")


@pytest.mark.parametrize("of_connection", [False, True])
async def test_a_prefill_that_hung_on_lent_blocks_is_offered_none_until_it_restarts(
    offering: Any, monkeypatch: pytest.MonkeyPatch, of_connection: bool
) -> None:
    w = await offering([hang], [reply()], failure__prefill_timeout_s=1.0)
    if of_connection:  # the connection's timeout expires at the same moment
        monkeypatch.setattr(prefill, "_answer", silent)
    assert (await asked(w))["offload"] == "fallback"
    first = next(iter(w.pool.endpoints.values()))
    assert (first.hung_on_lent, first.takes_lent) == (True, False)
    w.publish(epoch=2)
    await w.until(lambda: next(iter(w.pool.endpoints.values())).takes_lent)


async def test_failures_of_an_engine_that_also_fails_without_lent_blocks_are_not_attributed_to_them(
    offering: Any,
) -> None:
    w = await offering([ERRED], [reply()])
    assert (await asked(w))["offload"] == "fallback"
    assert offers(w.engines[0]) == [True, False]
    assert w.decoder.lends_s == KEPT_S


async def test_a_decoder_that_lacked_blocks_is_trusted_again_as_later_blocks_are_present(offering: Any) -> None:
    w = await offering([script(ERRED, *[COMPUTED] * 4)], [COMPUTED])
    w.decoder.lends_s = 1000.0
    assert await asked(w) == {"result": "served", "offload": "ok", "prefill_instance": "demo-0"} | NOTHING_LENT
    assert w.decoder.lends_s < 30
    for before, after in ((100.0, 200.0), (300.0, KEPT_S), (KEPT_S, KEPT_S)):
        w.decoder.lends_s = before
        w.pool.lendings.keep("ada", w.blocks)
        assert (await asked(w, f"{before} "))["lent_tokens"] == LENT
        assert w.decoder.lends_s == after


async def test_a_prefill_that_recovered_without_the_blocks_serves_the_next_attempt(offering: Any) -> None:
    lost = script(ERRED, reply())
    w = await offering([script(ERRED, COMPUTED, COMPUTED)], [lost, lost])
    assert (await asked(w))["result"] == "served"
    assert offers(w.engines[0]) == [True, False, False]


NOTHING_LENT = {"lent_by": None, "lent_tokens": None}


@pytest.mark.parametrize(("first", "kept"), [(BUSY, True), (hang_up, False)])
async def test_blocks_offered_to_another_prefill_are_not_reported_as_taken(
    offering: Any, first: Behaviour, kept: bool
) -> None:
    for others in ([COMPUTED], []):
        w = await offering([first, *others], [reply()])
        for one in list(w.pool.endpoints.values())[1:2] if others else ():
            one.prefill_tokens += 10**6  # so that the first one is chosen
        receipt = await asked(w)
        assert receipt["offload"] == ("ok" if others else "fallback")
        assert {**receipt, **NOTHING_LENT} == receipt
        assert offers(w.engines[0]) == [True]
        assert list(w.pool.lendings.by_session) == ["ada"] * kept


async def test_a_fallback_takes_no_lent_blocks(offering: Any) -> None:
    w = await offering([COMPUTED], [script(ERRED, reply())])
    assert await asked(w) == {"result": "served", "offload": "fallback", "prefill_instance": "demo-0"} | NOTHING_LENT
    assert dict(w.router.recorder.lent) == {}


@pytest.mark.parametrize(("tokens", "asks"), [(LONGEST // 8, True), (LONGEST // 8 + 1, False)])
def test_tokens_are_not_requested_if_there_would_be_too_many_to_keep(tokens: int, asks: bool) -> None:
    prompt = SimpleNamespace(stream=False, document={})
    prediction = SimpleNamespace(block_hashes=((16, range(9)),), prompt_tokens=tokens)
    request = SimpleNamespace(prompt=prompt)
    call: Any = SimpleNamespace(api_path=PATH, session="s", request=request, prediction=prediction)
    decoder: Any = SimpleNamespace(lends={(PATH, False)})
    assert lending.tells_ids(call, decoder) is asks
