"""Tables as Parquet files, which notebooks and DuckDB read with their types.
This is the subset that a flat table of booleans, integers, numbers and texts needs: one page per column, PLAIN,
compressed with gzip. PyArrow would add 150 MB to the installation. Format: github.com/apache/parquet-format. Pure.
"""

import gzip
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from router.contract.values.varint import varint

MAGIC = b"PAR1"
OPTIONAL, UTF8, DATA_PAGE, PLAIN, RLE, GZIP = 1, 0, 0, 0, 3, 2
Value = int | float | str | None
Field = tuple[int, int, bytes]  # number, type, content


@dataclass(frozen=True, slots=True)
class Type:
    number: int
    plain: Callable[[Sequence[Value]], bytes]


def _fixed(code: str) -> Callable[[Sequence[Value]], bytes]:
    return lambda values: struct.pack(f"<{len(values)}{code}", *values)


def _texts(values: Sequence[Value]) -> bytes:
    encoded = [str(value).encode() for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def _bits(values: Sequence[Value]) -> bytes:
    return sum(1 << i for i, value in enumerate(values) if value).to_bytes((len(values) + 7) // 8, "little")


TYPES: Mapping[type, Type] = {
    bool: Type(0, _bits),
    int: Type(2, _fixed("q")),
    float: Type(5, _fixed("d")),
    str: Type(6, _texts),
}


def table(columns: Mapping[str, tuple[type, Sequence[Value]]]) -> bytes:
    """Return a file with at least one column. `columns` maps each name to (bool, int, float or str; its values)."""
    body, chunks = bytearray(MAGIC), []
    rows = len(next(iter(columns.values()))[1])
    for name, (kind, values) in columns.items():
        chunks.append(_chunk(name, TYPES[kind], values, body))
    root = _struct(_text(4, "schema"), _number(5, len(columns)))
    schema = [root, *(_element(name, kind) for name, (kind, _) in columns.items())]
    group = _struct(_list(1, 12, chunks), _number(2, len(body) - len(MAGIC), I64), _number(3, rows, I64))
    footer = _struct(
        _number(1, 1), _list(2, 12, schema), _number(3, rows, I64), _list(4, 12, [group]), _text(6, "weir")
    )
    return bytes(body) + footer + struct.pack("<I", len(footer)) + MAGIC


def _element(name: str, kind: type) -> bytes:
    fields = [_number(1, TYPES[kind].number), _number(3, OPTIONAL), _text(4, name)]
    return _struct(*fields, *([_number(6, UTF8)] if kind is str else []))


def _chunk(name: str, kind: Type, values: Sequence[Value], body: bytearray) -> bytes:
    """Append the column's page to the body; return its metadata."""
    page = _levels(values) + kind.plain([value for value in values if value is not None])
    packed = gzip.compress(page, mtime=0)
    header = _struct(
        _number(1, DATA_PAGE),
        _number(2, len(page)),
        _number(3, len(packed)),
        (5, STRUCT, _struct(_number(1, len(values)), _number(2, PLAIN), _number(3, RLE), _number(4, RLE))),
    )
    offset = len(body)
    body += header + packed
    about = _struct(
        _number(1, kind.number),
        _list(2, I32, [varint(_zigzag(PLAIN)), varint(_zigzag(RLE))]),
        _list(3, BINARY, [_sized(name.encode())]),
        _number(4, GZIP),
        _number(5, len(values), I64),
        _number(6, len(header) + len(page), I64),
        _number(7, len(header) + len(packed), I64),
        _number(9, offset, I64),
    )
    return _struct(_number(2, offset, I64), (3, STRUCT, about))


def _levels(values: Sequence[Value]) -> bytes:
    """Encode which values are present, one bit each, in groups of eight."""
    groups = (len(values) + 7) // 8
    bits = sum(1 << i for i, value in enumerate(values) if value is not None)
    run = varint(groups << 1 | 1) + bits.to_bytes(groups, "little")
    return struct.pack("<I", len(run)) + run


# Thrift's compact protocol

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def _struct(*fields: Field) -> bytes:
    out, last = bytearray(), 0
    for number, kind, content in fields:
        out.append((number - last) << 4 | kind)
        out += content
        last = number
    return bytes(out) + b"\0"


def _number(number: int, value: int, kind: int = I32) -> Field:
    return number, kind, varint(_zigzag(value))


def _text(number: int, text: str) -> Field:
    return number, BINARY, _sized(text.encode())


def _list(number: int, kind: int, items: Iterable[bytes]) -> Field:
    items = list(items)
    size = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
    return number, LIST, size + b"".join(items)


def _sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else ~(value << 1)
