"""Four engines that somebody started by hand: on a page within two minutes, by one form, and served by one press."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.pages.fleet_pages.tests.browser.test_pool_form import web
from controlplane.testing_browser import ROOT, Web
from router.tests.ports import free_port

__all__ = ["web"]

pytestmark = pytest.mark.browser
READY_MS = 90_000


@pytest.fixture
def engines() -> Iterator[list[str]]:
    ports = [free_port() for _ in range(4)]
    argv = [sys.executable, "-m", "fleet.simengine", "--model", "llama-3.1-8b", "--time-scale", "10"]
    made = [subprocess.Popen([*argv, "--port", str(port)], cwd=ROOT) for port in ports]
    yield [f"http://127.0.0.1:{port}" for port in ports]
    for process in made:
        process.kill()
        process.wait()


def test_a_running_fleet_is_adopted_observed_and_served(web: Web, engines: list[str], open_page: Any) -> None:
    opened = open_page("otto")
    page = opened.goto("/fleet/")
    began = time.monotonic()
    page.get_by_text("Adopt a running fleet").click()
    page.fill("#f-urls", "\n".join(engines))
    page.get_by_role("button", name="Look").click()
    found = page.locator("#found")
    if "4 answering" not in found.inner_text():  # they are still starting
        page.wait_for_timeout(5_000)
        page.get_by_role("button", name="Look again").click()
    expect(found).to_contain_text("4 answering")
    expect(found.get_by_text("vLLM")).to_have_count(4)
    page.get_by_role("button", name="Adopt, and observe").click()
    page.wait_for_url("**/fleet/", timeout=READY_MS)
    pool = page.locator("section", has=page.locator("#pool-adopted"))
    expect(pool).to_contain_text("4 of 4 ready", timeout=READY_MS)
    expect(pool).to_contain_text("observed only")
    took = time.monotonic() - began
    assert took < 120, f"{took:.0f} s from the fleet page to four engines on it"
    print(f"\nfrom the fleet page to four engines on it: {took:.1f} s")
    page = opened.goto("/fleet/pools/adopted/")
    page.fill("#serve-reason", "it looks right")
    page.get_by_role("button", name="Serve it through Weir").click()
    expect(page.locator("main")).not_to_contain_text("observed only")
    assert opened.faults == []
