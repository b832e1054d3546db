"""Every client of an engine trusts and presents the certificates that its pool names, and explains TLS errors."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest
import uvloop

from router.contract.net import engine_tls, whereabouts
from router.contract.net.engine_tls import PLAIN, EngineTls, trouble
from router.contract.net.pinned_http import EngineTransport
from router.contract.net.probe import NotTrusted, ProbeError, Prober
from router.kv_events.sources import NoEvents, RankPlace, discover
from router.tests.certificates import Authority, Issued
from router.tests.engine import engine, reply
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import ConnectFailed, KeyMissing, UpstreamError
from router.upstream.fetch import get

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def due(monkeypatch):
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)


@dataclass
class Signed:
    """A trusted authority, an untrusted one, and a certificate from each."""

    own: Authority
    other: Authority
    good: Issued
    client: Issued

    @property
    def trusted(self) -> EngineTls:
        return EngineTls(authorities=f"file:{self.own.path}")

    def shown(self, client: Issued) -> EngineTls:
        return EngineTls(self.trusted.authorities, f"file:{client.certificate}", f"file:{client.key}")


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("tls")
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    return Signed(own, other, own.issue(HERE), own.issue("client"))


async def _of_prober(url: str, tls: EngineTls) -> str:
    prober = Prober()
    try:
        status, _ = await prober.get(f"{url}/health", 5, tls=tls)
        return str(status)
    finally:
        prober.keep_only(set())


async def _of_router(url: str, tls: EngineTls) -> str:
    return str((await get(url, "/health", 5, 1000, tls=tls))[0])


async def _of_control(url: str, tls: EngineTls) -> str:
    async with httpx.AsyncClient(transport=EngineTransport(url, "", certificates=tls), timeout=5) as client:
        return str((await client.get(f"{url}/health")).status_code)


async def _of_events(url: str, tls: EngineTls) -> str:
    try:
        await discover(url, RankPlace(tls=tls))
    except NoEvents as error:
        return "200" if "names no endpoint" in str(error) else str(error)
    return "events"


CLIENTS = (_of_prober, _of_router, _of_control, _of_events)


async def _said(context, tls: EngineTls) -> list[str]:
    """Return the result of each client."""
    found = []
    async with engine(reply({"sources": [{}]}), secure=context) as made:
        for client in CLIENTS:
            try:
                found.append(await client(made.url, tls))
            except (ProbeError, UpstreamError, httpx.HTTPError) as error:
                found.append(str(error))
    return found


# fault → (engine certificate, whether it requires client certificates, client certificate, error message)
CASES: dict[str, Callable[[Signed], tuple[Issued, bool, EngineTls, str]]] = {
    "nothing": lambda s: (s.good, False, s.trusted, "200"),
    "nothing, with a client certificate": lambda s: (s.good, True, s.shown(s.client), "200"),
    "nothing, for another name": lambda s: (
        *(s.own.issue("engines.llm"), False, EngineTls(s.trusted.authorities, name="engines.llm")),
        "200",
    ),
    "the authority": lambda s: (
        *(s.other.issue(HERE), False, s.trusted),
        "no authority that is trusted here has signed it (tls: authorities)",
    ),
    "the system's authorities": lambda s: (s.good, False, PLAIN, "no authority that is trusted here has signed it"),
    "the time": lambda s: (s.own.issue(HERE, expired=True), False, s.trusted, "certificate is refused: it has expired"),
    "the name": lambda s: (s.own.issue("engines.llm"), False, s.trusted, f"it is not for {HERE}; set tls: name to"),
    "no client certificate": lambda s: (s.good, True, s.trusted, "perhaps it asks for a client certificate"),
    "the client certificate": lambda s: (
        *(s.good, True, s.shown(s.other.issue("x"))),
        "it asks for a client certificate, or refuses it",
    ),
}


async def _all_said(signed: Signed) -> dict[str, list[str]]:
    made = {wrong: case(signed) for wrong, case in CASES.items()}
    return {
        wrong: await _said(issued.server(signed.own if asks else None), tls)
        for wrong, (issued, asks, tls, _) in made.items()
    }


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_each_client_of_an_engine_reports_the_same_about_its_certificate(run, signed):
    for wrong, said in run(_all_said(signed)).items():
        sentence = CASES[wrong](signed)[-1]
        assert [sentence in one for one in said] == [True] * len(CLIENTS), (wrong, said)


async def test_an_engine_without_tls_is_never_called_in_plain_text(signed):
    async def refuse(reader, writer):
        asked.append(await reader.read(5))
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    asked: list[bytes] = []
    server = await asyncio.start_server(refuse, HERE, 0)
    url = f"https://{HERE}:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(NotTrusted, match="it does not answer in TLS, as its address with https:// says"):
        await _of_prober(url, signed.trusted)
    with pytest.raises(ConnectFailed, match="it does not answer in TLS"):
        await _of_router(url, signed.trusted)
    assert not any(asked_in.startswith(b"GET") for asked_in in asked)
    server.close()


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def over_kept(upstream: ConnectionPool) -> None:
    connection = await upstream.open(REQUEST, connect_timeout_s=5, first_byte_timeout_s=5)
    await connection.peek_whole(1000)
    connection.release()


async def test_an_authority_that_is_removed_affects_the_next_request_even_on_kept_connections(signed, tmp_path):
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(own := signed.own.path.read_bytes())
    tls, prober = EngineTls(f"file:{trusted}"), Prober()
    control = httpx.AsyncClient(transport=EngineTransport("https://x", "", certificates=tls), timeout=5)
    async with engine(reply({}), secure=signed.good.server()) as made:
        upstream = ConnectionPool(made.url, tls)
        for _ in range(2):
            await over_kept(upstream)
            await prober.get(made.url, 5, tls=tls)
            await control.get(made.url)
        assert made.accepted == 3
        trusted.write_bytes(signed.other.path.read_bytes())
        with pytest.raises(ConnectFailed, match="no authority that is trusted here"):
            await over_kept(upstream)
        with pytest.raises(NotTrusted, match="no authority that is trusted here"):
            await prober.get(made.url, 5, tls=tls)
        with pytest.raises(httpx.ConnectError, match="no authority that is trusted here"):
            await control.get(made.url)
        trusted.unlink()
        with pytest.raises(KeyMissing, match="its TLS authority is missing"):
            await over_kept(upstream)
        trusted.write_bytes(own)
        await over_kept(upstream)
        await prober.get(made.url, 5, tls=tls)
        assert (await control.get(made.url)).status_code == 200
        prober.keep_only(set())
        upstream.close()
        await control.aclose()


async def test_an_engine_on_a_kept_connection_is_judged_by_changed_certificates(signed):
    prober = Prober()
    async with engine(reply({}), secure=signed.good.server()) as made:
        assert (await prober.get(made.url, 5, tls=signed.trusted))[0] == 200
        assert (await prober.get(made.url, 5, tls=signed.trusted))[0] == 200
        assert made.accepted == 1
        with pytest.raises(NotTrusted, match="no authority that is trusted here"):
            await prober.get(made.url, 5, tls=PLAIN)
        prober.keep_only(set())


async def test_a_changed_name_alone_affects_connections_that_are_kept_or_in_use(signed, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(signed.own.path))
    monkeypatch.setattr(engine_tls, "_contexts", {})
    mine, others = EngineTls(name="engines.llm"), EngineTls(name="other.llm")
    prober = Prober()
    async with engine(reply({}), secure=signed.own.issue("engines.llm").server()) as made:
        upstream = ConnectionPool(made.url, mine)
        await over_kept(upstream)
        in_use = await upstream.open(REQUEST, connect_timeout_s=5, first_byte_timeout_s=5)
        await in_use.peek_whole(1000)
        upstream.secure_by(others)
        in_use.release()
        with pytest.raises(ConnectFailed, match=r"it is not for other\.llm"):
            await over_kept(upstream)
        assert (await prober.get(made.url, 5, tls=mine))[0] == 200
        with pytest.raises(NotTrusted, match=r"it is not for other\.llm"):
            await prober.get(made.url, 5, tls=others)
        prober.keep_only(set())
        upstream.close()


async def test_certificates_that_cannot_be_read_count_against_no_engine(signed):
    async with engine(reply({}), secure=signed.good.server()) as made:
        with pytest.raises(KeyMissing, match="authority is missing: the environment variable NO_TLS"):
            await _of_router(made.url, EngineTls("env:NO_TLS"))
        with pytest.raises(NotTrusted, match="its TLS authority is missing"):
            await _of_prober(made.url, EngineTls("env:NO_TLS"))
        assert made.accepted == 0


def test_problems_of_named_certificates_are_reported(signed, monkeypatch):
    assert trouble(signed.shown(signed.client)) == ""
    stranger = signed.other.issue("x")
    mixed = EngineTls("", f"file:{signed.client.certificate}", f"file:{stranger.key}")
    assert "the key is that of another certificate" in trouble(mixed)
    monkeypatch.setenv("MY_TLS", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----")
    assert "no certificate in it that can be read" in trouble(EngineTls("env:MY_TLS"))
    assert "must be PEM text" in trouble(EngineTls("", "env:MY_TLS"))
    monkeypatch.setenv("MY_TLS", f"# Főtanúsítvány\n{signed.own.path.read_text()}")
    assert trouble(EngineTls("env:MY_TLS")) == ""
    both = signed.client.certificate.read_text() + signed.client.key.read_text()
    monkeypatch.setenv("MY_TLS", both)
    assert trouble(EngineTls(signed.trusted.authorities, "env:MY_TLS")) == ""


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, True),
        ({"authorities": "system"}, True),
        ({"authorities": "env:ENGINES_TLS", "name": "engines.llm"}, True),
        ({"certificate": "file:/c.pem", "key": "file:/k.pem"}, True),
        ({"key": "file:/k.pem"}, False),
        ({"certificate": "system"}, False),
        ({"authorities": "env:WEIR_SECRET_KEY"}, False),
        ({"authorities": "file:/a/../b"}, False),
        ({"name": "a b"}, False),
        ({"name": "a..b"}, False),
        ({"name": "x" * 64}, False),
        ({"name": ".a"}, False),
        ({"name": "fe80::1%a..b"}, False),
        ({"name": "a." * 100 + "a"}, True),
        ({"name": "fd00::1"}, True),
        ({"verify": "no"}, False),
    ],
)
def test_a_pool_names_certificates_by_their_location(given, allowed):
    assert bool(engine_tls.is_allowed(given)) is allowed


@pytest.mark.parametrize("busy", [False, True])
async def test_connections_with_other_certificates_get_no_further_request(signed, busy):
    async with engine(reply({}), secure=signed.good.server()) as made:
        upstream = ConnectionPool(made.url, signed.trusted)
        connection = await upstream.open(REQUEST, connect_timeout_s=5, first_byte_timeout_s=5)
        await connection.peek_whole(1000)
        if busy:
            upstream.secure_by(PLAIN)
        connection.release()
        upstream.secure_by(PLAIN)
        with pytest.raises(ConnectFailed):
            await upstream.open(REQUEST, connect_timeout_s=5, first_byte_timeout_s=5)
        upstream.close()
