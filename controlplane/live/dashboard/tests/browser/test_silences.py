"""What all pages say while processes are stopped, and once they go on: rows of the table in docs/operate.md."""

import os
import re
import signal
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.live.dashboard.tests.browser.conftest import RunningFleet
from controlplane.testing_browser import Web

pytestmark = pytest.mark.browser

LIVE = ("/live", "/wall?kiosk=1")
OTHERS = ("/fleet/", "/requests/", "/policies/")
UPDATED = re.compile(r"^updated \d+(\.\d)? s ago$")
OLD = re.compile(r"^data \d+(\.\d)? (s|min) old$")


def banner(pages: dict[str, Page], words: str) -> None:
    for page in pages.values():
        expect(page.locator("#banners .banner")).to_contain_text(words)


def is_well(pages: dict[str, Page]) -> None:
    for path, page in pages.items():
        expect(page.locator("#banners .banner")).to_have_count(0)
        if path in LIVE:
            expect(page.locator("#age-text")).to_have_text(UPDATED)
            expect(page.locator("#counts")).to_have_text("8 ready")


def is_last_known(pages: dict[str, Page], age: re.Pattern[str]) -> None:
    for page in (pages[path] for path in LIVE):
        expect(page.locator("#age-text")).to_have_text(age)
        expect(page.locator("#counts")).to_have_text("8 ready, last known")


def test_all_pages_name_who_is_silent_keep_what_is_known_and_recover(
    running: RunningFleet, open_page: Any, web: Web
) -> None:
    pages = {path: open_page().goto(path) for path in (*LIVE, *OTHERS)}
    is_well(pages)
    running.paused = True  # routers, workers and engines
    banner(pages, "The router is down")
    is_last_known(pages, UPDATED)
    running.paused = False
    is_well(pages)
    for name, words in (("web", "Disconnected from the control plane"), ("redis", "Redis is down")):
        os.kill(web.processes[name].pid, signal.SIGSTOP)
        try:
            banner(pages, words)
            is_last_known(pages, OLD)
        finally:
            os.kill(web.processes[name].pid, signal.SIGCONT)
        is_well(pages)
