"""`python -m fleet.simengine --port N --model NAME …`: one simulated engine until SIGTERM."""

import asyncio
import base64
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import uvloop
import zmq

from fleet.engine.engine import Engine
from fleet.engine.engine_model import EngineModel, TransferModel
from fleet.engine.lockstep import RankSteps, rank_steps
from fleet.engine.profiles import UnknownProfile
from fleet.engine.scheduler import VLLM
from fleet.simengine.arguments import ONE_ENGINE, Arguments, parse_arguments
from fleet.simengine.http.app import App
from fleet.simengine.http.server import EngineCannotStart, listen, serve
from fleet.simengine.kv_events import Publisher
from fleet.simengine.metrics import EngineInfo
from fleet.simengine.model import context_ranks, gpus_of, model_of, served_by, simulated_gpus
from fleet.simengine.ranks import Ranks
from fleet.simengine.service import Connect, Service
from router.contract.connectors import CONNECTORS
from router.contract.net import engine_key
from router.contract.values.reading import read_json

# Registers the engine in etcd like a Neuron worker: a key under a lease, /workers/<role>/<host>/<port>. The lease is
# renewed while the engine lives; it is revoked when the engine stops, and expires if the engine is killed.
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
        import httpx  # only needed with an etcd: it takes a third of an engine's start-up time

        self._client = httpx.AsyncClient(base_url=url, timeout=ANSWER_S)
        self._failed = httpx.HTTPError
        self._key = key
        self._lease: str | int = ""

    async def run(self) -> None:
        """Run until cancelled; register again if etcd was unreachable for too long."""
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
        """Renew the lease. An answer without a TTL means that the lease has expired."""
        answer = await self._post("/v3/lease/keepalive", ID=self._lease)
        if not answer.result.TTL:
            self._lease = ""

    async def _post(self, path: str, **body: object) -> _Answer:
        answer = await self._client.post(path, json=body)
        answer.raise_for_status()
        return read_json(answer.content, _Answer, strict=False)


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def main() -> int:
    try:
        arguments = parse_arguments(sys.argv[1:])
        uvloop.run(run(arguments))
    except (EngineCannotStart, UnknownProfile) as error:
        print(f"simengine: {error}", file=sys.stderr)
        return 1
    return 0


async def run(arguments: Arguments) -> None:
    listening = listen(arguments.host, arguments.port)
    port = listening.getsockname()[1]
    ranks = arguments.data_parallel_size * context_ranks(arguments, arguments.role)
    services = _services(arguments, port, [_publisher(arguments, place) for place in range(ranks)])
    print(f"simengine: {_described(arguments, services[0].about)}{port}", flush=True)
    async with registered(arguments.etcd, arguments.role, arguments.host, port):
        await serve(App(*services, api_key=os.environ.get(engine_key.VARIABLE, "")), listening)
    print("simengine: stopped", flush=True)
    await Ranks(services).close()


def _publisher(arguments: Arguments, place: int) -> Publisher | None:
    """Return the KV event publisher of a rank behind the address; each rank uses the ports after those of the
    previous rank."""
    if arguments.events_port is None or arguments.replay_port is None:
        return None
    events, replay = (port and port + place for port in (arguments.events_port, arguments.replay_port))
    try:
        rank = arguments.data_parallel_start_rank + place
        return Publisher(arguments.host, events, replay, arguments.block_size, rank, arguments.events_dialect)
    except zmq.ZMQError as error:
        raise EngineCannotStart(
            f"cannot publish on {arguments.host}, ports {events} and {replay}: {error.strerror}"
        ) from None


def _services(arguments: Arguments, port: int, publishers: Sequence[Publisher | None]) -> list[Service]:
    """Return one service per rank behind the address. Ranks of a mixture of experts step together, except in a DWDP
    group."""
    model = model_of(arguments, arguments.role)
    engines = [
        Engine(model.law, model.kv_blocks, model.limits, record_events=one is not None, tiers=model.tiers)
        for one in publishers
    ]
    together = len(engines) > 1 and arguments.context_servers == ONE_ENGINE and served_by(arguments).has_experts
    group = rank_steps(engines) if together else [None] * len(engines)
    ranks = zip(engines, publishers, group, strict=True)
    first, origin_s = arguments.data_parallel_start_rank, time.monotonic()
    return [_service(arguments, port, model, rank, origin_s, *one) for rank, one in enumerate(ranks, first)]


def _service(
    arguments: Arguments,
    port: int,
    model: EngineModel,
    rank: int,
    origin_s: float,
    engine: Engine,
    publisher: Publisher | None,
    steps: RankSteps | None,
) -> Service:
    size, blocks = model.limits.block_size, model.kv_blocks
    pulls_as, connect = _connection(arguments, port, model.transfers)
    window, caches = model.window or model.kv_tokens, model.limits.batching == VLLM
    media = tuple(tier.device.medium for tier in model.tiers.tiers) if model.tiers is not None else ()
    gpus = simulated_gpus(arguments, arguments.role)
    about = EngineInfo(arguments.model, size, blocks, arguments.time_scale, window, caches, media, rank, pulls_as, gpus)
    recomputes = arguments.kv_failure == "recompute"
    slots = arguments.max_loras and (arguments.max_cpu_loras or arguments.max_loras)
    return Service(
        engine,
        about,
        arguments.seed,
        publisher,
        connect,
        recomputes=recomputes,
        adapter_slots=slots,
        steps=steps,
        origin_s=origin_s,
    )


def _connection(arguments: Arguments, port: int, transfers: TransferModel | None) -> tuple[str, Connect]:
    """Return the `source` label under which counters report transferred KV, and the constructor of the connector."""
    if transfers is None:
        return "", lambda is_busy, release: None
    # Imported late: the connector needs an HTTP client, whose import takes a third of an engine's start-up time.
    from fleet.simengine.kv.choose import connector

    return CONNECTORS[arguments.kv].cached_as, partial(connector, arguments, port, transfers)


def _described(arguments: Arguments, about: EngineInfo) -> str:
    engine = f"{arguments.gpu} {arguments.model_profile}"
    if arguments.context_servers != ONE_ENGINE:
        engine = f"{arguments.role} server of {gpus_of(arguments, arguments.role)} GPUs, {arguments.context_servers}"
    return (
        f"{engine}, {about.blocks} KV blocks of {about.block_size} tokens, "
        f"window {about.window}, time scale {about.time_scale:g}, serving {about.model} on {arguments.host}:"
    )


if __name__ == "__main__":
    sys.exit(main())
