"""A page of another site embeds the shared wall, if its origin is listed, until the share is revoked."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from controlplane.live.dashboard.tests.browser.conftest import RunningFleet
from controlplane.testing_browser import Web

pytestmark = pytest.mark.browser


class Embedder(HTTPServer):
    source = ""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Embedder)
        body = f'<!doctype html><iframe width=1280 height=720 src="{self.server.source}"></iframe>'.encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def embedder(web: Web) -> Iterator[Embedder]:
    port = urlsplit(web.environment["WEIR_EMBED_ORIGINS"]).port
    with Embedder(("127.0.0.1", port or 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_wall_is_framed_by_a_listed_origin_only_and_closes_when_its_share_is_revoked(
    web: Web,
    browser: Browser,
    open_page: Any,
    running: RunningFleet,
    embedder: Embedder,
) -> None:
    admin = open_page(user="ada").goto("/shares/")
    admin.get_by_role("link", name="New share").click()
    admin.fill("[name=name]", "lobby")
    admin.click("text=Create share")
    embedder.source = admin.locator(".notice code").first.inner_text().split()[0]
    listed = web.environment["WEIR_EMBED_ORIGINS"]
    context = browser.new_context()
    page = context.new_page()
    page.goto(listed)
    frame = page.frame_locator("iframe")
    expect(frame.locator("body[data-data=live]")).to_be_visible()
    expect(frame.locator("h1")).to_contain_text("Fleet")
    assert frame.locator("a[href]").count() == 0
    assert context.cookies() == []
    other = context.new_page()
    refused: list[str] = []
    other.on("console", lambda message: refused.append(message.text))
    other.goto(listed.replace("127.0.0.1", "localhost"))
    other.wait_for_timeout(500)
    assert any("frame-ancestors" in text for text in refused), refused
    began = time.monotonic()
    admin.click("text=Revoke")
    expect(frame.locator(".banner")).to_have_text("This share has ended; the numbers below are the last ones received.")
    assert time.monotonic() - began < 8  # 5 s, plus the delay of a busy machine
    context.close()
