"""Registers the engine in etcd as a Neuron worker does: a key under a lease, /workers/<role>/<host>/<port>.

The lease is renewed while the engine lives; it is revoked when the engine stops, and expires if it is killed.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

LEASE_S = 5
RENEW_S = 1.0
ANSWER_S = 2.0


@asynccontextmanager
async def registered(etcd: str | None, role: str, host: str, port: int) -> AsyncIterator[None]:
    """Register while the context is open; without an etcd, do nothing."""
    if etcd is None:
        yield
        return
    worker = _Worker(etcd if "://" in etcd else f"http://{etcd}", f"/workers/{role}/{host}/{port}")
    task = asyncio.get_running_loop().create_task(worker.run())
    try:
        yield
    finally:
        task.cancel()
        await worker.leave()


class _Renewal(msgspec.Struct, frozen=True):
    TTL: int = 0


class _Answer(msgspec.Struct, frozen=True):
    """The fields read from etcd's answers. Its gateway writes 64-bit numbers as text."""

    ID: str | int = ""
    result: _Renewal = _Renewal()


class _Worker:
    def __init__(self, url: str, key: str) -> None:
        import httpx  # imported only with an etcd: a third of the start of an engine

        self._client = httpx.AsyncClient(base_url=url, timeout=ANSWER_S)
        self._failed = httpx.HTTPError
        self._key = key
        self._lease: str | int = ""

    async def run(self) -> None:
        """Run until cancelled; register again after etcd was unreachable for too long."""
        while True:
            try:
                await self._renew() if self._lease else await self._register()
            except (self._failed, msgspec.DecodeError):
                self._lease = ""
            await asyncio.sleep(RENEW_S)

    async def leave(self) -> None:
        try:
            if self._lease:
                await self._post("/v3/lease/revoke", ID=self._lease)
        except self._failed:
            pass  # the lease expires
        await self._client.aclose()

    async def _register(self) -> None:
        lease = (await self._post("/v3/lease/grant", TTL=LEASE_S)).ID
        await self._post("/v3/kv/put", key=_coded(self._key), value=_coded('{"connections": []}'), lease=lease)
        self._lease = lease

    async def _renew(self) -> None:
        """Renew the lease. Without a TTL in the answer it has expired."""
        answer = await self._post("/v3/lease/keepalive", ID=self._lease)
        if not answer.result.TTL:
            self._lease = ""

    async def _post(self, path: str, **body: object) -> _Answer:
        answer = await self._client.post(path, json=body)
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=_Answer, strict=False)


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
