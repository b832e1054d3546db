"""The connector of a store that all engines share (fleet/simengine/store.py): every computed block is put into the
store, and blocks missing from the local cache are fetched from it. Requests carry no parameters for it."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from fleet.engine.request import EngineRequest
from fleet.simengine.kv.connector import (
    Answer,
    Pulled,
    TransferFailed,
    TransferParams,
    TransferRequest,
    TransferSource,
)
from fleet.simengine.kv.peers import ConnectorEngine, ask, client
from fleet.simengine.kv.wire import Get, Got, Put


class Pooled:
    def __init__(self, host: ConnectorEngine, store: str) -> None:
        self._host = host
        self._source = TransferSource(store.rstrip("/"), "", None, waits=False)
        self._block_bytes = round(host.transfers.bytes_per_token * host.block_size)
        self._client = client()
        self._putting: set[asyncio.Task[None]] = set()
        self.reads: Mapping[str, Callable[[], bytes]] = {}
        self.writes: Mapping[str, Callable[[bytes], Answer]] = {}

    def parse(self, params: TransferParams, request_id: str) -> TransferRequest:
        return TransferRequest(source=self._source)

    async def lookup(self, source: TransferSource) -> None:
        """Return at once, because the store needs no look-up before a pull."""

    async def pull(self, source: TransferSource, request: EngineRequest) -> Pulled:
        size = self._host.block_size
        prompt = request.chain[: request.prompt_tokens // size]
        first = request.computed // size
        asked = Get(list(prompt[first:]), self._block_bytes, self._host.time_scale)
        try:
            moved = await ask(self._client, f"{self._source.url}/get", asked, Got)
        except TransferFailed:
            return Pulled(request.computed, 0, 0.0)  # without the store, its hits are lost, but not the answer
        return Pulled((first + moved.blocks) * size, moved.bytes, moved.seconds)

    def computed(self, request: EngineRequest, hold_as: str | None) -> msgspec.Struct | None:
        blocks = request.prompt_tokens // self._host.block_size
        task = asyncio.get_running_loop().create_task(self._put(list(request.chain[:blocks])))
        self._putting.add(task)
        task.add_done_callback(self._putting.discard)
        return None

    async def _put(self, hashes: list[int]) -> None:
        try:
            await ask(self._client, f"{self._source.url}/put", Put(hashes, self._block_bytes), type(None))
        except TransferFailed:
            return

    def decline(self, source: TransferSource) -> None:
        """Return at once, because the store holds nothing for a single request."""

    async def close(self) -> None:
        for task in list(self._putting):
            task.cancel()
        await self._client.aclose()
