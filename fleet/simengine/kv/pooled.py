"""The connector of a store that all engines share (fleet/simengine/store.py): every computed block is put there, and
blocks missing from the local cache are fetched from there. Requests carry no parameters for it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from fleet.engine.request import EngineRequest
from fleet.simengine.kv.connector import Pulled, TransferFailed, TransferRequest, TransferSource
from fleet.simengine.kv.peers import ANSWER_S, Host


class Pooled:
    def __init__(self, host: Host, store: str) -> None:
        self._host = host
        self._source = TransferSource(store.rstrip("/"), "", None, waits=False)
        self._block_bytes = round(host.transfers.bytes_per_token * host.block_size)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(ANSWER_S, connect=2.0))
        self._putting: set[asyncio.Task[None]] = set()
        self.reads: Mapping[str, Any] = {}
        self.writes: Mapping[str, Any] = {}

    def parse(self, params: Mapping[str, Any], request_id: str) -> TransferRequest:
        return TransferRequest(source=self._source)

    async def lookup(self, source: TransferSource) -> None:
        """The store is never asked first."""

    async def pull(self, source: TransferSource, request: EngineRequest) -> Pulled:
        size = self._host.block_size
        prompt = request.chain[: request.prompt_tokens // size]
        first = request.computed // size
        asked = {"hashes": prompt[first:], "block_bytes": self._block_bytes, "time_scale": self._host.time_scale}
        try:
            moved = await self._post("/get", asked)
        except TransferFailed:
            return Pulled(request.computed, 0, 0.0)  # without the store its hits are lost, not the answer
        return Pulled((first + moved["blocks"]) * size, moved["bytes"], moved["seconds"])

    def computed(self, request: EngineRequest, hold_as: str | None) -> dict[str, Any] | None:
        blocks = request.prompt_tokens // self._host.block_size
        task = asyncio.get_running_loop().create_task(self._put(list(request.chain[:blocks])))
        self._putting.add(task)
        task.add_done_callback(self._putting.discard)
        return None

    async def _put(self, hashes: list[int]) -> None:
        try:
            await self._post("/put", {"hashes": hashes, "block_bytes": self._block_bytes})
        except TransferFailed:
            return

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client.post(self._source.url + path, json=body)
            answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TransferFailed(f"{self._source.url}: {error or type(error).__name__}") from None
        moved: dict[str, Any] = answer.json()
        return moved

    def decline(self, source: TransferSource) -> None:
        """The store holds nothing for a single request."""

    async def close(self) -> None:
        for task in list(self._putting):
            task.cancel()
        await self._client.aclose()
