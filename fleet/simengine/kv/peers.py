"""Transfers KV from engine to engine: blocks of finished requests are held until another engine pulls them or the hold
time is over."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
import msgspec

from fleet.engine.engine_model import TransferModel
from fleet.engine.neuron_batches import next_poll_s
from fleet.engine.request import EngineRequest
from fleet.simengine.kv.connector import (
    Answer,
    Pulled,
    TransferFailed,
    TransferParams,
    TransferRequest,
    TransferSource,
)
from fleet.simengine.kv.wire import OTHER_ENGINE, BlockPull, BlocksMoved, Lookup, PeerError
from router.contract.values.reading import read_json

PULL_PATH = "/kv/pull"
LOOKUP_PATH = "/kv/lookup"
ANSWER_S = 600.0  # wall-clock limit of a pull

Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class ConnectorEngine:
    """The engine that a connector belongs to."""

    host: str
    port: int
    time_scale: float
    block_size: int  # tokens per block
    transfers: TransferModel
    is_busy: Callable[[], bool]
    release: Callable[[str], None]  # frees a held request's blocks


@dataclass(slots=True)
class HeldBlocks:
    request: EngineRequest
    timer: asyncio.TimerHandle
    moving: bool = False
    taken: asyncio.Future[bool] | None = None  # False: the hold time ended before that


class PeerConnector:
    def __init__(
        self,
        host: ConnectorEngine,
        parse: Callable[[TransferParams, str], TransferRequest],
        respond: Callable[["PeerConnector", EngineRequest], msgspec.Struct | None],
        lend_s: float = 0.0,
    ) -> None:
        """`lend_s` is how long a decoder keeps the blocks of its answers, in virtual seconds."""
        self.host = host
        self.engine_id = os.urandom(16).hex()  # new at each start
        self.parse = parse
        self._respond = respond
        self._hold_s = host.transfers.hold_s / host.time_scale  # seconds, wall clock
        self._lend_s = lend_s / host.time_scale
        self._held: dict[str, HeldBlocks] = {}
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}
        self._transfers = 0
        self._met: set[str] = set()  # engine ids of known receivers
        self._client = client()
        self._declining: set[asyncio.Task[None]] = set()
        self.reads: Mapping[str, Callable[[], bytes]] = {"/query": self._entries}
        self.writes: Mapping[str, Callable[[bytes], Answer]] = {PULL_PATH: self._serve, LOOKUP_PATH: self._look}

    # The sender

    def computed(self, request: EngineRequest, hold_as: str | None) -> msgspec.Struct | None:
        if hold_as is None or not request.is_over:
            return None
        self._release(hold_as)  # frees an earlier request with the same name
        lends = self._lend_s and request.owner.job.params.kv.do_remote_prefill
        timer = asyncio.get_running_loop().call_later(self._lend_s if lends else self._hold_s, self._release, hold_as)
        self._held[hold_as] = HeldBlocks(request, timer)
        for waiter in self._awaited.pop(hold_as, ()):
            if not waiter.done():
                waiter.set_result(None)
        return self._respond(self, request)

    def handover(self, key: str) -> "asyncio.Future[bool]":
        """Return when the blocks held under `key` have been taken (True) or freed unused (False)."""
        held = self._held[key]
        held.taken = asyncio.get_running_loop().create_future()
        held.taken.add_done_callback(lambda taken: self._release(key))
        return held.taken

    def _release(self, key: str, *, taken: bool = False) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        held.timer.cancel()
        self.host.release(held.request.id)
        if held.taken is not None and not held.taken.done():
            held.taken.set_result(taken)

    async def _serve(self, raw: bytes) -> tuple[int, bytes]:
        """Transfer blocks; respond when the transfer is done, then free them."""
        asked = read_json(raw, BlockPull)
        if asked.engine_id not in (None, self.engine_id):
            return _failed(OTHER_ENGINE, f"this is engine {self.engine_id}, not {asked.engine_id}: it was restarted")
        held = await self._computed(asked)
        if held is None or held.moving:
            return _failed(404, f"no blocks are held for {asked.key}: released or never computed")
        held.moving, moved = True, False
        try:
            answer = msgspec.json.encode(await self._move(held.request, asked))
            moved = True
            return 200, answer
        finally:
            self._release(asked.key, taken=moved)

    async def _look(self, raw: bytes) -> tuple[int, bytes]:
        """Respond when the prompt is computed; Neuron's engine is polled instead (`lookup_all`)."""
        asked = read_json(raw, Lookup)
        if await self._computed(asked) is None:
            return _failed(404, f"no prompt was computed for {asked.key}")
        return 200, b"null"

    async def _computed(self, asked: Lookup | BlockPull) -> HeldBlocks | None:
        if asked.key not in self._held and asked.wait_s:
            await self._arrival(asked.key, asked.wait_s)
        return self._held.get(asked.key)

    async def _arrival(self, key: str, wait_s: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(key, []).append(waiter)
        try:
            async with asyncio.timeout(wait_s):
                await waiter
        except TimeoutError:
            waiters = self._awaited.get(key, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._awaited.pop(key, None)

    async def _move(self, request: EngineRequest, asked: BlockPull) -> BlocksMoved:
        tokens = request.prompt_tokens if asked.most is None else min(asked.most, request.computed)
        size = round(max(tokens - asked.first, 0) * self.host.transfers.bytes_per_token)
        seconds = 0.0
        if size:
            self._transfers += 1
            try:
                seconds = self.host.transfers.seconds(size, self._transfers, busy=self.host.is_busy())
                seconds += self._connect_s(asked.receiver)
                await asyncio.sleep(seconds / self.host.time_scale)
            finally:
                self._transfers -= 1
        return BlocksMoved(list(request.chain[: tokens // self.host.block_size]), tokens, size, seconds)

    def _connect_s(self, receiver: str) -> float:
        if receiver in self._met:
            return 0.0
        self._met.add(receiver)
        return self.host.transfers.connect_s

    def _entries(self) -> bytes:
        """Answer like Mooncake's bootstrap server: the engine and its workers by data-parallel rank."""
        address = f"tcp://{self.host.host}:{self.host.port}"
        return msgspec.json.encode({"0": {"engine_id": self.engine_id, "worker_addr": {"0": {"0": address}}}})

    # The receiver

    async def pull(self, source: TransferSource, request: EngineRequest) -> Pulled:
        moved = await self._ask(source, request.computed)
        if moved.hashes != list(request.chain[: len(moved.hashes)]):
            raise TransferFailed(f"{source.url} holds another prompt under {source.key}")
        return Pulled(moved.tokens, moved.bytes, moved.seconds)

    async def lookup(self, source: TransferSource) -> None:
        """Look up as if polling every `poll_s`: the answer takes effect at the next poll."""
        scale, poll_s = self.host.time_scale, self.host.transfers.poll_s
        asked = time.monotonic()
        await ask(self._client, source.url + LOOKUP_PATH, Lookup(source.key, self._hold_s), type(None))
        done_s = (time.monotonic() - asked) * scale
        await asyncio.sleep((next_poll_s(0.0, done_s, poll_s) - done_s) / scale)

    async def _ask(self, source: TransferSource, first: int) -> BlocksMoved:
        wait_s = self._hold_s if source.waits else 0
        asked = BlockPull(source.key, source.engine_id, first, wait_s, self.engine_id, source.most)
        return await ask(self._client, source.url + PULL_PATH, asked, BlocksMoved)

    def decline(self, source: TransferSource) -> None:
        task = asyncio.get_running_loop().create_task(self._pull_nothing(source))
        self._declining.add(task)
        task.add_done_callback(self._declining.discard)

    async def _pull_nothing(self, source: TransferSource) -> None:
        try:
            await self._ask(source, 2**62)
        except TransferFailed:
            return  # the engine has ended, so its blocks are lost

    async def close(self) -> None:
        for task in list(self._declining):
            task.cancel()
        await self._client.aclose()


def _failed(status: int, error: str) -> tuple[int, bytes]:
    return status, msgspec.json.encode(PeerError(error))


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=httpx.Timeout(ANSWER_S, connect=2.0))


async def ask(client: httpx.AsyncClient, url: str, asked: msgspec.Struct, kind: type[Answered]) -> Answered:
    """Ask another engine. Raise TransferFailed."""
    try:
        answer = await client.post(url, content=msgspec.json.encode(asked))
        if answer.status_code != 200:
            raise TransferFailed(f"{url}: {read_json(answer.content, PeerError).error}")
        return read_json(answer.content, kind)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
        raise TransferFailed(f"{url}: {error or type(error).__name__}") from None
