"""The pages that may open the WebSocket: those of the same host and port, as cookies do not distinguish ports."""

from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from controlplane.doors.api.sockets import OwnOrigins, is_own


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("https://localhost", "localhost"),
        ("https://localhost:443", "localhost"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://weir.example", "10.0.0.1:8000"),  # an allowed host over HTTPS, behind a proxy that changes Host
    ],
)
def test_the_servers_own_origin_is_accepted(settings: Any, origin: str, host: str) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://weir.example"]
    assert is_own(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:9000", "localhost:8000"),
        ("https://127.0.0.1", "127.0.0.1:8000"),  # cookies are sent to every port
        ("https://localhost", "127.0.0.1:8000"),
        ("https://[::1]", "[::1]:8000"),
        ("http://localhost", "localhost:8000"),
        ("http://evil.example:8000", "localhost:8000"),
        ("http://evil.example", "evil.example"),  # not an allowed host
        ("http://localhost.evil.example:8000", "localhost:8000"),
        ("null", "localhost:8000"),
        ("", "localhost:8000"),
        ("file://", "localhost"),
        ("http://localhost:99999", "localhost:8000"),
        ("http://localhost:8000", ""),
        ("http://[::1", "localhost"),
    ],
)
def test_another_origin_is_refused(origin: str, host: str) -> None:
    assert not is_own(origin, host)


async def joined(**headers: str) -> bool:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    socket = ApplicationCommunicator(OwnOrigins(app), {"type": "websocket", "path": "/ws/live", "headers": given})
    await socket.send_input({"type": "websocket.connect"})
    return bool((await socket.receive_output(5))["type"] == "websocket.accept")


async def test_a_handshake_from_another_port_is_refused_and_a_program_without_an_origin_accepted() -> None:
    assert await joined(origin="http://localhost:8000", host="localhost:8000")
    assert not await joined(origin="http://localhost:9000", host="localhost:8000")
    assert await joined(host="localhost:8000")
