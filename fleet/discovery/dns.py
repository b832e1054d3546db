"""A DNS name as a source: all of its addresses, looked up again when the answer expires. If no name server knows the
name, the operating system's resolver is asked, because /etc/hosts may contain it; but that resolver returns neither SRV
records nor the lifetime of an answer.
"""

import random
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from fleet.discovery.answer import SourceAway
from fleet.discovery.dns_message import AAAA, SRV, A, BadMessage, DnsRecord, Reply, parse, question
from fleet.kinds.listed import ListedEngine

LEAST_S, MOST_S = 5.0, 300.0  # limits of the interval between look-ups
TIMEOUT_S = 2.0  # limit of one query to one server
_LARGEST = 65_535
Server = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Resolver:
    """Queries the servers in /etc/resolv.conf, with its rules for short names."""

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
                continue  # perhaps a forged reply; the true one may still arrive
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
    if reply.code not in (0, 3):  # response code 3: no such name
        raise OSError(f"answers with the error {reply.code}")
    return reply


@dataclass(slots=True)
class DnsSource:
    name: str
    port: int  # port of the engines; 0: the port in SRV records
    resolver: Resolver = field(default_factory=Resolver.of_host)
    due_at: float = 0.0  # monotonic time of the next look-up
    found: list[ListedEngine] = field(default_factory=list)

    @classmethod
    def of(cls, given: str) -> "DnsSource":
        name, _, port = given.rpartition(":") if ":" in given else (given, "", "0")
        return cls(name, int(port))

    def look(self) -> list[ListedEngine]:
        """Return the engines of the latest answer while it is valid, otherwise look them up. Raise SourceAway."""
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
        """Return the addresses and their TTL. Raise SourceAway if there are none, which says nothing about the
        engines."""
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
