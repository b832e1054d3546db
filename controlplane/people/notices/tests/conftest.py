"""A receiver of webhooks on this machine, and channels that send to it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from typing import Any

import pytest

from controlplane.people.audit.services import Actor
from controlplane.people.notices import services
from controlplane.people.notices.models import Channel
from controlplane.people.notices.services import ChannelTerms

ADA = Actor("user", "ada")


@dataclass
class Receiver:
    """Answers with `status` and records what it received."""

    url: str = ""
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    hold: threading.Event | None = None  # answers only once this is set


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.NOTICE_NETWORKS = [ip_network("127.0.0.0/8")]
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            if state.hold is not None:
                state.hold.wait(20)
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(state.answer)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the sender may stop reading early
                self.wfile.write(state.answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}/hook?token=s3cret"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    if state.hold is not None:
        state.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def channel(db: None, receiver: Receiver) -> Channel:
    return services.create_channel("webhook", ChannelTerms(name="ops", url=receiver.url), ADA)[0]


@pytest.fixture
def make_channel(db: None) -> Callable[..., Channel]:
    def make(name: str = "pager", url: str = "https://example.com/hook", **terms: Any) -> Channel:
        return services.create_channel("webhook", ChannelTerms(name=name, url=url, **terms), ADA)[0]

    return make
