"""A DNS name as a source: all of its addresses, looked up again when the answer expires.

The operating system's resolver is asked if no name server knows the name, as /etc/hosts has names, too. It returns
neither SRV records nor the lifetime of an answer.
"""

import random
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from fleet.discovery.answer import SourceAway
from fleet.kinds.listed import ListedEngine

LEAST_S, MOST_S = 5.0, 300.0  # limits of the interval between two look-ups
TIMEOUT_S = 2.0  # limit of one query to one server
_LARGEST = 65_535
Server = tuple[str, int]


# DNS queries and replies, as far as a list of engines needs them (RFC 1035, 2782, 3596)
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
    """Encode a query. Raise BadMessage for a name that cannot be asked for."""
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
    """Return (position behind the name, the name); pointers lead only backwards, so it ends."""
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


@dataclass(frozen=True, slots=True)
class Resolver:
    """Queries the servers of /etc/resolv.conf, with its rules for short names."""

    servers: tuple[Server, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = 1

    @classmethod
    def of_host(cls, file: str = "/etc/resolv.conf") -> "Resolver":
        servers: list[Server] = []
        search: tuple[str, ...] = ()
        ndots = 1
        try:
            lines = Path(file).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for words in (line.split() for line in lines):
            match words:
                case ["nameserver", address, *_]:
                    servers.append((address, 53))
                case ["search" | "domain", *domains]:
                    search = tuple(domains)
                case ["options", *options]:
                    given = [one.removeprefix("ndots:") for one in options if one.startswith("ndots:")]
                    ndots = int(given[0]) if given and given[0].isdecimal() else ndots
        return cls(tuple(servers[:3]), search, ndots)

    def names(self, name: str) -> list[str]:
        """Return the full names, in the order in which they are tried."""
        if name.endswith("."):
            return [name]
        longer = [f"{name}.{domain.rstrip('.')}" for domain in self.search]
        return [name, *longer] if name.count(".") >= self.ndots else [*longer, name]

    def ask(self, name: str, kind: int) -> tuple[DnsRecord, ...]:
        """Return the records of that kind; empty if no server knows one. Raise SourceAway if no server answers."""
        failed = "no name server is configured"
        for server in self.servers:
            try:
                for each in self.names(name):
                    reply = _exchange(server, question(random.getrandbits(16), each, kind))
                    found = tuple(record for record in reply.records if record.kind == kind)
                    if found or reply.code == 0:
                        return found
                return ()
            except (OSError, BadMessage) as error:
                failed = f"name server {server[0]}: {error or type(error).__name__}"
        raise SourceAway(failed)


def _exchange(server: Server, asked: bytes) -> Reply:
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    end = time.monotonic() + TIMEOUT_S
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.connect(server)  # the kernel drops packets from elsewhere
        udp.send(asked)
        while True:
            udp.settimeout(max(0.01, end - time.monotonic()))
            try:
                reply = parse(udp.recv(_LARGEST), asked)
            except BadMessage:
                if time.monotonic() >= end:
                    raise
                continue  # perhaps forged; the true reply may still come
            break
    return _over_tcp(server, asked) if reply.truncated else _fine(reply)


def _over_tcp(server: Server, asked: bytes) -> Reply:
    with socket.create_connection(server, TIMEOUT_S) as tcp:
        tcp.sendall(struct.pack("!H", len(asked)) + asked)
        size = struct.unpack("!H", _read(tcp, 2))[0]
        return _fine(parse(_read(tcp, size), asked))


def _read(tcp: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = tcp.recv(size - len(parts))
        if not part:
            raise OSError("the answer was cut off")
        parts += part
    return parts


def _fine(reply: Reply) -> Reply:
    if reply.code not in (0, 3):  # 3: no such name
        raise OSError(f"answers with the error {reply.code}")
    return reply


@dataclass(slots=True)
class DnsSource:
    name: str
    port: int  # port of the engines; 0: that of SRV records
    resolver: Resolver = field(default_factory=Resolver.of_host)
    due_at: float = 0.0  # monotonic time of the next look-up
    found: list[ListedEngine] = field(default_factory=list)

    @classmethod
    def of(cls, given: str) -> "DnsSource":
        name, _, port = given.rpartition(":") if ":" in given else (given, "", "0")
        return cls(name, int(port))

    def look(self) -> list[ListedEngine]:
        """Return the engines of the latest answer while it holds, else look them up. Raise SourceAway."""
        if time.monotonic() >= self.due_at:
            self.due_at = time.monotonic() + LEAST_S
            self.found, ttl_s = self._engines() if self.port else self._served()
            self.due_at = time.monotonic() + min(MOST_S, max(LEAST_S, ttl_s))
        return self.found

    def close(self) -> None:
        pass

    def _engines(self) -> tuple[list[ListedEngine], float]:
        addresses, ttl_s = self._addresses(self.name)
        return [_engine(address, self.port) for address in addresses], ttl_s

    def _served(self) -> tuple[list[ListedEngine], float]:
        records = self.resolver.ask(self.name, SRV)
        if not records:
            raise SourceAway(f"{self.name} has no SRV records")
        found, shortest = [], float(min(record.ttl_s for record in records))
        for record in records:
            addresses, ttl_s = self._addresses(record.value + ".")
            found += [_engine(address, record.port) for address in addresses]
            shortest = min(shortest, ttl_s)
        return found, shortest

    def _addresses(self, name: str) -> tuple[list[str], float]:
        """Return the addresses and their TTL. Raise SourceAway if there are none, which says nothing of the engines."""
        try:
            records = [*self.resolver.ask(name, A), *self.resolver.ask(name, AAAA)]
            failed = f"{name} has no address"
        except SourceAway as away:
            records, failed = [], str(away)
        if records:
            return [record.value for record in records], float(min(record.ttl_s for record in records))
        try:
            return _of_system(name), LEAST_S
        except OSError:
            raise SourceAway(failed) from None


def _of_system(name: str) -> list[str]:
    entries: Sequence[tuple[object, ...]] = socket.getaddrinfo(name.rstrip("."), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))  # type: ignore[index]  # an address


def _engine(address: str, port: int) -> ListedEngine:
    host = f"[{address}]" if ip_address(address.partition("%")[0]).version == 6 else address
    return ListedEngine(key=f"http://{host}:{port}", url=f"http://{host}:{port}", name=f"{host}:{port}")
