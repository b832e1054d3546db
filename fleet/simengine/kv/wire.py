"""Messages about KV blocks between engines, and to the store that they share."""

import msgspec

OTHER_ENGINE = 409  # status: the blocks are on another rank behind the address, or were on an engine that has ended


class Lookup(msgspec.Struct, frozen=True):
    key: str
    wait_s: float  # time for the prompt to be computed


class BlockPull(msgspec.Struct, frozen=True):
    key: str
    engine_id: str | None  # engine that must hold it; None: any
    first: int  # tokens that the receiver already has
    wait_s: float  # time for the prompt to be computed
    receiver: str
    most: int | None = None  # tokens wanted; None: the holder's prompt


class BlocksMoved(msgspec.Struct, frozen=True):
    hashes: list[int]
    tokens: int
    bytes: int
    seconds: float  # virtual seconds


class PeerError(msgspec.Struct, frozen=True):
    error: str


class Put(msgspec.Struct, frozen=True):
    hashes: list[int]
    block_bytes: int


class Get(msgspec.Struct, frozen=True):
    hashes: list[int]
    block_bytes: int
    time_scale: float


class Got(msgspec.Struct, frozen=True):
    blocks: int
    bytes: int
    seconds: float  # virtual seconds
