"""A newcomer's first minutes in a browser, with a whole `manage.py up`: from the sign-in to the rollback."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.evidence.previews.analysis.trust import LEAST_REQUESTS
from controlplane.testing_browser import START_S, Opened, browser  # noqa: F401
from controlplane.tests.real_up import FLEET, RealUp, new_folder, running

pytestmark = pytest.mark.browser
PASSWORD = "a password of this test"
WHY = "Heavy requests wait behind larger ones"
HEAVY = "#f-classes-heavy-new-tokens"


def record(weir: RealUp, requests: int) -> None:
    """Record what the demo does in a few minutes."""
    body = {
        "model": "llama-3.1-8b",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "What is a weir? " * 99}],
    }
    with ThreadPoolExecutor(4) as threads, httpx.Client(base_url=f"http://127.0.0.1:{weir.router_port}/v1") as client:
        answers = threads.map(lambda _: client.post("/chat/completions", json=body, timeout=60), range(requests))
        assert {answer.status_code for answer in answers} == {200}


def drag(page: Page, line: str, by: float) -> None:
    box = page.get_by_role("slider", name=line).locator("rect").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + by, y, steps=5)
    page.mouse.up()


def advance(page: Page) -> None:
    page.fill("#reason", WHY)
    page.click("button:text-is('Advance')")


def test_a_newcomer_changes_previews_delivers_and_rolls_back_a_threshold(browser: Browser) -> None:  # noqa: F811
    folder = new_folder()
    (folder / "fleet.yaml").write_text(FLEET)
    with running("--fleet", str(folder / "fleet.yaml"), folder=folder, WEIR_ADMIN_PASSWORD=PASSWORD) as weir:
        base = f"http://127.0.0.1:{weir.web_port}"
        weir.until(lambda: weir.get("/healthz"), "the web server")
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_navigation_timeout(START_S * 1000)
        opened = Opened(context.new_page(), base)
        opened.watch()
        page = opened.goto("/")
        page.fill("#username", "admin")
        page.fill("#password", PASSWORD)
        page.click("main button[type=submit]")
        page.wait_for_url("**/live*")
        page.click("text=First minutes")
        weir.wait_for("traffic ")
        record(weir, LEAST_REQUESTS)
        page.click("button:text-is('Change a threshold')")
        page.wait_for_url("**/draft")
        expect(page.locator("#preview-choices")).to_contain_text("demo, recorded traffic")
        before = page.input_value(HEAVY)
        drag(page, "Heavy threshold", -30)
        assert page.input_value(HEAVY) != before
        page.click("text=Preview on recorded traffic")
        expect(page.locator(".preview-sentence")).to_contain_text("The draft would", timeout=START_S * 1000)
        expect(page.locator(".preview-first")).to_have_count(0, timeout=START_S * 1000)
        page.click("text=Review changes")
        expect(page.locator(".preview-line")).to_contain_text("The draft would")
        page.click("text=Deliver…")
        page.click(".plan-preset:has-text('Short')")
        page.fill("#reason", WHY)
        page.click("button:has-text('Deliver and start v2')")
        expect(page.locator(".delivery-facts")).to_contain_text("v2 only tries to decide each")
        advance(page)
        expect(page.locator("[data-place=now]")).to_contain_text("Canary 50 %")
        advance(page)
        expect(page.locator(".delivery-state")).to_have_text("live, watching")
        page.click("#act-abort")
        expect(page.locator(".delivery-state")).to_have_text("rolled back")
        page.click(".breadcrumb a:text-is('default')")
        expect(page.locator("main")).to_contain_text("Live: v3")
        expect(page.locator("main")).to_contain_text("Delivery of v2 rolled back")
        assert opened.faults == []
        context.close()
