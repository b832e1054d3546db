"""Record the length, timing and salted hashes of each request, shared by all routers, but never a prompt."""

import base64
import json
import time
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from router.contract.redis import redis_keys
from router.pool.pool import Pool
from router.prefix.chain import chunk_hashes
from router.request.call import Call
from router.request.request import NOT_READ
from router.telemetry.traffic import TrafficRecorder
from router.tests.conftest import entry, running
from router.tests.engine import ANSWER, reply

WORDS = "the quick brown fox "  # 20 bytes


def entries(w):
    return [json.loads(fields[b"t"]) for _, fields in w.published.client.xrange(redis_keys.TRAFFIC)]


async def recorded(w, count=1):
    await w.until(lambda: w.published.client.xlen(redis_keys.TRAFFIC) >= count, "traffic is recorded")
    return entries(w)


def hashes(made):
    raw = base64.b64decode(made["blocks"])
    return [raw[i : i + 8] for i in range(0, len(raw), 8)]


def ended(prompt: bytes, at: float = 0.0) -> Call:
    request = replace(NOT_READ, chunks=chunk_hashes(prompt))
    call = Call("r", "/v1/completions", at=at, started=0.0, pool=Pool("demo"), request=request)
    call.end(1.0)
    return call


def blocks_of(prompt: bytes, salt: str = "salt") -> list[bytes]:
    """Return the entry that is recorded for a prompt."""
    traffic = TrafficRecorder(Counter())
    traffic._take(salt)
    call = ended(prompt, at=time.time())
    return hashes(json.loads(traffic.entry(call)))


async def test_a_served_request_leaves_one_entry(world):
    usage = {"prompt_tokens": 1250, "completion_tokens": 3}
    w = await world(reply(ANSWER | {"usage": usage}))
    before = time.time()
    await w.ask(prompt=WORDS * 250, user="alice")
    (made,) = await recorded(w)
    assert made["schema"] == 1
    assert (made["pool"], made["model"], made["outcome"]) == ("demo", "llama", "ok")
    assert (made["input_tokens"], made["output_tokens"]) == (1250, 3)
    assert made["block_tokens"] == 512
    assert before <= made["at"] <= time.time()
    assert len(hashes(made)) == 5000 // 2048
    assert len(made["session"]) == 16


async def test_an_entry_has_the_version_that_decided_and_the_times_of_a_streamed_answer(world):
    w = await world(None)
    await w.ask(stream=True)
    await recorded(w)
    await w.ask()
    streamed, whole = await recorded(w, 2)
    assert (streamed["policy"], streamed["version"]) == (whole["policy"], whole["version"]) != ("", 0)
    assert streamed["ttft_ms"] > 0
    assert whole["ttft_ms"] is whole["tpot_ms"] is None


async def test_an_entry_reveals_no_prompt_client_or_request_id(world):
    w = await world(None)
    await w.ask(prompt=WORDS * 250, user="alice", headers={"x-request-id": "case-4711"})
    await recorded(w)
    ((_, fields),) = w.published.client.xrange(redis_keys.TRAFFIC)
    written = b"".join(fields.values())
    assert not any(word in written for word in (b"quick", b"alice", b"4711"))
    plain = {digest.to_bytes(8, "little") for digest in chunk_hashes((WORDS * 250).encode())}
    assert not plain & set(hashes(json.loads(fields[b"t"])))


@settings(deadline=None)
@given(st.binary(min_size=4096, max_size=4096), st.binary(max_size=5000), st.binary(max_size=5000))
def test_two_prompts_share_exactly_the_blocks_of_their_common_prefix(prefix, one, other):
    """A prefix of 1,024 tokens is two blocks of 512."""
    first, second = blocks_of(prefix + b"1" + one), blocks_of(prefix + b"2" + other)
    assert len(first) == (4097 + len(one)) // 2048
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_turns_that_continue_one_another_are_recorded_as_if_each_were_the_first(turns):
    """Remembering earlier prompts only saves work."""
    text = b"".join(bytes([i]) * 2048 for i in range(6))
    traffic = TrafficRecorder(Counter())
    traffic._take("salt")
    for turn in turns:
        prompt = text[: turn * 2048] + b"tail"
        call = ended(prompt)
        assert hashes(json.loads(traffic.entry(call))) == blocks_of(prompt)


def test_memory_of_past_entries_is_bounded(monkeypatch):
    monkeypatch.setattr("router.telemetry.traffic.REMEMBERED", 2)
    traffic = TrafficRecorder(Counter())
    for byte in b"abcd":
        traffic.entry(ended(bytes([byte]) * 2048))
    assert len(traffic._known) == 2


def test_another_salt_gives_other_hashes():
    prompt = WORDS.encode() * 1000
    assert not set(blocks_of(prompt, "a")) & set(blocks_of(prompt, "b"))


async def test_all_routers_hash_alike(world, redis_url):
    w = await world(None)
    body = {"model": "llama", "prompt": WORDS * 500, "user": "alice"}
    async with running(redis_url, "router-2") as (other, client):
        await w.until(lambda: other.pools.get("demo") is not None)
        await client.post("/v1/completions", json=body)
        await w.client.post("/v1/completions", json=body)
        first, second = await recorded(w, 2)
    assert (first["blocks"], first["session"]) == (second["blocks"], second["session"])
    assert first["blocks"]


async def test_each_session_is_recorded_under_its_own_hash_and_a_request_without_one_under_none(world):
    w = await world(None)
    for user in ("alice", "alice", "bob", None):
        await w.ask(**({"user": user} if user else {}))
    names = [made["session"] for made in await recorded(w, 4)]
    assert names[0] == names[1] != names[2]
    assert names[3] == ""


async def test_an_entry_has_the_band_and_a_hash_of_the_tenant(world):
    w = await world(None)
    await w.ask(headers={"x-weir-priority": "-5"})
    await w.ask()
    low, usual = await recorded(w, 2)
    assert (low["band"], usual["band"]) == (-5, 0)
    assert low["tenant"] == usual["tenant"]
    assert len(low["tenant"]) == 16


async def test_unserved_requests_are_recorded_with_their_outcome(world):
    w = await world(None)
    w.engines[0].script.append(reply({}, 400))
    await w.ask(prompt="x" * 400)
    (made,) = await recorded(w)
    assert (made["outcome"], made["input_tokens"], made["output_tokens"]) == ("client_error", 100, None)


async def test_experiments_and_requests_for_no_pool_are_not_recorded(world):
    w = await world(None)
    w.published.fleet(entry("e-0", w.engines[0].url), pool="exp-1", model="llama")
    await w.until(lambda: w.router.pools.get("exp-1") and w.router.pools.get("exp-1").ready)
    await w.receipt(await w.ask(headers={"x-weir-pool": "exp-1"}))
    await w.receipt(await w.ask(model="nope"))
    assert entries(w) == []


async def test_prompts_of_token_ids_have_blocks_of_512_ids(world):
    w = await world(None)
    await w.ask(prompt=list(range(1100)))
    (made,) = await recorded(w)
    assert (made["block_tokens"], len(hashes(made))) == (512, 2)


async def test_the_tokens_of_a_block_follow_the_learned_ratio(world):
    w = await world(None)
    w.router.pools.get("demo").tokens.per_byte = 0.2
    await w.ask(prompt="x")
    assert (await recorded(w))[0]["block_tokens"] == 410


async def test_a_salt_that_another_router_set_meanwhile_is_adopted_and_nothing_is_mixed(world):
    w = await world(None)
    await w.ask()
    await recorded(w)
    w.published.client.delete(redis_keys.TRAFFIC)
    w.published.client.set(redis_keys.TRAFFIC_SALT, "ab" * 16)
    await w.receipt(await w.ask())
    assert entries(w) == []
    await w.ask()
    await recorded(w)
    await w.until(lambda: w.router.recorder.traffic == {"written": 2, "dropped": 1}, "counted after it was written")
    text = (await w.client.get("/metrics")).text
    assert 'weir_router_traffic_entries_total{result="dropped"} 1.0' in text


async def test_a_redis_that_returned_empty_gets_the_salt_again(world):
    w = await world(None)
    await w.ask()
    await recorded(w)
    salt = w.published.client.get(redis_keys.TRAFFIC_SALT)
    assert len(bytes.fromhex(salt.decode())) == 16
    w.published.client.delete(redis_keys.TRAFFIC_SALT)
    await w.ask()
    await recorded(w, 2)
    assert w.published.client.get(redis_keys.TRAFFIC_SALT) == salt


def test_fewer_entries_are_kept_when_prompts_are_long():
    traffic = TrafficRecorder(Counter())
    assert traffic.kept == redis_keys.TRAFFIC_KEPT
    traffic._mean_bytes = 8_000.0
    assert traffic.kept == 4_000


def test_traffic_dropped_while_redis_is_unreachable_is_counted(monkeypatch):
    monkeypatch.setattr("router.telemetry.recorder.PENDING", 2)
    from router.telemetry.recorder import Recorder

    recorder = Recorder()
    for name in ("demo", "exp-1", "demo", "demo"):
        call = Call("r", "/v1/completions", at=0.0, started=0.0, pool=Pool(name))
        call.outcome.close("served")
        call.end(1.0)
        recorder.ended(call)
    assert (recorder.lost, recorder.traffic["dropped"]) == (2, 1)
