"""The WebSocket: who may connect, what is sent, and how idle and slow sockets are handled."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
import redis
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import AnonymousUser

from controlplane.asgi import application
from controlplane.doors.api import sockets
from controlplane.doors.api.sockets import LiveHandshake
from controlplane.live.dashboard import bridge as bridges
from controlplane.live.dashboard import consumers
from controlplane.live.dashboard.bridge import DeflatedText, Viewer
from controlplane.live.dashboard.frame.types import unfolded
from controlplane.live.dashboard.step import step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.people.permissions import ROLE_SCOPES, Principal

VERA = Principal("user", "vera", "viewer", ROLE_SCOPES["viewer"], 1)
NOBODY = AnonymousUser()


async def signed_in(scope: dict[str, Any]) -> Principal:
    return VERA


def joining(user: Any, query: str = "") -> ApplicationCommunicator:
    """The consumer with a socket as the session middleware passes it on; browser tests use all of the stack."""
    session = SimpleNamespace(session_key="key")
    scope = {
        "type": "websocket",
        "path": "/ws/live",
        "query_string": query.encode(),
        "user": user,
        "session": session,
        "extensions": {"websocket.http.response": {}},
    }
    return ApplicationCommunicator(LiveHandshake(consumers.LiveConsumer.as_asgi()), scope)


async def connected(socket: Any) -> bool:
    await socket.send_input({"type": "websocket.connect"})
    return (await socket.receive_output(timeout=30))["type"] == "websocket.accept"


async def left(socket: Any) -> None:
    await socket.send_input({"type": "websocket.disconnect", "code": 1001})
    await socket.wait(timeout=30)


async def received(socket: Any) -> dict[str, Any]:
    message: dict[str, Any] = orjson.loads((await socket.receive_output(timeout=30))["text"])
    return message


@pytest.fixture
async def vera_socket(live_redis: redis.Redis) -> AsyncIterator[Any]:
    FakeFleet(live_redis).write()
    socket = joining(VERA, "seconds=300")
    assert await connected(socket)
    yield socket
    await left(socket)


async def test_a_viewer_gets_a_snapshot_and_then_frames(vera_socket: Any, live_redis: redis.Redis) -> None:
    snapshot = await received(vera_socket)
    assert snapshot["type"] == "snapshot"
    assert len(snapshot["frame"]["instances"]["id"]) == 8
    assert snapshot["history"]["seconds"] == 300
    following = await received(vera_socket)
    assert following["type"] == "frame"
    assert following["frame"]["at"] >= snapshot["frame"]["at"]


async def test_the_worker_s_frame_is_forwarded_unchanged(vera_socket: Any, live_redis: redis.Redis) -> None:
    await received(vera_socket)
    await received(vera_socket)  # subscribed by now
    text = await asyncio.to_thread(step, live_redis, time.time() + 5, "worker")
    assert text is not None
    sent = await received(vera_socket)
    while sent["frame"]["built_by"] != "worker":
        sent = await received(vera_socket)
    assert sent["frame"] == unfolded(orjson.loads(text))


@pytest.mark.parametrize("query", ["", "&deflate=1", "&folded=1", "&folded=1&deflate=1"])
async def test_only_clients_that_ask_for_compressed_columns_get_them(live_redis: redis.Redis, query: str) -> None:
    """A page of an earlier release reads lists and does not ask for compressed columns."""
    FakeFleet(live_redis).write()
    socket = joining(VERA, f"seconds=300{query}")
    assert await connected(socket)
    for kind in ("snapshot", "frame"):
        sent = await socket.receive_output(timeout=30)
        said = orjson.loads(zlib.decompress(sent["bytes"]) if "deflate" in query else sent["text"])
        states = said["frame"]["instances"]["state"]
        assert (said["type"], states) == (kind, {"of": ["ready"], "at": "0"} if "folded" in query else ["ready"] * 8)
    await left(socket)


async def test_a_message_is_compressed_once_for_all_viewers_that_ask_for_it(
    live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed: list[bytes] = []
    compress = zlib.compress

    def counted(text: bytes, level: int) -> bytes:
        compressed.append(text)
        return compress(text, level)

    monkeypatch.setattr(zlib, "compress", counted)
    FakeFleet(live_redis, size=50).write()
    sockets_of_viewers = [joining(VERA, "seconds=300&deflate=1") for _ in range(3)]
    plain = joining(VERA, "seconds=300")
    for socket in (*sockets_of_viewers, plain):
        assert await connected(socket)
        await socket.receive_output(timeout=30)
    compressed.clear()
    bridges.bridge.tell('{"type":"frame","n":1}')
    for socket in sockets_of_viewers:
        while zlib.decompress((await socket.receive_output(timeout=30))["bytes"]) != b'{"type":"frame","n":1}':
            pass  # a frame that was built meanwhile
    assert compressed.count(b'{"type":"frame","n":1}') == 1
    for socket in (*sockets_of_viewers, plain):
        await left(socket)


async def refused(socket: Any) -> tuple[int, dict[str, Any]]:
    """Return status and problem of a handshake that opens no WebSocket."""
    await socket.send_input({"type": "websocket.connect"})
    head = await socket.receive_output(timeout=30)
    assert head["type"] == "websocket.http.response.start"
    body = await socket.receive_output(timeout=30)
    return head["status"], orjson.loads(body["body"])


@pytest.mark.parametrize(("user", "status"), [(NOBODY, 401), (Principal("user", "no role", "", frozenset(), 2), 403)])
async def test_a_caller_without_the_permission_is_refused_before_a_socket_opens(user: Any, status: int) -> None:
    assert (await refused(joining(user)))[0] == status


@pytest.mark.parametrize("seconds", ["9" * 30, "9" * 6_000, "0", "-5", "soon"])
async def test_an_unknown_range_is_one_clear_error(seconds: str) -> None:
    status, problem = await refused(joining(VERA, f"seconds={seconds}"))
    assert (status, problem["detail"][:31]) == (422, "seconds: must be a whole number")


async def test_another_origin_is_refused() -> None:
    headers = [(b"host", b"127.0.0.1:8000"), (b"origin", b"https://elsewhere.example")]
    scope = {"type": "websocket", "path": "/ws/live", "query_string": b"", "headers": headers, "subprotocols": []}
    assert not await connected(ApplicationCommunicator(application, scope))


def handshake(*headers: tuple[bytes, bytes]) -> ApplicationCommunicator:
    """Open a socket through the whole web process, as a program does."""
    named = [(b"host", b"127.0.0.1:8000"), *headers]
    scope = {
        "type": "websocket",
        "path": "/ws/live",
        "query_string": b"",
        "headers": named,
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    return ApplicationCommunicator(application, scope)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> dict[str, Principal]:
    """Principals by Authorization header; tests of the API cover the lookup of tokens."""
    known: dict[str, Principal] = {}

    async def principal_of_header(header: str) -> Principal | None:
        return known.get(header)

    monkeypatch.setattr(sockets, "principal_of_header", principal_of_header)
    return known


@pytest.mark.parametrize("scope", ["live:read", "fleet:read"])
async def test_a_program_connects_with_a_token_that_has_the_scope(
    live_redis: redis.Redis, tokens: dict[str, Principal], scope: str
) -> None:
    FakeFleet(live_redis).write()
    tokens["Bearer ci"] = Principal("token", "ci (otto)", "operator", frozenset({scope}), 1)
    socket = handshake((b"authorization", b"Bearer ci"))
    if scope == "live:read":
        assert await connected(socket)
        assert (await received(socket))["type"] == "snapshot"
        await left(socket)
    else:
        assert (await refused(socket))[0] == 403


@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer unknown")], [(b"authorization", b"\xff")]])
async def test_a_program_without_credentials_gets_401(
    live_redis: redis.Redis, tokens: dict[str, Principal], headers: list[tuple[bytes, bytes]]
) -> None:
    assert (await refused(handshake(*headers)))[0] == 401


async def test_the_socket_of_a_revoked_token_is_closed(
    live_redis: redis.Redis, tokens: dict[str, Principal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "SIGNED_IN_CHECK_S", 0.1)
    tokens["Bearer ci"] = VERA
    socket = handshake((b"authorization", b"Bearer ci"))
    assert await connected(socket)
    tokens.clear()
    message = await socket.receive_output(timeout=30)
    while message["type"] != "websocket.close":
        message = await socket.receive_output(timeout=30)
    assert message["code"] == 4401


async def test_the_socket_of_an_ended_session_is_closed(
    live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def signed_out(scope: dict[str, Any]) -> AnonymousUser:
        return NOBODY

    monkeypatch.setattr(consumers, "SIGNED_IN_CHECK_S", 0.1)
    monkeypatch.setattr(consumers, "get_user", signed_out)
    socket = joining(VERA)
    assert await connected(socket)
    message = await socket.receive_output(timeout=30)
    while message["type"] != "websocket.close":
        message = await socket.receive_output(timeout=30)
    assert message["code"] == 4401
    for _ in range(3):
        if await socket.receive_nothing(timeout=0.3):
            break
        assert (await socket.receive_output())["type"] == "websocket.send", "closed twice"


async def test_without_redis_the_socket_says_what_is_wrong(redis_away: None) -> None:
    socket = joining(VERA)
    assert await connected(socket)
    assert (await received(socket))["what"] == "redis"
    await left(socket)


@pytest.mark.slow
async def test_a_socket_that_receives_nothing_for_7_s_stays_open(
    vera_socket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py 8 ends blocking reads after 5 s by default."""
    monkeypatch.setattr(consumers, "get_user", signed_in)
    monkeypatch.setattr(bridges, "FRAME_EVERY_S", 9.0)
    monkeypatch.setattr(bridges, "SILENT_S", 9.0)
    while not await vera_socket.receive_nothing(timeout=7):
        assert (await vera_socket.receive_output())["type"] == "websocket.send"
    monkeypatch.setattr(bridges, "FRAME_EVERY_S", 0.5)
    assert (await received(vera_socket))["type"] == "frame"


async def test_while_redis_does_not_answer_viewers_learn_that_the_server_is_alive(
    vera_socket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "get_user", signed_in)
    for pause in ("SILENT_S", "FRAME_EVERY_S"):
        monkeypatch.setattr(bridges, pause, 0.05)
    monkeypatch.setattr(bridges, "step", lambda *_: time.sleep(0.5))
    heard = [(await received(vera_socket))["type"]]
    while heard[-1] != "waiting" and len(heard) < 10:
        heard.append((await received(vera_socket))["type"])
    assert heard[-1] == "waiting"
    monkeypatch.setattr(bridges, "step", Mock(side_effect=redis.TimeoutError))
    while heard[-2:] != ["trouble", "trouble"] and len(heard) < 60:
        heard.append((await received(vera_socket))["type"])
    assert heard[-2:] == ["trouble", "trouble"]
    monkeypatch.setattr(bridges, "step", lambda *_: time.sleep(0.2))  # Redis answers, and there is no frame
    while heard[-1] != "waiting" and len(heard) < 200:
        heard.append((await received(vera_socket))["type"])
    assert heard[-1] == "waiting"


async def test_a_viewer_that_connects_as_the_last_one_leaves_is_served(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis).write()
    first, second = joining(VERA), joining(VERA)
    assert await connected(first)
    assert (await received(first))["type"] == "snapshot"
    await left(first)
    assert await connected(second)
    assert [(await received(second))["type"] for _ in range(2)] == ["snapshot", "frame"]
    await left(second)


async def test_a_slow_viewer_skips_frames_instead_of_queueing_them() -> None:
    viewer = Viewer()
    for text in ("1", "2", "3"):
        viewer.put(DeflatedText(text))
    assert (await viewer.take()).text == "3"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(viewer.take(), 0.01)


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("", 300),
        ("seconds=900", 900),
        ("seconds=301", 900),
        ("seconds=3601", 21_600),
        ("seconds=99999", 21_600),
    ],
)
def test_a_socket_gets_one_of_the_offered_ranges(query: str, seconds: int) -> None:
    assert consumers.asked_seconds(query.encode()) == seconds
