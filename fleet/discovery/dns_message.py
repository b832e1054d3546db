"""DNS queries and replies, as far as a list of engines needs them (RFC 1035, 2782, 3596)."""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

A, AAAA, SRV, CNAME = 1, 28, 33, 5
_INTERNET = 1
_HEADER = struct.Struct("!6H")
_RECORD = struct.Struct("!HHIH")
_TRUNCATED, _RESPONSE, _RECURSE = 0x0200, 0x8000, 0x0100
_MOST_RECORDS = 4096


class BadMessage(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class DnsRecord:
    kind: int
    ttl_s: int
    value: str  # an address; for SRV and CNAME the target's name
    port: int = 0  # port of an SRV record


@dataclass(frozen=True, slots=True)
class Reply:
    code: int  # response code; 0: no error
    truncated: bool
    records: tuple[DnsRecord, ...]


def question(number: int, name: str, kind: int) -> bytes:
    """Encode a query. Raise BadMessage for a name that cannot be queried."""
    labels = [label.encode("ascii", "replace") for label in name.rstrip(".").split(".")]
    if not all(1 <= len(label) <= 63 for label in labels):
        raise BadMessage(f"{name[:100]} is not a name")
    packed = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + packed + struct.pack("!HH", kind, _INTERNET)


def parse(raw: bytes, asked: bytes) -> Reply:
    """Decode a reply. Raise BadMessage unless it answers `asked`."""
    try:
        number, flags, questions, answers, _, _ = _HEADER.unpack_from(raw)
        end = len(asked)
        if number != _HEADER.unpack_from(asked)[0] or not flags & _RESPONSE or questions != 1:
            raise BadMessage("not the reply to the question")
        if raw[12:end].lower() != asked[12:].lower():
            raise BadMessage("the reply to another question")
        records = []
        at = end
        for _ in range(min(answers, _MOST_RECORDS)):
            at, record = _record(raw, at)
            if record is not None:
                records.append(record)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadMessage(f"not a DNS message: {error}") from None
    return Reply(flags & 0xF, bool(flags & _TRUNCATED), tuple(records))


def _record(raw: bytes, at: int) -> tuple[int, DnsRecord | None]:
    at, _ = _name(raw, at)
    kind, of, ttl_s, size = _RECORD.unpack_from(raw, at)
    at += _RECORD.size
    data = raw[at : at + size]
    if len(data) < size:
        raise BadMessage("not a DNS message: cut off")
    if of != _INTERNET:
        return at + size, None
    if kind == A and size == 4:
        return at + size, DnsRecord(kind, ttl_s, str(IPv4Address(data)))
    if kind == AAAA and size == 16:
        return at + size, DnsRecord(kind, ttl_s, str(IPv6Address(data)))
    if kind == SRV:
        port = struct.unpack_from("!HHH", data)[2]
        return at + size, DnsRecord(kind, ttl_s, _name(raw, at + 6)[1], port)
    return at + size, None


def _name(raw: bytes, at: int) -> tuple[int, str]:
    """Return (position after the name, the name). Pointers only lead backwards, so the loop ends."""
    labels: list[str] = []
    end, limit = -1, at
    while True:
        size = raw[at]
        if size & 0xC0 == 0xC0:
            target = struct.unpack_from("!H", raw, at)[0] & 0x3FFF
            if target >= limit:
                raise BadMessage("not a DNS message: a name that leads forwards")
            end, limit, at = (at + 2 if end < 0 else end), target, target
        elif size & 0xC0:
            raise BadMessage("not a DNS message: an unknown kind of label")
        elif size == 0:
            return (at + 1 if end < 0 else end), ".".join(labels)
        else:
            labels.append(raw[at + 1 : at + 1 + size].decode("ascii"))
            if len(labels) > 127:
                raise BadMessage("not a DNS message: a name without an end")
            at += 1 + size
