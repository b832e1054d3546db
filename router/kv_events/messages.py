"""Messages between routers and an index process on a unix socket: length-prefixed frames of msgpack arrays. Pure. A
router names the engines to follow, asks which part of a prompt they hold, and reports where it sends the prompt. The
process answers each question and reports its feeds twice a second. Both sides first send the version, since their
releases may differ during an upgrade.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from router.contract.net.engine_tls import PLAIN, EngineTls

VERSION = 3
LENGTH_BYTES = 4
LONGEST = 64 * 1024 * 1024  # bytes of a frame; the block hashes of the largest body fit

Stretch = tuple[int, bytes, bytes, bytes]  # (end in blocks, holders on device, host and disk by slot)


class Hello(Struct, array_like=True, tag="hello"):
    version: int


class FollowedEngine(Struct, array_like=True, frozen=True):
    """An engine process, or one of its data-parallel ranks."""

    key: str  # key of the process; it changes when the engine restarts
    url: str  # address that lists the sources of KV events
    rank: tuple[int, int, int]  # number, position behind the address, number of ranks there
    kv_tokens: int  # capacity of its cache, 0 if unknown
    block_size: int  # tokens per block until its events report the size
    engine_key: str = ""  # reference of its engine key
    shares: bool = False  # True if the whole pool shares its store
    chunk: int = 0  # tokens per chunk of its model's attention, 0 if unknown
    tls: EngineTls = PLAIN
    model: str = ""  # its model by the name of its tokenizer


class Follow(Struct, array_like=True, tag="follow"):
    """All engines of the pool that the router wants to be followed."""

    pool: str
    engines: list[FollowedEngine]


class LookUp(Struct, array_like=True, tag="look_up"):
    number: int
    pool: str
    prompts: list[tuple[int, bytes]]  # (tokens in a block, 8-byte hashes in the host's order) of the same prompt
    # (tokens in a block, parts per block, hashes) for windows with smaller blocks
    parts: list[tuple[int, int, bytes]] = []
    rules: list[tuple[int, bytes]] = []  # (rule of speculation, slots as bits); NONE for other engines


class Sent(Struct, array_like=True, tag="sent"):
    """A report that a looked-up prompt was sent to an engine."""

    number: int
    look_up: int
    pool: str
    key: str
    block_size: int
    foreseen: int  # number of leading blocks expected to be cached there
    speculating: bool = False  # whether to return its tokens by each rule of speculation


class Over(Struct, array_like=True, tag="over"):
    number: int  # number of a Sent


class Refuted(Struct, array_like=True, tag="refuted"):
    """A report that an engine had only `held` leading blocks of a looked-up prompt."""

    look_up: int
    pool: str
    key: str
    block_size: int
    held: int


class Welcome(Struct, array_like=True, tag="welcome"):
    version: int
    seed: int  # seed of the hash chains


class Slots(Struct, array_like=True, tag="slots"):
    """The engine keys for the bits of a pool's holders, from now on."""

    pool: str
    keys: list[str]


class Found(Struct, array_like=True, tag="found"):
    """The tokens of each looked-up prompt that are held, by slot: now, and later if that differs."""

    number: int
    prompts: list[tuple[list[Stretch], list[tuple[int, int]]]]


class Speculating(Struct, array_like=True, tag="speculating"):
    """The tokens of a sent prompt that its engine holds by each rule of speculation."""

    number: int  # number of the Sent
    by_rule: tuple[int, ...]


class FeedStatus(Struct, array_like=True):
    """The status of an engine's feed, named as in router/kv_events/feed.py."""

    key: str
    trouble: str
    complete: bool = False
    block_size: int = 0
    blocks: tuple[int, int, int] = (0, 0, 0)
    event_at: float | None = None
    confirmed_at: float | None = None
    gaps: int = 0
    replayed: int = 0
    purges: int = 0
    refused: dict[str, int] = {}
    but_for: str = ""
    names_layers: bool = True
    unit: int = 0
    ahead: int = 0
    parts: tuple[int, ...] = ()


class IndexReport(Struct, array_like=True, tag="status"):
    pool: str
    bytes: int  # size of the pool's index
    has_lower: bool
    feeds: list[FeedStatus]


class Costs(Struct, array_like=True, tag="costs"):
    """Costs of the whole process since its start."""

    resident_bytes: int
    cpu_s: float


ToProcess = Hello | Follow | LookUp | Sent | Over | Refuted
ToRouter = Welcome | Slots | Found | Speculating | IndexReport | Costs

_encoder = msgspec.msgpack.Encoder()
to_process: "msgspec.msgpack.Decoder[ToProcess]" = msgspec.msgpack.Decoder(ToProcess)
to_router: "msgspec.msgpack.Decoder[ToRouter]" = msgspec.msgpack.Decoder(ToRouter)


class BadFrame(ValueError):
    """Bytes that are not a valid message; the exception has the reason."""


def framed(message: Struct) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class Frames:
    """A splitter of a byte stream into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the complete frames. Raise BadFrame."""
        rest = self._rest
        rest += data
        found, start = [], 0
        while len(rest) - start >= LENGTH_BYTES:
            length = int.from_bytes(rest[start : start + LENGTH_BYTES], "little")
            if length > LONGEST:
                raise BadFrame(f"a frame of {length:,} bytes; allowed are {LONGEST:,}")
            end = start + LENGTH_BYTES + length
            if end > len(rest):
                break
            found.append(bytes(rest[start + LENGTH_BYTES : end]))
            start = end
        del rest[:start]
        return found


def read(decoder: "msgspec.msgpack.Decoder[Any]", frame: bytes) -> Any:
    """Read a message. Raise BadFrame."""
    try:
        return decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"a message that cannot be read: {error}"[:300]) from None
