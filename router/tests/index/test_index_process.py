"""An index process, in this event loop or as a separate process, and the routers that share it."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.index import process as index_process
from router.index.process import IndexProcess, RouterConnection
from router.kv_events import link as links
from router.kv_events.link import ProcessLink
from router.kv_events.messages import Follow, Frames, Hello, LookUp, Over, Welcome, framed, read, to_router
from router.kv_events.shared import SharedFeed, SharedIndexes
from router.kv_events.sources import WHOLE
from router.pool.pool import Pool
from router.prefix.blocks import block_hashes, part_hashes
from router.prefix.exact.groups import ALL, FIRST, GroupNeed, GroupNeeds
from router.prefix.exact.holders import FURTHER
from router.prefix.exact.index import HOST
from router.prefix.exact.store import STORE
from router.request import predict
from router.tests.conftest import Published, fleet, instance, running
from router.tests.kv_events.conftest import Sim, quick, start_sim
from router.tests.test_exact_index import PROMPT, ask, belief, receipt, sim_entry, until
from router.tokenize.sim import SimTokenizer

__all__ = ["quick", "start_sim"]

SEED, SIZE = 7, 16
Prompts = list[tuple[int, list[int]]]


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[IndexProcess, str]]:
    """Start an index process without its loops; tests fill the index, because there is no engine."""
    process, path = IndexProcess(SEED), str(folder / "index.sock")
    server = await asyncio.get_running_loop().create_unix_server(lambda: RouterConnection(process), path)
    try:
        yield process, path
    finally:
        server.close()


@asynccontextmanager
async def sharing(*paths: str) -> AsyncIterator[tuple[Pool, SharedIndexes]]:
    """Build a router's pool of twelve engines and its links to index processes."""
    pool = Pool("demo")
    engines = [instance(f"demo-{n}", f"http://127.0.0.1:{n + 1}", events="tcp://127.0.0.1:1") for n in range(12)]
    pool.take_fleet(fleet(*engines))
    shared = SharedIndexes(paths)
    task = asyncio.create_task(shared.run())
    try:
        await until(lambda: not any(link.why for link in shared.links))
        follow(shared, pool)
        yield pool, shared
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def follow(shared: SharedIndexes, pool: Pool) -> None:
    shared.follow(pool, dict.fromkeys(pool.endpoints.values(), WHOLE))


def key(pool: Pool, name: str) -> str:
    feed = pool.endpoints[name].feed
    assert isinstance(feed, SharedFeed)
    return feed.key


def prompt(blocks: int, seed: int = 1) -> tuple[bytes, Prompts]:
    tokens = random.Random(seed).randbytes(4 * SIZE * blocks)
    return tokens, [(SIZE, block_hashes(tokens, SIZE, SEED))]


async def found(pool: Pool, prompts: Prompts) -> Any:
    assert pool.kv_event_state.shared is not None
    return await pool.kv_event_state.shared.look_up(prompts, {}, {})


async def test_a_look_up_finds_held_blocks_and_those_that_will_be_held(tmp_path: Path) -> None:
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, _), sharing(path) as (other, _):
        await until(lambda: "demo" in process.pools)
        index = process.pool("demo").index
        process.pool("demo").feeds = dict.fromkeys((key(pool, name) for name in pool.endpoints), None)  # type: ignore[arg-type]
        tokens, prompts = prompt(8)
        for name, blocks, tier in (("demo-0", 8, 0), ("demo-1", 3, 0), ("demo-1", 5, 1)):
            index.store(key(pool, name), list(range(1, blocks + 1)), None, tokens[: 64 * blocks], SIZE, tier)
        index.store("an engine of another router", list(range(1, 9)), None, tokens, SIZE)
        looked_up = await found(pool, prompts)
        assert looked_up.held == {"demo-0": (128, 0, 0), "demo-1": (48, 32, 0)}
        sent = looked_up.sent("demo-2", SIZE, 0)
        await until(lambda: index.foreseen({}, prompts[0][1], SIZE, time.monotonic()))
        assert (await found(other, prompts)).held["demo-2"] == (128, 0, 0)  # the other router's request will need it
        sent.over(0.0)
        await until(lambda: not index._parts[key(pool, "demo-2")].forecast._under_way)


async def test_a_look_up_finds_what_speculating_engines_with_groups_of_layers_reuse(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, _):
        await until(lambda: "demo" in process.pools)
        index = process.pool("demo").index
        process.pool("demo").feeds = dict.fromkeys((key(pool, name) for name in pool.endpoints), None)  # type: ignore[arg-type]
        tokens, prompts = prompt(8)
        for name in ("demo-0", "demo-1"):
            index.store(key(pool, name), list(range(1, 9)), None, tokens, SIZE)
        index.need(key(pool, "demo-0"), GroupNeeds((GroupNeed(2, drafts=True),)))
        index.store(key(pool, "demo-0"), [1, 2, 3, 4, 5, 6, 7], None, b"", SIZE, FURTHER)
        looked_up = await found(pool, prompts)
        assert looked_up.held == {"demo-0": (112, 0, 0), "demo-1": (128, 0, 0)}
        shared = pool.kv_event_state.shared
        assert shared is not None
        by_rule = await shared.look_up(prompts, {}, {"demo-0": ALL, "demo-2": FIRST})
        assert by_rule is not None
        assert by_rule.held == {"demo-0": (96, 0, 0), "demo-1": (128, 0, 0)}
        sent, unasked = (looked_up.sent("demo-0", SIZE, 0, speculating=asked) for asked in (True, False))
        await until(lambda: sent.by_rule)
        assert (sent.by_rule, unasked.by_rule) == ((112, 112, 96), ())


async def test_a_look_up_finds_windows_whose_blocks_are_parts_of_larger_blocks(tmp_path: Path) -> None:
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, _):
        await until(lambda: "demo" in process.pools)
        index, (tokens, prompts) = process.pool("demo").index, prompt(4)
        (size, hashes), half = prompts[0], SIZE // 2
        index.need(key(pool, "demo-0"), GroupNeeds((GroupNeed(2, drafts=True, parts=2),)))
        index.store(key(pool, "demo-0"), [2, 4, 6, 8], None, tokens, SIZE)
        index.store(key(pool, "demo-0"), [1, 2, 3, 4, 5], None, tokens[: 5 * half * 4], half, FURTHER)
        parts = {size: {2: part_hashes(tokens, size, 2, hashes, SEED, ())}}
        assert pool.kv_event_state.shared is not None
        for rules, blocks in (({}, 2), ({"demo-0": FIRST}, 2), ({"demo-0": ALL}, 2)):
            looked_up = await pool.kv_event_state.shared.look_up(prompts, parts, rules)
            assert looked_up is not None
            assert looked_up.held == {"demo-0": (blocks * SIZE, 0, 0)}
        index.drop(key(pool, "demo-0"), [5], FURTHER)
        looked_up = await pool.kv_event_state.shared.look_up(prompts, parts, {"demo-0": ALL})
        assert looked_up is not None
        assert looked_up.held == {"demo-0": (SIZE, 0, 0)}


async def test_the_store_of_a_pool_forgets_its_blocks_when_the_model_changes(tmp_path: Path) -> None:
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, shared):
        await until(lambda: "demo" in process.pools)
        process._feeds.follow = lambda *engine, **known: None  # type: ignore[method-assign,assignment,return-value]
        await process._follow("demo")
        index, (tokens, prompts) = process.pool("demo").index, prompt(8)
        index.read_store(key(pool, "demo-1"))
        index.share(key(pool, "demo-0"), list(range(1, 9)), None, tokens, SIZE, HOST)
        await process._follow("demo")
        assert sorted((await found(pool, prompts)).held) == ["demo-0", "demo-1"]
        pool.endpoints["demo-0"].tokenizer = "/models/other"
        follow(shared, pool)
        await until(lambda: {engine.model for engine in process.routers.copy().pop().follows["demo"].values()} != {""})
        await process._follow("demo")
        assert (await found(pool, prompts)).held == {}


async def test_an_answer_refutes_the_blocks_of_a_store_that_an_index_process_follows(tmp_path: Path) -> None:
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, _):
        index, (tokens, prompts), names = process.pool("demo").index, prompt(8), list(range(1, 9))
        index.share(key(pool, "demo-0"), names, None, tokens, SIZE, HOST)
        index.untold(STORE, names, HOST, time.monotonic())
        looked_up = await found(pool, prompts)
        prediction = SimpleNamespace(index="exact", looked_up=looked_up, block_hashes=prompts)
        call = cast(Any, SimpleNamespace(pool=pool, prediction=prediction))
        predict._refute(call, pool.endpoints["demo-0"], 3 * SIZE + 1)
        assert [looked_up.held, (await found(pool, prompts)).held] == [{"demo-0": (0, n * SIZE, 0)} for n in (8, 3)]


async def test_an_index_process_receives_the_length_of_attention_chunks(tmp_path: Path) -> None:
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, shared):
        pool.kv_event_state.reader = SimTokenizer()
        pool.kv_event_state.reader.attention_chunk = 8192
        follow(shared, pool)
        await until(
            lambda: (
                {engine.chunk for router in process.routers for engine in router.follows.get("demo", {}).values()}
                == {8192}
            )
        )


async def test_the_requests_of_a_router_that_dies_end(tmp_path: Path) -> None:
    async with listening(tmp_path) as (process, path):
        async with sharing(path) as (pool, _):
            await until(lambda: "demo" in process.pools)
            process.pool("demo").feeds = {key(pool, "demo-0"): None}  # type: ignore[dict-item]
            (await found(pool, prompt(4)[1])).sent("demo-0", SIZE, 0)
            forecast = process.pool("demo").index._part(key(pool, "demo-0")).forecast
            await until(lambda: forecast._under_way)
        await until(lambda: not forecast._under_way)
        assert [set(follows) for _, follows in process._left] == [{"demo"}]  # still followed for a while


async def test_engines_are_divided_among_processes_that_answer_together(tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    async with (
        listening(tmp_path) as (one, path),
        listening(second) as (two, further),
        sharing(path, further) as (pool, shared),
    ):
        await until(lambda: "demo" in one.pools and "demo" in two.pools)
        tokens, prompts = prompt(2)
        for endpoint in pool.endpoints.values():
            assert isinstance(endpoint.feed, SharedFeed)
            process = (one, two)[shared.links.index(endpoint.feed.link)]
            process.pool("demo").index.store(endpoint.feed.key, [1, 2], None, tokens, SIZE)
        assert set((await found(pool, prompts)).held) == set(pool.endpoints)


async def test_a_late_answer_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ANSWER_S", 0.01)
    monkeypatch.setattr(RouterConnection, "_look_up", lambda *_: None)
    async with listening(tmp_path) as (process, path), sharing(path) as (pool, shared):
        await until(lambda: "demo" in process.pools)
        assert await found(pool, prompt(1)[1]) is None
        assert await found(pool, prompt(1)[1]) is None
        assert (shared.links[0].late, shared.links[0].lost) == (1, 1)  # the second request did not even ask


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (framed(Welcome(4, 1)), "version 4 of the messages, this router knows 3"),
        ((70 << 20).to_bytes(4, "little"), "a frame of 73,400,320 bytes; allowed are 67,108,864"),
        (framed(Over(1)), "a message that cannot be read"),
    ],
)
async def test_an_address_without_an_index_process_is_reported(tmp_path: Path, said: bytes, why: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        while await reader.read(1_000):
            pass
        writer.close()

    server = await asyncio.start_unix_server(answer, path := str(tmp_path / "socket"))
    link = ProcessLink(path)
    task = asyncio.create_task(link.run())
    await until(lambda: why in link.trouble)
    assert await link.look_up("demo", [(16, [1])], {}, {}) is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.close()


async def test_a_missing_process_is_reported() -> None:
    link = ProcessLink("/nowhere/index.sock")
    task = asyncio.create_task(link.run())
    await until(
        lambda: link.trouble == "the index process at /nowhere/index.sock does not answer: No such file or directory"
    )
    task.cancel()


async def test_a_silent_process_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENT_S", 0.05)
    async with listening(tmp_path) as (_, path), sharing(path) as (pool, shared):
        await asyncio.sleep(0.06)
        follow(shared, pool)
        feed = pool.endpoints["demo-0"].feed
        assert feed is not None
        assert "has been silent for" in feed.trouble


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", framed(Welcome(1, 1)), framed(LookUp(1, "demo", []))[:4] + b"xx"]
)
async def test_a_client_that_breaks_the_protocol_is_disconnected_or_waited_for(tmp_path: Path, sent: bytes) -> None:
    async with listening(tmp_path) as (process, path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        if sent.endswith(b"xx"):
            writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not process.routers)


def test_frames_may_be_split_anywhere() -> None:
    messages = [Hello(1), Follow("demo", []), LookUp(3, "demo", [(16, array("Q", [1, 2]).tobytes())])]
    stream = b"".join(framed(message) for message in messages)
    for size in (1, 3, len(stream)):
        frames = Frames()
        cut = [frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])]
        assert cut == [framed(message)[4:] for message in messages]
    assert read(to_router, framed(Welcome(1, 2))[4:]) == Welcome(1, 2)


# Separate processes

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "router.index", *(words or ("--socket", str(tmp_path / "index.sock")))]
        started.append(subprocess.Popen(argv, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.wait()
        assert one.stderr is not None
        one.stderr.close()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
async def test_an_index_process_that_is_killed_is_replaced_by_the_approximate_index_until_it_is_back(
    start_sim: Callable[..., Sim], start: Start, published: Published, redis_url: str, tmp_path: Path
) -> None:
    sims = [start_sim(), start_sim()]
    await sims[1].ask(PROMPT)  # sent directly, not through a router
    published.policy(strategy="cache_aware")
    published.fleet(*(sim_entry(sim, f"demo-{number}") for number, sim in enumerate(sims)))
    shared = [str(tmp_path / "index.sock")]
    process = start()
    async with (
        running(redis_url, indexes=shared) as (router, client),
        running(redis_url, "router-2", indexes=shared) as (other, asking),
    ):
        for one, through in ((router, client), (other, asking)):
            pool = one.pools.get("demo")
            assert pool is not None
            state = pool.kv_event_state
            await until(lambda one=one: all(belief(one, name).index == "exact" for name in ("demo-0", "demo-1")))  # type: ignore[misc]
            await until(lambda state=state: state.shared is not None and state.shared.blocks("demo-1")[0] >= 8)  # type: ignore[misc]
            made = await receipt(published, await ask(through, PROMPT + "and more"))
            assert (made["index"], made["prompt_tokens"], made["instance"]) == ("exact", 130, "demo-1")
            assert made["predicted_cached"] == made["cached_tokens"] == 128
        page = (await client.get("/metrics")).text
        assert f'weir_router_index_process_up{{socket="{shared[0]}"}} 1.0' in page
        assert f'weir_router_index_lookups_total{{result="answered",socket="{shared[0]}"}} 1.0' in page
        os.kill(process.pid, signal.SIGKILL)
        made = await receipt(published, await ask(client, PROMPT + "and more"))
        assert made["index"] == "approximate"
        await until(lambda: "the index process at" in belief(router).why)
        assert f'weir_router_index_process_up{{socket="{shared[0]}"}} 0.0' in (await client.get("/metrics")).text
        start()
        await until(lambda: all(belief(one, "demo-1").index == "exact" for one in (router, other)))
        made = await receipt(published, await ask(client, PROMPT + "and more"))
        assert (made["index"], made["predicted_cached"]) == ("exact", 128)
        second = start()
        assert second.wait(30) == 1
        assert second.stderr is not None
        assert "another index process serves it" in second.stderr.read()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--socket", "/tmp/" + "x" * 110], "a socket's path has at most 107 bytes"),
        (["--socket", "/tmp/x", "--max-blocks", "0"], "--max-blocks 0: allowed are 1 to 1000000000"),
        ([], "--socket"),
        (["--socket", "/nowhere/index.sock"], "--socket /nowhere/index.sock: No such file or directory"),
    ],
)
def test_wrong_options_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    from router.index.__main__ import main

    monkeypatch.setattr(sys, "argv", ["index", *words])
    assert main() in (1, 2)
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


async def test_engines_that_no_router_needs_any_longer_are_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(index_process, "KEPT_S", 0.0)
    async with listening(tmp_path) as (process, path):
        async with sharing(path) as (pool, shared):
            await until(lambda: "demo" in process.pools)
            await process.step(time.monotonic())
            assert set(process.pool("demo").feeds) == {key(pool, name) for name in pool.endpoints}
            await until(lambda: key(pool, "demo-0") in shared.links[0].feeds)
            shared.keep(set())
            await until(lambda: not any(router.follows.get("demo") for router in process.routers))
            await process.step(time.monotonic())
            assert "demo" not in process.pools
        await until(lambda: not process.routers)
    await process._feeds.close()


def test_an_ended_request_is_dropped_although_its_tokens_by_rule_never_arrived() -> None:
    link = ProcessLink("/nowhere")
    sent = link.sent(1, "demo", "a", 16, 0, speculating=True)
    assert len(link._asking) == 1
    sent.over(0.0)
    assert not link._asking
