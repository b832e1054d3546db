"""`python -m router.picker`: a router that gateways ask, over gRPC, where to send their requests (docs/gateways.md)."""

import argparse
import signal
import sys
from pathlib import Path

from router.app import Router
from router.contract.redis.api_keys import BAND_MAX
from router.http.clients import ClientConnections
from router.options import OptionError, Parser, arguments
from router.process import run
from router.source import PoolSource
from router.spans.settings import SpanSettings

try:
    from router.picker.server import NotListening, PickerServer, PickerSettings
except ModuleNotFoundError as error:
    if error.name != "grpc":
        raise
    sys.exit("picker: grpcio is not installed: pip install --no-deps --require-hashes -r requirements-picker.txt")

from router.picker.picking import Picking


class Picker(Router):
    """A router that also answers gateways, with the same pools and load."""

    def __init__(
        self,
        source: PoolSource,
        clients: ClientConnections,
        spans: SpanSettings | None,
        settings: PickerSettings,
        *,
        single: bool,
        sidecars: bool,
    ) -> None:
        super().__init__(source, clients, spans)
        picking = Picking(source.pools, source.sessions, source.recorder, self.pages, single=single, sidecars=sidecars)
        picking.tracer = self.proxy.tracer
        self._grpc = PickerServer(picking, self.clients, settings, self._is_ready)

    def _is_ready(self) -> bool:
        return self.pools.known and not self.pools.auth.closed

    async def start(self) -> None:
        await super().start()
        await self._grpc.start()

    async def stop(self) -> None:
        await self._grpc.stop()
        await super().stop()


def main() -> int:
    own, rest = _arguments(sys.argv[1:])
    options = arguments([*rest, f"--host={own.host}", f"--port={own.http_port}"])
    host = f"[{own.host}]" if ":" in own.host else own.host
    certificate, key = own.tls or (None, None)
    address = f"{host}:{own.port}"
    settings = PickerSettings(address, certificate, key, own.pool, dict(own.objective), options.grace)

    def make(source: PoolSource, clients: ClientConnections, spans: SpanSettings | None) -> Router:
        return Picker(source, clients, spans, settings, single=own.single, sidecars=own.sidecars)

    try:
        return run(options, make, f"picks for gateways on {address}")
    except NotListening as error:
        print(f"picker: {error}", file=sys.stderr)
        return 1


def _arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The picker's own options, then the router's."""
    parser = Parser(
        prog="python -m router.picker",
        description="Weir's endpoint picker: decides for gateways of the Gateway API Inference Extension.",
        epilog="It is a router as well: what `python -m router --help` lists is understood too, but for --port.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=int, default=9002, help="of gRPC, for the gateway (default: 9002)")
    parser.add_argument("--http-port", type=int, default=8080, help="of its pages, and of the router (default: 8080)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--pool", default="", help="of requests without x-weir-pool (default: by their model)")
    parser.add_argument(
        "--objective", type=_objective, action="append", default=[], metavar="NAME=BAND", help="band of an objective"
    )
    parser.add_argument("--single", action="store_true", help="name one endpoint, none for the gateway's retries")
    parser.add_argument(
        "--sidecars", action="store_true", help="llm-d's stand before decoders: name a prefill instance to them (NIXL)"
    )
    parser.add_argument("--tls", type=Path, nargs=2, metavar=("CERTIFICATE", "KEY"), help="PEM files (default: no TLS)")
    try:
        own, rest = parser.parse_known_args(argv)
        for name in ("port", "http_port"):
            if not 0 <= getattr(own, name) <= 65535:
                raise OptionError(f"--{name.replace('_', '-')} {getattr(own, name)}: allowed are 0 to 65535")
    except OptionError as error:
        print(f"picker: {error}", file=sys.stderr)
        sys.exit(2)
    return own, rest


def _objective(text: str) -> tuple[str, int]:
    name, _, band = text.rpartition("=")
    if not name or not band.removeprefix("-").isdigit() or abs(int(band)) > BAND_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=BAND, a whole number from -{BAND_MAX} to {BAND_MAX}")
    return name, int(band)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
