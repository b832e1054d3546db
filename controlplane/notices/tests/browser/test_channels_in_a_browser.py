"""The Notices pages in Chromium: a channel is made, tested and disabled; both pages are accessible and fit a phone."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def make(open_page: Any, name: str, **options: Any) -> tuple[Any, Page]:
    opened = open_page("ada", **options)
    page: Page = opened.goto("/channels/")
    page.get_by_role("link", name="New channel").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("URL").fill("https://hooks.example.com/s3cret")
    page.get_by_role("button", name="Create channel").click()
    expect(page.locator(".notice--success")).to_contain_text("whsec_")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    return opened, page


def test_a_channel_is_made_tested_and_disabled(open_page: Any) -> None:
    opened, page = make(open_page, "on call")
    page.get_by_role("button", name="Send test").click()
    expect(page.get_by_text("A test notice for on call is on its way")).to_be_visible()
    expect(page.get_by_role("cell", name="channel.test")).to_be_visible()
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_role("button", name="Enable")).to_be_visible()
    expect(page.get_by_role("cell", name="the channel was disabled")).to_be_visible()
    assert "s3cret" not in page.content()
    assert opened.faults == []


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_axe_finds_nothing(open_page: Any, theme: str) -> None:
    opened, page = make(open_page, f"axe {theme}")
    page.get_by_role("button", name="Send test").click()
    found = {}
    for path in (page.url.removeprefix(opened.base), "/channels/"):
        shown = opened.goto(f"{path}?theme={theme}")
        violations = Axe().run(shown).response["violations"]
        found |= {f"{path} {v['id']}": [n["html"][:120] for n in v["nodes"]][:3] for v in violations}
    assert found == {}
    assert opened.faults == []


def test_a_narrow_screen_needs_no_sideways_scrolling(open_page: Any) -> None:
    opened, page = make(open_page, "phone", width=320, height=700)
    page.get_by_role("button", name="Send test").click()
    widths = {}
    for path in (page.url.removeprefix(opened.base), "/channels/"):
        widths[path] = opened.goto(path).evaluate("document.documentElement.scrollWidth")
    assert {path: width for path, width in widths.items() if width > 320} == {}
