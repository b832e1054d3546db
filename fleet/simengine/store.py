"""`python -m fleet.simengine.store --port N`: run the store that engines with `--kv mooncake_store` share, until
SIGTERM.
It holds the hashes and sizes of blocks, not their content, and evicts the least recently used. Its metrics have the
names of Mooncake's master.
"""

import argparse
import asyncio
import sys

import msgspec
import uvloop

from fleet.engine.engine_model import TransferLink
from fleet.engine.tiers.cache import TierCache
from fleet.simengine.http.app import ClientDisconnected, Message, Receive, Send, read_body, respond
from fleet.simengine.http.server import EngineCannotStart, listen, serve
from fleet.simengine.kv.wire import Get, Got, PeerError, Put
from router.contract.values.reading import read_json

PAGE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
JSON = (b"content-type", b"application/json")


class Store:
    """The ASGI application."""

    def __init__(self, blocks: TierCache, link: TransferLink) -> None:
        self._blocks = blocks
        self._link = link
        self._transfers = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method == "GET" and path in ("/health", "/metrics"):
            await respond(send, 200, self._page() if path == "/metrics" else b"", PAGE)
            return
        if method != "POST" or path not in ("/put", "/get"):
            await respond(send, 404, b'{"detail":"Not Found"}', JSON)
            return
        try:
            raw = await read_body(receive)
            answer = self._put(raw) if path == "/put" else await self._get(raw)
        except ClientDisconnected:
            return
        except msgspec.DecodeError as error:
            await respond(send, 400, msgspec.json.encode(PeerError(str(error))), JSON)
            return
        await respond(send, 200, answer, JSON)

    def _put(self, raw: bytes) -> bytes:
        asked = read_json(raw, Put)
        self._blocks.put(asked.hashes, asked.block_bytes)
        self._blocks.evict()
        return b"null"

    async def _get(self, raw: bytes) -> bytes:
        """Respond when a transfer of the held blocks would be done."""
        asked = read_json(raw, Get)
        blocks = self._blocks.held(asked.hashes)
        size, seconds = blocks * asked.block_bytes, 0.0
        if size:
            self._transfers += 1
            try:
                seconds = self._link.seconds(size, self._transfers, busy=False)
                await asyncio.sleep(seconds / asked.time_scale)
            finally:
                self._transfers -= 1
        return msgspec.json.encode(Got(blocks, size, seconds))

    def _page(self) -> bytes:
        values = {
            "master_allocated_bytes": round(self._blocks.used),
            "master_total_capacity_bytes": round(self._blocks.capacity),
            "master_key_count": len(self._blocks),
            "master_evicted_key_count": self._blocks.evicted,
        }
        return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in values.items()).encode()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fleet.simengine.store", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="HTTP; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--capacity-gb", type=float, default=64.0)
    parser.add_argument("--setup-ms", type=float, default=1.0, help="of a transfer, however small")
    parser.add_argument("--gb-per-s", type=float, default=9.7, help="transfers at the same time share it")
    try:
        uvloop.run(run(parser.parse_args()))
    except EngineCannotStart as error:
        print(f"store: {error}", file=sys.stderr)
        return 1
    return 0


async def run(arguments: argparse.Namespace) -> None:
    listening = listen(arguments.host, arguments.port)
    rate = arguments.gb_per_s * 1e9
    link = TransferLink(setup_s=arguments.setup_ms / 1e3, idle_bytes_per_s=rate, busy_bytes_per_s=rate)
    app = Store(TierCache(round(arguments.capacity_gb * 1e9)), link)
    print(f"store: {arguments.capacity_gb:g} GB on {arguments.host}:{listening.getsockname()[1]}", flush=True)
    await serve(app, listening)


if __name__ == "__main__":
    sys.exit(main())
