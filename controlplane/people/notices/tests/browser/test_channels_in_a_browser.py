"""The Notices pages in Chromium: a channel is created, tested and disabled; both pages are accessible and fit a
phone."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.testing_reading import in_both_themes, too_wide

pytestmark = pytest.mark.browser


def make(open_page: Any, name: str) -> tuple[Any, Page]:
    opened = open_page("ada")
    page: Page = opened.goto("/channels/")
    page.get_by_role("link", name="New channel").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("URL").fill("https://hooks.example.com/s3cret")
    page.get_by_role("button", name="Create channel").click()
    expect(page.locator(".notice--success")).to_contain_text("whsec_")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    return opened, page


def test_a_channel_is_created_tested_and_disabled(open_page: Any) -> None:
    opened, page = make(open_page, "on call")
    page.get_by_role("button", name="Send test").click()
    expect(page.get_by_text("A test notice for on call is on its way")).to_be_visible()
    expect(page.get_by_role("cell", name="channel.test")).to_be_visible()
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_role("button", name="Enable")).to_be_visible()
    expect(page.get_by_role("cell", name="the channel was disabled")).to_be_visible()
    assert "s3cret" not in page.content()
    for path in (page.url.removeprefix(opened.base), "/channels/"):
        assert in_both_themes(opened.goto(path)) + too_wide(page) == []
    assert opened.faults == []
