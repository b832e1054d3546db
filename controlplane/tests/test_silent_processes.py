"""All pages while a node's worker is silent and while the disk is read-only, with a whole `manage.py up`:
rows of the table in docs/operate.md."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.testing_browser import START_S, browser  # noqa: F401
from controlplane.tests.real_up import CODE, MANAGE, RealUp, environment, new_folder, running

pytestmark = pytest.mark.browser
PASSWORD = "a password of this test"
PATHS = ("/live", "/wall?kiosk=1", "/fleet/", "/requests/")
WATCHED = PATHS[:2]
FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: two-nodes}
spec:
  pools:
    - {name: near, model: near, kind: sim, replicas: 2}
    - {name: far, model: far, kind: sim, replicas: 2, node: gpu-1}
"""


@contextmanager
def node_worker(weir: RealUp) -> Iterator[subprocess.Popen[bytes]]:
    command = [*MANAGE, "node", "--name", "gpu-1", "--address", "127.0.0.1"]
    with (weir.folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=CODE, env=environment(weir.folder, **weir.extra), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def signed_in(browser: Browser, weir: RealUp) -> dict[str, Page]:  # noqa: F811
    context = browser.new_context(base_url=f"http://127.0.0.1:{weir.web_port}")
    context.set_default_navigation_timeout(START_S * 1000)
    page = context.new_page()
    page.goto("/login")
    page.fill("#username", "admin")
    page.fill("#password", PASSWORD)
    page.click("main button[type=submit]")
    page.wait_for_url("**/live*")
    pages = {path: context.new_page() for path in PATHS}
    for path, each in pages.items():
        each.goto(path)
    return pages


def said(pages: dict[str, Page], banner: str, counts: str, level: str, state: str) -> None:
    for page in pages.values():
        expect(page.locator("#banners .banner")).to_have_count(1 if banner else 0, timeout=60_000)
        if banner:
            expect(page.locator("#banners .banner")).to_contain_text(banner)
    for page in (pages[path] for path in WATCHED):
        expect(page.locator("#counts")).to_have_text(re.compile(rf"^\s*{counts}\s*$"), timeout=60_000)
        expect(page.locator("#age-text")).to_have_text(re.compile("^updated"))
    expect(pages[WATCHED[1]].locator("#state")).to_have_attribute("data-level", level, timeout=60_000)
    expect(pages[WATCHED[1]].locator("#state")).to_contain_text(state)


def test_pages_name_the_silent_node_and_the_read_only_disk_and_what_still_works(browser: Browser) -> None:  # noqa: F811
    folder = new_folder()
    (folder / "fleet.yaml").write_text(FLEET)
    flags = ("--no-demo", "--fleet", str(folder / "fleet.yaml"))
    with running(*flags, folder=folder, WEIR_ADMIN_PASSWORD=PASSWORD) as weir, node_worker(weir) as node:
        weir.until(lambda: weir.get("/healthz") == 200, "the web server")
        pages = signed_in(browser, weir)
        said(pages, "", "4 ready", "well", "All is well")

        os.kill(node.pid, signal.SIGSTOP)
        said(pages, "Node gpu-1 does not report", "2 ready, last known\\s*2 ready", "trouble", "gpu-1: no heartbeat")
        os.kill(node.pid, signal.SIGCONT)
        said(pages, "", "4 ready", "well", "All is well")

        try:
            weir.forbid_writes()
        except OSError as error:
            pytest.skip(f"no mount can be made read-only here: {error}")
        try:
            said(pages, "The database is read-only", "4 ready", "trouble", "database: read-only")
        finally:
            weir.allow_writes()
        said(pages, "", "4 ready", "well", "All is well")
        pages[PATHS[0]].context.close()
