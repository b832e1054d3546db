"""A name server on loopback, whose records a test sets."""

import socket
import struct
import threading
from ipaddress import ip_address

from fleet.discovery.dns_message import AAAA, SRV, A

Value = str | tuple[str, int]  # an address, or (target, port)


def name_of(text: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in text.rstrip(".").split(".")) + b"\0"


def record(name: str, kind: int, ttl_s: int, value: Value) -> bytes:
    if isinstance(value, tuple):
        data = struct.pack("!HHH", 0, 0, value[1]) + name_of(value[0])
    else:
        data = ip_address(value).packed
    return name_of(name) + struct.pack("!HHIH", kind, 1, ttl_s, len(data)) + data


class NameServer:
    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Value]] = {}
        self.ttl_s = 5
        self.code = 0  # response code of every answer
        self.over_tcp = False  # True: UDP answers are cut off
        self.asked: list[tuple[str, int]] = []
        # TCP first: connections hold many of its ports, and hardly any of UDP's.
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.address = self._tcp.getsockname()
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(self.address)
        threading.Thread(target=self._serve_udp, daemon=True).start()
        threading.Thread(target=self._serve_tcp, daemon=True).start()

    def close(self) -> None:
        self._udp.close()
        self._tcp.close()

    def _serve_udp(self) -> None:
        while True:
            try:
                asked, sender = self._udp.recvfrom(65_535)
                self._udp.sendto(self.answer(asked, cut=self.over_tcp), sender)
            except OSError:
                return

    def _serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            with connection:
                size = struct.unpack("!H", connection.recv(2))[0]
                answer = self.answer(connection.recv(size))
                connection.sendall(struct.pack("!H", len(answer)) + answer)

    def answer(self, asked: bytes, cut: bool = False) -> bytes:
        at, labels = 12, []
        while asked[at]:
            labels.append(asked[at + 1 : at + 1 + asked[at]].decode())
            at += 1 + asked[at]
        name, kind = ".".join(labels), struct.unpack_from("!H", asked, at + 1)[0]
        self.asked.append((name, kind))
        known = any(one == name for one, _ in self.records)
        found = [record(name, kind, self.ttl_s, value) for value in self.records.get((name, kind), ())]
        code = self.code or (0 if known else 3)
        flags = 0x8180 | code | (0x0200 if cut else 0)
        number = struct.unpack_from("!H", asked)[0]
        header = struct.pack("!6H", number, flags, 1, 0 if cut else len(found), 0, 0)
        return header + asked[12:] + (b"" if cut else b"".join(found))


__all__ = ["AAAA", "SRV", "A", "NameServer", "name_of", "record"]
