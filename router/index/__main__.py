"""`python -m router.index`: an index process, which follows the engines' KV events for the routers of a host."""

import argparse
import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from random import SystemRandom

import uvloop

from router.http.clients import raise_descriptor_limit
from router.index.process import IndexProcess, RouterConnection
from router.options import LONGEST_SOCKET, OptionError, Parser
from router.prefix.exact.index import MAX_BLOCKS

SEED_BITS = 64
OWN = 0o600
MOST_BLOCKS = 1_000_000_000


def main() -> int:
    try:
        options = _arguments(sys.argv[1:])
    except OptionError as error:
        print(f"index: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    os.umask(0o077)
    try:
        held = _lock(options.socket)
        seed = _seed(options.socket.with_name("index.seed"))
    except OSError as error:
        print(f"index: --socket {options.socket}: {error.strerror or error}", file=sys.stderr)
        return 1
    if held is None:
        print(f"index: --socket {options.socket}: another index process serves it", file=sys.stderr)
        return 1
    raise_descriptor_limit()  # one engine takes about eight descriptors
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    options.socket.unlink(missing_ok=True)  # left over from a killed process
    uvloop.run(_serve(IndexProcess(seed, options.max_blocks), options.socket))
    options.socket.unlink(missing_ok=True)
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the options. Raise OptionError."""
    parser = Parser(prog="python -m router.index", description="Follows KV events for the routers of this host.")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where it listens, for `--index`")
    parser.add_argument(
        "--max-blocks", type=int, default=MAX_BLOCKS, metavar="N", help="of each pool, about 70 bytes each"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(argv)
    options.socket = options.socket.absolute()
    if len(os.fsencode(options.socket)) > LONGEST_SOCKET:
        raise OptionError(f"--socket {options.socket}: a socket's path has at most {LONGEST_SOCKET} bytes")
    if not 1 <= options.max_blocks <= MOST_BLOCKS:
        raise OptionError(f"--max-blocks {options.max_blocks}: allowed are 1 to {MOST_BLOCKS}")
    return options


def _lock(socket: Path) -> int | None:
    """Take a lock that the kernel releases when this process ends. Return None while another process holds it."""
    descriptor = os.open(socket.with_name(f"{socket.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, OWN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _seed(file: Path) -> int:
    """Return the seed of the hash chains, which all index processes of the folder share, because routers hash a prompt
    once."""
    if not file.exists():
        drawn = file.with_name(f"{file.name}.{os.getpid()}")
        drawn.write_text(f"{SystemRandom().getrandbits(SEED_BITS)}\n")
        with contextlib.suppress(FileExistsError):  # another process created it first
            os.link(drawn, file)
        drawn.unlink()
    try:
        return int(file.read_text()) % (1 << SEED_BITS)
    except ValueError:
        raise OSError(f"{file} holds no number: remove it, and start its index processes and routers again") from None


async def _serve(process: IndexProcess, socket: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    server = await loop.create_unix_server(lambda: RouterConnection(process), str(socket))
    logging.getLogger("weir.index").info("the index process listens on %s", socket)
    following = asyncio.create_task(process.run())
    await asked.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    server.close()


if __name__ == "__main__":
    sys.exit(main())
