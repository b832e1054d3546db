"""Small requests that cause much work: each is limited in CPU seconds, memory and open files (docs/limits.md).
The limits here are several times what is measured, and far below what the same attacks cost without protection.
"""

import contextlib
import gzip
import json
import socket
import threading
import time

import pytest

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(400)]

CHAT = "/v1/chat/completions"
HALF_OPEN = 300
MB = 2**20


@contextlib.contextmanager
def costing(target, server, *, cpu_s, rss_mb=64.0, files=20):
    """Check that the serving process uses at most this much more of each resource."""
    before = target.usage(server)
    yield
    after = target.usage(server)
    spent = {
        "cpu_s": after.cpu_s - before.cpu_s,
        "rss_mb": after.rss_mb - before.rss_mb,
        "files": after.files - before.files,
    }
    allowed = {"cpu_s": cpu_s, "rss_mb": rss_mb, "files": files}
    print(f"{server}: " + ", ".join(f"{name} {spent[name]:.1f} of {allowed[name]:g}" for name in spent))
    assert {name: spent[name] for name in spent if spent[name] > allowed[name]} == {}


@contextlib.contextmanager
def still_answering(target, server):
    """Check that /healthz answers throughout; the longest wait is added to `waits`."""
    waits, ended = [], threading.Event()

    def ask():
        while not ended.is_set():
            began = time.monotonic()
            assert target.request(server, "GET", "/healthz")[0] == 200
            waits.append(time.monotonic() - began)
            time.sleep(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield waits
    finally:
        ended.set()
        asking.join()


def squeezed(raw):
    return gzip.compress(raw, 9)


# Before bodies were limited, 32 kB on the wire took 16 CPU seconds and 25 s without an answer.
BOMBS = {
    "zeroes": squeezed(b'{"a":"' + b"0" * (8 * MB) + b'"}'),
    "lists": squeezed(b"[" + b"[]," * (32 * MB // 3) + b"[]]"),
    "nested": squeezed(b"[" * (4 * MB)),
    "digits": squeezed(b'{"model":' + b"9" * (16 * MB) + b"}"),
    "objects": squeezed(b'{"messages":[' + b"{}," * (8 * MB // 3) + b"{}]}"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_compressed_body_costs_little_and_blocks_no_other_client(target, bomb):
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    with costing(target, "router", cpu_s=4.0, rss_mb=200.0), still_answering(target, "router") as waits:
        for _ in range(3):
            status = target.request("router", "POST", CHAT, BOMBS[bomb], **headers)[0]
            assert 400 <= status < 500
    assert waits
    assert max(waits) < 3.0


def test_a_flood_of_trailers_is_cut_off_and_not_stored(target):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n".encode()
    with costing(target, "router", cpu_s=2.0):
        target.send("router", head + b"x-trailer: " + b"a" * 200 + b"\r\n" * 1)
        target.send("router", head + b"x-trailer: aaaaaaaaaaaaaaaaaaaa\r\n" * 800_000)
    assert target.troubles() == []


@pytest.mark.parametrize("server", ["router", "web"])
def test_endless_headers_are_cut_off(target, server):
    with costing(target, server, cpu_s=2.0):
        target.send(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * (60 * MB))
        target.send(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 1_000_000)
    assert target.troubles() == []


@pytest.mark.parametrize("server", ["router", "web"])
def test_half_open_requests_keep_no_client_out_and_are_closed(target, server):
    with contextlib.ExitStack() as held:
        for _ in range(HALF_OPEN):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", target.port(server)), timeout=30))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        assert target.troubles() == []
        first = socket.socket(fileno=connection.detach())
        held.enter_context(first)
        first.settimeout(60)
        with contextlib.suppress(ConnectionError):
            while first.recv(4_096):
                pass
    assert target.troubles() == []


MANY = 1_100  # more than the web server's limit of connections
WEBSOCKET = (
    b"GET /ws/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("sent", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n", WEBSOCKET], ids=["half heads", "strangers"])
def test_more_connections_than_the_limit_keep_no_client_out(target, sent):
    with contextlib.ExitStack() as held, still_answering(target, "web") as waits:
        for _ in range(MANY):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", target.web), timeout=30))
            connection.sendall(sent)
        asked = len(waits)
        while len(waits) < asked + 20:
            time.sleep(0.05)
    print(f"{MANY} connections: the longest wait of {len(waits)} others was {max(waits):.2f} s")
    assert max(waits) < 3.0


def test_a_large_body_of_a_stranger_is_refused_before_it_is_read(target):
    length = 100 * MB
    head = f"POST /api/v1/traces?name=x HTTP/1.1\r\nHost: 127.0.0.1:{target.web}\r\nContent-Length: {length}\r\n\r\n"
    with costing(target, "web", cpu_s=2.0, rss_mb=80.0):
        answer = target.send("web", head.encode() + b"a" * length)
    assert answer == b"" or int(answer.split()[1]) in (400, 401, 403, 413)


@pytest.mark.parametrize(
    "document",
    [
        "a: " + "1:" * 20_000 + "1",
        "a: " + "[" * 20_000,
        "a: [" + "1, " * 300_000 + "1]",
        "a: &a [x]\nb: " + "[*a, " * 5_000,
    ],
    ids=["sexagesimal", "nested", "long", "aliases"],
)
def test_a_fleet_document_that_is_hard_to_parse_costs_little(target, document):
    body = json.dumps({"document": document})
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    with costing(target, "web", cpu_s=3.0, rss_mb=150.0):
        status, _, text = target.request("web", "PUT", "/api/v1/fleet?dry_run=true", body, **headers)
        assert 400 <= status < 500, text
        headers["Content-Type"] = "application/yaml"
        status, _, text = target.request("web", "PUT", "/api/v1/fleet?dry_run=true", document, **headers)
        assert 400 <= status < 500, text


def test_an_upload_with_absurd_runs_delays_no_other_writer(target):
    """Each line describes a prompt of a billion tokens."""
    blocks = list(range(400))
    lines = "\n".join(
        json.dumps({"timestamp": i, "input_length": 10**9, "output_length": 10**9, "hash_ids": blocks})
        for i in range(41)
    )
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/octet-stream"}
    answers = []

    def write():
        for i in range(10):
            answers.append(target.api("POST", "/tokens", {"name": f"beside {i}", "scopes": ["live:read"]})[0])

    beside = threading.Thread(target=write)
    beside.start()
    with costing(target, "web", cpu_s=8.0, rss_mb=200.0):
        status = target.request("web", "POST", "/api/v1/traces?name=absurd.jsonl", lines, **headers)[0]
        beside.join()
    assert status < 500
    print(f"{answers.count(201)} of {len(answers)} other writers were served")
    assert answers == [201] * 10


def test_many_wrong_passwords_are_slowed_down(target):
    answers = []

    def guess(i):
        answers.append(target.request("web", "POST", "/login", f"username=admin&password=guess-{i}")[0])

    with costing(target, "web", cpu_s=10.0, rss_mb=400.0):
        threads = [threading.Thread(target=guess, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 302 not in answers
    assert target.request("web", "GET", "/healthz")[0] == 200
