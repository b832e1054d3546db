"""The stored row of a frame, as fields of a Redis stream. Pure. Charts of many instances read hundreds of rows but need
only the KV usage, which takes one byte per instance; the figures for the charts of one instance, pool or node are in a
separate field.
"""

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import compress

import orjson

from controlplane.live.dashboard.frame.types import HistoryRow, KeptLoads

PACKED, LOADS = "b", "l"  # fields, each JSON in a zlib stream
DEFLATE_LEVEL = 1
STEPS = 250  # steps of KV usage from 0 to 1; the byte is the step + 1, or 0 if unknown


def kv_bytes(usages: Iterable[float | None]) -> bytes:
    return bytes([0 if usage is None else 1 + int(min(1.0, max(0.0, usage)) * STEPS + 0.5) for usage in usages])


def kv_usage(byte: int) -> float | None:
    """Return the KV usage, 0 to 1, for a byte."""
    return (byte - 1) / STEPS if byte else None


def joined(names: Iterable[str]) -> str:
    """Join names to a row's `ids`: a single text, so that it is read and compared as a whole."""
    return "\n".join(names)


@lru_cache(maxsize=16)
def names(ids: str) -> tuple[str, ...]:
    """Return the names of a row's instances; most rows have the same names as the previous row."""
    return tuple(ids.split("\n")) if ids else ()


def only(row: HistoryRow, kept: Collection[str]) -> tuple[str, bytes]:
    """Return `ids` and `kv` of some instances only."""
    chosen = [name in kept for name in names(row["ids"])]
    return joined(compress(names(row["ids"]), chosen)), bytes(compress(row["kv"], chosen))


def pack(row: HistoryRow) -> dict[str, bytes]:
    seen = {"at": row["at"], "classes": row["classes"], "ids": row["ids"], "kv": base64.b64encode(row["kv"]).decode()}
    return {PACKED: _deflated(seen), LOADS: _deflated(row.get("loads"))}


def _deflated(value: object) -> bytes:
    return zlib.compress(orjson.dumps(value), DEFLATE_LEVEL)


def unpack(fields: Mapping[bytes, bytes], *, loads: bool) -> HistoryRow | None:
    """Read a row; None if another release wrote it. With `loads`, also read the figures that only `load_series`
    uses."""
    packed = fields.get(PACKED.encode())
    if packed is None:
        return None
    row: HistoryRow = orjson.loads(zlib.decompress(packed))
    row["kv"] = base64.b64decode(row["kv"])
    kept: KeptLoads | None = orjson.loads(zlib.decompress(fields[LOADS.encode()])) if loads else None
    if kept is not None:
        row["loads"] = kept
    return row
