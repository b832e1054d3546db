"""Decoding of the KV events of vLLM, SGLang and LMCache: msgpack `[time, [event, …], rank]`; an event is a map with
`type`, or an array. Pure.

A block's name is an int, or bytes (the last eight are kept). Unknown kinds of events are skipped. The connection limits
the payload (inbox.py), this module its parts: a few bytes can claim a large array, and arrays can be nested a thousand
deep.
"""

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
from msgspec import Struct

from router.prefix.blocks import TOKEN_BYTES, after_tokens, extra_keys
from router.prefix.exact.index import DEVICE, DISK, HOST

# Fields of an event sent as an array (vLLM's first format), in order, after the type. SGLang 0.5.18 and 0.5.19 put a
# map with the salt in place of `lora_name`.
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
)
_REMOVED = ("block_hashes", "medium", "group_idx")
LONGEST_ARRAY = 131_072  # tokens of a prompt, or events
LARGEST_MAP = 64  # fields of an event
LONGEST_NAME = 4096  # bytes of a block's name
# Bytes; vLLM and SGLang repeat a client's session name, which can be as long as a request's head
LONGEST_TEXT = 128 * 1024
LARGEST_BLOCK = 65_536  # tokens
MOST_AHEAD = 64  # tokens after a block
MOST_COPIES = 1_000_000  # copies of a block
LATEST = 2.0**33  # s, Unix
# Pinned memory is SGLang's; earlier versions called it tier 1. All other tiers are slower: STORAGE, DISK, EXTERNAL FS …
_MEDIA = {"GPU": DEVICE, "CPU": HOST, "CPU_PINNED": HOST, "CPU_TIER1": HOST, "HOST": HOST, "HOST_PINNED": HOST}
# Media that vLLM uses for its connectors to Mooncake's store and LMCache and for its file and object tiers, and that
# SGLang uses for its remote pool. Other systems evict blocks from these without an event; an engine reports its own
# evictions as from "CPU".
_UNTOLD = ("cpu", "STORAGE", "EXTERNAL")
# Groups of full attention, whose blocks are needed by every later token. Other groups have a sliding window or a state.
# If vLLM does not name a group's kind, a hit also needs all of its blocks.
_WHOLE = (None, "full_attention", "mla_attention", "sink_full_attention", "unknown")
_WINDOWS = ("sliding_window", "sliding_window_mla")
# Groups of which a hit needs only the last block before the next token: recurrent states, and chunks or further groups
# of full attention, which are evicted from the end.
_CHUNKED = "chunked_local_attention"
_LAST = (*_WHOLE[1:], "mamba", _CHUNKED)
LONGEST_WINDOW = 1 << 24  # tokens
UNTOLD = -1
_SPREAD = 0x9E3779B97F4A7C15  # odd, so that distinct names stay distinct while small numbers become good hashes
_WORD = (1 << 64) - 1


class Undecodable(ValueError):
    """A payload that is not a batch of events; the message has the reason."""


class _Unmatched(Exception):
    """Blocks whose tokens cannot occur in text, so that no prompt can be compared with them."""


class BlocksStored(Struct, frozen=True, gc=False):  # a frozen dataclass would take a third of the decoding time
    names: Sequence[int]
    parent: int | None
    tokens: bytes  # 32-bit little-endian; empty for blocks of earlier events
    block_size: int  # tokens; unknown without tokens
    tier: int
    extras: Sequence[bytes]
    group: int | None
    whole: bool  # stored by layers with full attention
    # For a further group, the number of tokens before a hit's end that a later token needs: UNTOLD if the event names a
    # kind without its reach, None if it names no kind (older versions)
    looks_back: int | None = 1
    reports_removal: bool = True  # whether an event reports when blocks leave the tier
    remote: bool = False  # True if engines share the tier
    chunked: bool = False  # stored by layers with chunked attention
    ahead: int = 0  # tokens after each block that its name covers, at the beginning of its extra keys


class BlocksRemoved(Struct, frozen=True, gc=False):
    names: Sequence[int] | Mapping[int, int]  # names, with the remaining copies if reported
    tier: int
    group: int | None


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    pass


Event = BlocksStored | BlocksRemoved | BlocksCleared


@dataclass(frozen=True, slots=True)
class KvEventBatch:
    at: float  # Unix s by the engine's clock
    events: Sequence[Event]


def decode(payload: bytes) -> KvEventBatch:
    """Decode a payload. Raise Undecodable."""
    try:
        at, events, *_ = msgpack.unpackb(
            payload,
            strict_map_key=False,
            max_array_len=LONGEST_ARRAY,
            max_map_len=LARGEST_MAP,
            max_str_len=LONGEST_TEXT,
            max_bin_len=LONGEST_NAME,
            max_ext_len=0,
        )
        if not 0 <= float(at) <= LATEST:
            raise ValueError(f"the time {at!r:.40} is out of range")
        read = [_event(event) for event in events]
        return KvEventBatch(float(at), [event for event in read if event is not None])
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, msgpack.UnpackException) as error:
        raise Undecodable(f"not a batch of KV events: {type(error).__name__} {error}"[:300]) from None


def _event(raw: Any) -> Event | None:
    if isinstance(raw, list):
        kind, fields = raw[0], raw[1:]
        raw = dict(zip(_FIELDS.get(kind, ()), fields, strict=False))
        if isinstance(metadata := raw.get("lora_name"), dict):
            raw |= {"lora_name": None, "cache_salt": metadata.get("cache_salt")}
    else:
        kind = raw["type"]
    read = _READERS.get(kind)
    try:
        return read(raw) if read is not None else None
    except _Unmatched:
        return None


def _stored(raw: Any) -> BlocksStored:
    parent = raw.get("parent_block_hash")
    names = _names(raw["block_hashes"])
    tokens = _tokens(raw.get("token_ids") or ())
    size = int(raw["block_size"])
    kind, medium = raw.get("kv_cache_spec_kind"), raw.get("medium")
    extras, following = _extras(raw, parent is None, len(names)), _following(raw, len(names))
    whole = kind in _WHOLE and _is_aligned(raw, len(names), len(tokens) // TOKEN_BYTES, size)
    return BlocksStored(
        names=names,
        parent=_name(parent) if parent is not None else None,
        tokens=tokens,
        block_size=size,
        tier=_tier(medium),
        extras=after_tokens(following, extras) if following else extras,
        group=raw.get("group_idx"),
        whole=whole,
        looks_back=1 if kind == "full_attention" else None if kind is None else _looks_back(kind, raw),
        reports_removal=medium not in _UNTOLD,
        remote=medium == "EXTERNAL" or raw.get("locality") == "REMOTE",
        chunked=kind == _CHUNKED,
        ahead=len(following[0]) // TOKEN_BYTES if following else 0,
    )


def _following(raw: Any, blocks: int) -> Sequence[bytes]:
    """Return the tokens after each block that the block's name covers, as since vLLM 0.33 while it speculates."""
    given = raw.get("lookahead_token_ids")
    if given is None:
        return ()
    if len(given) != blocks or len({len(each) for each in given}) > 1 or (given and len(given[0]) > MOST_AHEAD):
        raise ValueError(f"lookahead_token_ids {given!r:.60}: 0 to {MOST_AHEAD} for each of {blocks} blocks, all alike")
    return [_tokens(each) for each in given]


def _looks_back(kind: object, raw: Any) -> int:
    window = raw.get("kv_cache_spec_sliding_window") if kind in _WINDOWS else None
    if window is None:
        return 1 if kind in _LAST else UNTOLD
    if not 1 <= window <= LONGEST_WINDOW:
        raise ValueError(f"a sliding window of {window!r:.40} tokens; allowed are 1 to {LONGEST_WINDOW:,}")
    return int(window) - 1


def _is_aligned(raw: Any, names: int, tokens: int, size: int) -> bool:
    """Return False for a further group of unknown kind whose events omit blocks that no hit can need."""
    # Blocks of earlier events on another tier have no tokens, and in some versions a size of 0 (vLLM 0.20).
    least = 1 if tokens else 0
    if not least <= size <= LARGEST_BLOCK or (tokens and tokens < size * names):
        raise ValueError(f"{tokens} tokens for {names} blocks of {size}")
    if not tokens or tokens < size * (names + 1):
        return True
    if raw.get("kv_cache_spec_kind") is None and raw.get("group_idx"):
        return False
    raise ValueError(f"{names} names for {tokens // size} blocks of {size} tokens: unclear which blocks they name")


def _removed(raw: Any) -> BlocksRemoved:
    names, counts = _names(raw["block_hashes"]), raw.get("remaining_copy_counts")
    remaining = names if counts is None else _remaining(names, counts)
    return BlocksRemoved(remaining, _tier(raw.get("medium")), raw.get("group_idx"))


def _remaining(names: Sequence[int], counts: Any) -> Mapping[int, int]:
    """Return the remaining copies. If a block is named twice, the later count applies."""
    if len(counts) != len(names) or not all(type(count) is int and 0 <= count <= MOST_COPIES for count in counts):
        raise ValueError(f"remaining_copy_counts {counts!r:.60}: 0 to {MOST_COPIES} for each of {len(names)} blocks")
    return dict(zip(names, counts, strict=True))


_FIELDS = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}
_READERS: dict[str, Callable[[Any], Event]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": lambda raw: BlocksCleared(),
}


def _names(names: Sequence[object]) -> Sequence[int]:
    try:
        return [(name * _SPREAD) & _WORD or 1 for name in names]  # type: ignore[operator]
    except (TypeError, OverflowError):  # bytes
        return [_name(name) for name in names]


def _name(name: object) -> int:
    number = int.from_bytes(name[-8:], "big") if isinstance(name, bytes) else name
    if not isinstance(number, int):
        raise TypeError(f"a block is named by {name!r:.60}")
    return (number * _SPREAD) & _WORD or 1


def _tokens(ids: Sequence[int]) -> bytes:
    if ids and isinstance(ids[0], list):
        raise ValueError("pairs of tokens, as SGLang sends them while it speculates (EAGLE): not followed")
    try:
        words = array("I", ids)
    except TypeError:
        if any(isinstance(token, str) for token in ids):  # TensorRT-LLM reports images as text
            raise _Unmatched from None
        raise
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _tier(medium: object) -> int:
    return DEVICE if medium is None else _MEDIA.get(str(medium).upper(), DISK)


def _extra(extra: object) -> bytes:
    return bytes(msgpack.packb(extra, default=str)) if extra else b""


def _extras(raw: Any, begins: bool, blocks: int) -> Sequence[bytes]:
    """Return the extra keys. `begins` is True if the first block is the first of a prompt."""
    given, adapter = raw.get("extra_keys"), raw.get("lora_name") or raw.get("lora_id")
    if given:
        return [_extra(extra) for extra in given] if any(given) else ()
    # vLLM's older events name only the adapter, SGLang's the adapter and the salt, which each later block inherits.
    salt = raw.get("cache_salt") if begins else None
    if isinstance(adapter or "", str) and isinstance(salt or "", str):
        return extra_keys(adapter or "", salt or "", blocks)
    return [_extra([adapter])] * blocks
