"""The picker's gRPC server: the gateway's requests, and health checks. It passes messages on as bytes; messages.py
reads them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from router.http.clients import ClientConnections
from router.picker import messages
from router.picker.picking import Picking
from router.picker.protobuf import Malformed
from router.picker.stream import GatewayStream

log = logging.getLogger("weir.picker")

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = "grpc.health.v1.Health"
MOST_MESSAGE = 40 * 1024 * 1024  # bytes of a whole body, buffered by the gateway
OPTIONS = (("grpc.max_receive_message_length", MOST_MESSAGE), ("grpc.so_reuseport", 0))


class NotListening(Exception):
    """The server cannot listen; the message is one line with the address."""


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """The picker's address and the way it reads the gateway's headers."""

    address: str  # host:port
    certificate: Path | None = None  # certificate and key for TLS; None: no TLS
    key: Path | None = None
    pool: str = ""  # pool of requests that do not name one
    objectives: Mapping[str, int] = field(default_factory=dict)  # objective: band
    grace_s: float = 30.0


class GrpcWire:
    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        self._context = context

    async def read(self) -> bytes | None:
        raw = await self._context.read()
        return None if raw is grpc.aio.EOF else raw

    async def write(self, message: bytes) -> None:
        await self._context.write(message)


class PickerServer:
    def __init__(
        self, picking: Picking, clients: ClientConnections, settings: PickerSettings, is_ready: Callable[[], bool]
    ) -> None:
        self.port = 0
        self._picking = picking
        self._clients = clients
        self._settings = settings
        self._is_ready = is_ready
        self._server: grpc.aio.Server | None = None
        self._ending = False

    async def start(self) -> None:
        """Start the server. Raise NotListening."""
        settings = self._settings
        server = self._server = grpc.aio.server(options=OPTIONS)
        process = grpc.stream_stream_rpc_method_handler(self._process)
        check = grpc.unary_unary_rpc_method_handler(self._check)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler(HEALTH, {"Check": check}),
            )
        )
        try:
            if settings.certificate is None or settings.key is None:
                self.port = server.add_insecure_port(settings.address)
            else:
                pair = (settings.key.read_bytes(), settings.certificate.read_bytes())
                self.port = server.add_secure_port(settings.address, grpc.ssl_server_credentials([pair]))
        except (OSError, RuntimeError) as error:
            raise NotListening(f"cannot listen on {settings.address}: {error}") from None
        await server.start()

    async def stop(self) -> None:
        """Stop the server. Picked requests continue at their engines although their streams end here."""
        self._ending = True
        if self._server is not None:
            await self._server.stop(self._settings.grace_s)

    async def _process(self, _: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        settings = self._settings
        stream = GatewayStream(GrpcWire(context), self._clients, settings.objectives, settings.pool)
        work = asyncio.create_task(self._pick(stream))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:  # the gateway reset the stream: its client left, or has its answer
            stream.gone = True
            work.cancel()
            await asyncio.wait({work})
        except Malformed as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a ProcessingRequest: {error}")
        else:
            if (refusal := stream.refusal) is not None:
                await context.write(refusal)
        finally:
            stream.release()

    async def _pick(self, stream: GatewayStream) -> None:
        incoming = await stream.head()
        if incoming is not None:
            await self._picking.pick(incoming, stream)

    async def _check(self, asked: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        """Answer a health check: `liveness` is true while the server listens; `readiness`, the empty name and the
        service's own are true once it can pick."""
        service = messages.asked_service(asked)
        if service == "liveness":
            return messages.health(messages.SERVING)
        if service not in ("", "readiness", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {service!r}: liveness, readiness or {SERVICE}")
        is_ready = self._is_ready() and not self._ending
        return messages.health(messages.SERVING if is_ready else messages.NOT_SERVING)
