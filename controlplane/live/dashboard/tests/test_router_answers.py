import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from controlplane.live.dashboard import step as asked
from controlplane.live.dashboard.step import router_answers
from router.contract.redis.router_status import RouterStatus
from router.tests.ports import free_port


def router(port: int, age_s: float = 6.0) -> RouterStatus:
    at = time.time() - age_s
    return RouterStatus(id=f"r{port}", at=at, started_at=at, pid=1, url=f"http://127.0.0.1:{port}")


@pytest.fixture
def degraded() -> Iterator[int]:
    """The port of a server that answers everything with 503."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_silent_router_that_answers_with_any_status_is_alive(degraded: int) -> None:
    assert router_answers(time.time(), [router(degraded)]) == ["answered"]


def test_a_stopped_router_refuses_connections_and_a_hung_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asked, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        routers = [router(hangs.getsockname()[1]), router(free_port(), age_s=7.0)]
        assert router_answers(time.time(), routers) == ["no answer", "refused"]


def test_no_router_is_asked_while_one_reports(degraded: int) -> None:
    assert router_answers(time.time(), [router(degraded), router(free_port(), age_s=1.0)]) == []
    assert router_answers(time.time(), []) == []


def test_an_invalid_address_counts_as_refused() -> None:
    at = time.time() - 6
    told = RouterStatus(id="r", at=at, started_at=at, pid=1, url="http://[::1/")
    assert router_answers(time.time(), [told]) == ["refused"]
