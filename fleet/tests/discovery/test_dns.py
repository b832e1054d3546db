"""A DNS name as a source: the queries, how long an answer is valid, and the effects of a bad answer."""

import contextlib
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.discovery import dns
from fleet.discovery.answer import SourceAway
from fleet.discovery.dns import DnsSource, Resolver
from fleet.discovery.dns_message import AAAA, SRV, A, BadMessage, parse, question
from fleet.tests.discovery.name_server import NameServer, name_of


@pytest.fixture
def server() -> Iterator[NameServer]:
    made = NameServer()
    yield made
    made.close()


def source(server: NameServer, given: str, **more: object) -> DnsSource:
    made = DnsSource.of(given)
    made.resolver = Resolver((server.address,), **more)  # type: ignore[arg-type]
    return made


def urls(source: DnsSource) -> list[str]:
    return [engine.url for engine in source.look()]


def test_every_address_of_the_name_is_an_engine_at_the_port(server: NameServer) -> None:
    server.records = {("engines.llm", A): ["10.0.0.7", "10.0.0.8"], ("engines.llm", AAAA): ["fd12::9"]}
    found = urls(source(server, "engines.llm:8000"))
    assert found == ["http://10.0.0.7:8000", "http://10.0.0.8:8000", "http://[fd12::9]:8000"]


def test_srv_records_name_the_ports(server: NameServer) -> None:
    server.records = {
        ("_http._tcp.llm", SRV): [("a.llm", 8001), ("b.llm", 8002)],
        ("a.llm", A): ["10.0.0.7"],
        ("b.llm", A): ["10.0.0.8"],
    }
    assert urls(source(server, "_http._tcp.llm")) == ["http://10.0.0.7:8001", "http://10.0.0.8:8002"]


def test_an_answer_is_valid_for_its_ttl_and_at_least_five_seconds(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(dns.time, "monotonic", lambda: now[0])
    server.records = {("engines.llm", A): ["10.0.0.7"]}
    for ttl_s, holds_s in ((0, 5.0), (30, 30.0), (86_400, 300.0)):
        server.ttl_s = ttl_s
        made = source(server, "engines.llm:8000")
        made.look()
        asked = len(server.asked)
        now[0] += holds_s - 0.1
        made.look()
        assert len(server.asked) == asked
        now[0] += 0.2
        made.look()
        assert len(server.asked) == asked + 2


def test_a_long_answer_is_requested_again_over_tcp(server: NameServer) -> None:
    server.over_tcp = True
    server.records = {("engines.llm", A): [f"10.0.1.{n}" for n in range(200)]}
    assert len(urls(source(server, "engines.llm:8000"))) == 200


def test_a_short_name_is_completed_as_the_host_completes_it(server: NameServer) -> None:
    server.records = {("engines.llm.svc.local", A): ["10.0.0.7"]}
    found = urls(source(server, "engines:8000", search=("other.local", "llm.svc.local"), ndots=5))
    assert found == ["http://10.0.0.7:8000"]
    assert [name for name, kind in server.asked if kind == A][:2] == ["engines.other.local", "engines.llm.svc.local"]


@pytest.mark.parametrize("code", [2, 5])
def test_a_server_that_fails_is_unreachable(server: NameServer, code: int) -> None:
    server.code = code
    with pytest.raises(SourceAway, match=f"error {code}"):
        source(server, "engines.invalid:8000").look()


def test_a_name_without_addresses_is_an_unreachable_source(server: NameServer) -> None:
    with pytest.raises(SourceAway, match=r"engines\.invalid has no address"):
        source(server, "engines.invalid:8000").look()
    with pytest.raises(SourceAway, match="no SRV records"):
        source(server, "_http._tcp.invalid").look()


def test_names_of_the_host_are_resolved_without_a_name_server(server: NameServer) -> None:
    assert "http://127.0.0.1:8000" in urls(source(server, "localhost:8000"))


def test_the_hosts_resolver_is_read(tmp_path: object) -> None:
    path = tmp_path / "resolv.conf"  # type: ignore[operator]
    path.write_text("# a comment\nnameserver 10.96.0.10\nsearch llm.svc local\noptions ndots:5 timeout:1\n")
    found = Resolver.of_host(str(path))
    assert found == Resolver((("10.96.0.10", 53),), ("llm.svc", "local"), 5)
    assert Resolver.of_host("/nowhere") == Resolver()


ASKED = question(7, "engines.llm", A)


@given(st.binary(max_size=300))
def test_any_bytes_are_accepted_as_a_reply_or_refused(raw: bytes) -> None:
    for reply in (raw, ASKED[:2] + b"\x81\x80" + ASKED[4:6] + b"\x00\x09\0\0\0\0" + ASKED[12:] + raw):
        with contextlib.suppress(BadMessage):
            parse(reply, ASKED)


def test_a_reply_to_another_question_is_refused() -> None:
    other = bytearray(question(7, "else.llm", A))
    other[2:4] = b"\x81\x80"
    for raw in (bytes(other), ASKED, b"\0\1" + bytes(other)[2:]):
        with pytest.raises(BadMessage):
            parse(raw, ASKED)


def test_a_name_that_is_its_own_alias_is_refused() -> None:
    at = len(ASKED)
    loop = struct.pack("!H", 0xC000 | at) + struct.pack("!HHIH", A, 1, 5, 4) + b"\x0a\0\0\7"
    raw = ASKED[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + ASKED[12:] + loop
    with pytest.raises(BadMessage, match="forwards"):
        parse(raw, ASKED)


def test_compressed_names_are_read() -> None:
    data = struct.pack("!HHH", 0, 0, 8001) + b"\1a" + struct.pack("!H", 0xC000 | 12)
    asked = question(7, "llm", SRV)
    raw = (
        asked[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + asked[12:] + b"\xc0\x0c" + struct.pack("!HHIH", SRV, 1, 5, len(data))
    )
    found = parse(raw + data, asked).records[0]
    assert (found.value, found.port) == ("a.llm", 8001)
    assert name_of("a.llm") == b"\1a\3llm\0"


def test_an_invalid_name_is_not_queried() -> None:
    with pytest.raises(BadMessage):
        question(1, "a..b", A)
