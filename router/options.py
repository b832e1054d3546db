"""The options of a router, from the command line or the environment, and the source of pools that they select."""

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from router.contract import session_names
from router.contract.net.addresses import is_base_path
from router.contract.session_names import DEFAULT_NAMES
from router.http.body import MAX_BODY
from router.http.clients import BODIES, STALL_S, ClientConnections, most_clients, raise_descriptor_limit
from router.source import PoolSource
from router.spans import settings
from router.spans.settings import SpanSettings

LONGEST_SOCKET = 107  # bytes of a unix socket's path
LOOPBACK = ("127.0.0.1", "::1", "localhost")


# Variables for `router.app:app` under any ASGI server, in addition to REDIS_URL
VARIABLES = {
    "WEIR_ROUTER_INSTANCES": "--instances",
    "WEIR_ROUTER_POLICY": "--policy",
    "WEIR_ROUTER_KEYS": "--keys",
    "WEIR_ROUTER_MODEL": "--model",
    "WEIR_ROUTER_MODELS": "--models",
    "WEIR_ROUTER_ID": "--id",
    "WEIR_ROUTER_URL": "--url",
    "WEIR_ROUTER_INDEX": "--index",
}
WEB = "WEIR_ROUTER_WEB"
CORS = "WEIR_ROUTER_CORS_ORIGINS"
ENGINE_KEY = "WEIR_ROUTER_ENGINE_KEY"
SESSION_NAMES = "WEIR_ROUTER_SESSION_NAMES"
REQUIRE_KEYS = "WEIR_ROUTER_REQUIRE_KEYS"  # 1 or 0


class OptionError(ValueError):
    """An invalid option; the message is one line that names it."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Print an error as one line, without the usage, and exit with status 2."""
    try:
        return parse(argv)
    except OptionError as error:
        print(f"router: {error}", file=sys.stderr)
        sys.exit(2)


def from_environment() -> PoolSource:
    """Return the source selected by the environment. Raise ValueError with one line that names the variable."""
    argv = [f"{flag}={os.environ[name]}" for name, flag in VARIABLES.items() if os.environ.get(name)]
    try:
        required = os.environ.get(REQUIRE_KEYS, "0")
        if required not in ("0", "1"):
            raise OptionError(f"{REQUIRE_KEYS}={required}: allowed are 0 and 1")
        options = parse([*argv, "--require-keys"] if required == "1" else argv)
        url = options.url or f"http://{options.host}:{options.port}"
        options.host = urlsplit(url).hostname
        return source(options, url)
    except ValueError as error:
        text = str(error).replace("--require-keys", REQUIRE_KEYS).replace("--redis", "REDIS_URL")
        for name, flag in VARIABLES.items():
            text = text.replace(flag, name)
        raise ValueError(text) from None


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the options. Raise OptionError if they cannot be used."""
    parser = Parser(prog="python -m router", description="Weir's router: OpenAI API in, engines out.")
    _add_source(parser)
    _add_address(parser)
    parser.add_argument(
        "--index", metavar="SOCKET,SOCKET", help="of the host's index processes (python -m router.index)"
    )
    parser.add_argument(
        "--session-names",
        metavar="WHERE,WHERE",
        default=os.environ.get(SESSION_NAMES),
        help=f"what names a session, {session_names.ALLOWED}, the most trusted first (default: {SESSION_NAMES})",
    )
    parser.add_argument(
        "--web", metavar="URL", default=os.environ.get(WEB), help=f"of the web process, for batches (default: {WEB})"
    )
    parser.add_argument("--grace", type=float, default=30.0, metavar="S", help="time for running streams at the end")
    parser.add_argument(
        "--max-connections", type=int, metavar="N", help="of clients (default: by the limit of open files)"
    )
    parser.add_argument(
        "--client-stall", type=float, default=STALL_S, metavar="S", help="until a client that does not read is given up"
    )
    parser.add_argument("--max-body-bytes", type=int, default=BODIES, metavar="N", help="of all requests together")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(argv)
    fault = _fault(options)
    if fault:
        raise OptionError(fault)
    return options


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options of pools, policies and keys: in Redis, or on the command line."""
    parser.add_argument("--redis", metavar="URL", help="take pools and policies from this Redis (default: REDIS_URL)")
    parser.add_argument("--instances", metavar="URL,URL", help="without Redis: these engines, or @FILE with one a line")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="with --instances: the policy (JSON, or YAML)")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="with --instances: hashes of API keys, their limits")
    parser.add_argument("--model", metavar="NAME", help="with --instances: their model (default: ask them)")
    parser.add_argument(
        "--engine-key",
        metavar="WHERE",
        help=f"with --instances: the key that they ask for, as env:NAME or file:/PATH (default: {ENGINE_KEY})",
    )
    parser.add_argument("--models", type=Path, metavar="FILE", help="with --instances: the document Models")
    parser.add_argument(
        "--remove-billing-line",
        action="store_true",
        help="with --instances: leave Claude Code's billing line out of bodies (vLLM does it itself, SGLang does not)",
    )
    parser.add_argument("--require-keys", action="store_true", help="every pool requires an API key")


def _add_address(parser: argparse.ArgumentParser) -> None:
    """Add the options for the router's name and for the addresses at which clients reach it."""
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 chooses a free one")
    parser.add_argument(
        "--shared-port", type=int, metavar="PORT", help="listen there as well, together with other routers"
    )
    parser.add_argument("--id", default="router-1", help="its name, different for each router")
    parser.add_argument("--url", help="where other processes reach it (default: http://HOST:PORT)")
    parser.add_argument(
        "--cors-origins",
        metavar="URL,URL",
        default=os.environ.get(CORS),
        help=f"pages of these origins may use it in a browser, * for all (default: {CORS})",
    )
    parser.add_argument(
        "--root-path", metavar="/PATH", default="", help="that a proxy in front leaves before the paths of requests"
    )


def _fault(options: argparse.Namespace) -> str:
    """Return why the options cannot be combined; empty if they can."""
    if options.instances is not None and options.redis:
        return "--redis and --instances: give one of them, pools come either from Redis or from the command line"
    if options.instances is None and options.remove_billing_line:
        return "--remove-billing-line goes with --instances only: with Redis, it is published there"
    if options.instances is not None and options.require_keys:
        return "--require-keys goes with --redis only: with --instances, give --keys FILE"
    if options.instances is not None:
        options.engine_key = options.engine_key or os.environ.get(ENGINE_KEY)
    else:
        options.redis = options.redis or os.environ.get("REDIS_URL")
        for name in ("policy", "model", "models", "keys", "engine_key"):
            if getattr(options, name) is not None:
                return f"--{name.replace('_', '-')} goes with --instances only: with Redis, it is published there"
        if not options.redis:
            return "no instances: give --instances URL,URL, or --redis URL (or set REDIS_URL)"
    return _fault_of_sockets(options) or _fault_of_names(options) or _fault_of_numbers(options)


def _fault_of_sockets(options: argparse.Namespace) -> str:
    if options.index is None:
        return ""
    options.index = options.index.split(",")
    wrong = next((path for path in options.index if not 0 < len(os.fsencode(path)) <= LONGEST_SOCKET), None)
    if wrong is not None:
        return f"--index {wrong!r}: a socket's path has 1 to {LONGEST_SOCKET} bytes"
    if len({os.path.dirname(os.path.abspath(path)) for path in options.index}) > 1:
        return f"--index {','.join(options.index)}: the sockets must lie in one folder, with the seed of their hashes"
    return ""


def _fault_of_names(options: argparse.Namespace) -> str:
    try:
        options.session_names = session_names.parse(options.session_names) if options.session_names else DEFAULT_NAMES
    except ValueError as error:
        return f"--session-names: {error}"
    if options.root_path and not is_base_path(options.root_path):
        return f"--root-path {options.root_path!r}: allowed are segments of A-Z a-z 0-9 . _ ~ -, as in /llm, not /v1"
    options.root_path = options.root_path.rstrip("/")
    return ""


def _fault_of_numbers(options: argparse.Namespace) -> str:
    if not 0 <= options.port <= 65535:
        return f"--port {options.port}: allowed are 0 to 65535"
    if options.shared_port is not None and not 1 <= options.shared_port <= 65535:
        return f"--shared-port {options.shared_port}: allowed are 1 to 65535"
    if not 1 <= options.client_stall <= 86_400:
        return f"--client-stall {options.client_stall:g}: allowed are 1 to 86400"
    if options.max_body_bytes < MAX_BODY:
        return f"--max-body-bytes {options.max_body_bytes}: allowed is {MAX_BODY} (one body) and more"
    return ""


def clients(options: argparse.Namespace) -> ClientConnections:
    """Return the clients' connections. Raise OptionError if the limit of open files is too low for them."""
    descriptors = raise_descriptor_limit()
    most = most_clients(descriptors)
    wanted = most if options.max_connections is None else options.max_connections
    if not 1 <= wanted <= most:
        raise OptionError(
            f"--max-connections {wanted}: allowed are 1 to {most}, with {descriptors} open files (ulimit -n)"
        )
    return ClientConnections(wanted, options.client_stall, options.max_body_bytes)


def spans_settings() -> SpanSettings | None:
    """Return the settings of spans; None: no spans. Raise ValueError with one line that names the variable."""
    return settings.read(os.environ, "weir-router")


def source(options: argparse.Namespace, url: str) -> PoolSource:
    """Return the source of pools; `url` is this router's address. Raise ValueError with the option's name."""
    made = _source(options, url)
    made.pools.session_names = options.session_names
    made.pools.index_sockets = tuple(sorted({os.path.abspath(path) for path in options.index or ()}))
    return made


def _source(options: argparse.Namespace, url: str) -> PoolSource:
    if options.instances is not None:
        from router.standalone.file_source import FileSource

        files = {"keys": options.keys, "models": options.models, "engine_key": options.engine_key or ""}
        alone = FileSource(
            options.instances,
            options.policy,
            options.model or "",
            options.id,
            **files,
            removes_billing_line=options.remove_billing_line,
        )
        alone.pools.auth.exposed = options.host not in LOOPBACK
        return alone
    from router.sync.redis_source import RedisSource  # the import takes half of the start-up time

    try:
        shared = RedisSource(options.redis, options.id, url)
    except ValueError as error:
        raise ValueError(f"--redis {options.redis}: {error}") from None
    auth = shared.pools.auth
    auth.required_everywhere = options.require_keys
    auth.exposed = options.host not in LOOPBACK
    return shared
