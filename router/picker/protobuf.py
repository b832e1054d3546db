"""The part of Protocol Buffers' wire format that the picker's messages need. Pure.

Envoy's own definitions need 2 MB of generated code, whereas a picker reads six fields and writes ten
(https://protobuf.dev/programming-guides/encoding/).
"""

from collections.abc import Iterable

from router.contract.values.varint import varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
LONGEST_VARINT = 10  # bytes

Fields = dict[int, list[int | bytes]]  # by number, in order; fixed-width values as bytes


class Malformed(ValueError):
    pass


def fields(message: bytes) -> Fields:
    """Parse a message. Raise Malformed."""
    found: Fields = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(message, at)
        elif kind == BYTES or kind in _FIXED:
            size, at = _varint(message, at) if kind == BYTES else (_FIXED[kind], at)
            value, at = message[at : at + size], at + size
        else:
            raise Malformed(f"wire type {kind} at byte {at}: allowed are 0, 1, 2 and 5")
        if at > len(message):
            raise Malformed(f"a field extends beyond the message's {len(message)} bytes")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return (value, end position)."""
    value = 0
    for shift, byte in enumerate(message[at : at + LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise Malformed(f"a number has no end at byte {at}")


def messages(of: Fields, number: int) -> list[bytes]:
    """Return all values of a repeated field of messages, strings or bytes."""
    return [value for value in of.get(number, ()) if isinstance(value, bytes)]


def message(of: Fields, number: int) -> bytes:
    """Return the last value, as Protocol Buffers specifies; empty if absent."""
    found = messages(of, number)
    return found[-1] if found else b""


def number(of: Fields, number: int) -> int:
    """Return the last value; 0 if absent."""
    found = of.get(number, ())
    return next((value for value in reversed(found) if isinstance(value, int)), 0)


def mapping(of: Fields, number: int) -> Iterable[tuple[str, bytes]]:
    """Return a map from strings to messages."""
    for entry in messages(of, number):
        both = fields(entry)
        yield message(both, 1).decode("utf-8", "replace"), message(both, 2)


def put(number: int, value: int | bytes | str) -> bytes:
    """Write one field, numbers and bools as varints; zero and empty values are written as well."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return b"%b%b%b" % (varint(number << 3 | BYTES), varint(len(data)), data)
