"""The Live page on a phone: what is wrong comes before everything that is well, and the flow is seen whole."""

from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.dashboard.tests.browser.conftest import RunningFleet

pytestmark = pytest.mark.browser


def test_what_needs_attention_stands_above_the_tiles(running: RunningFleet, open_page: Any) -> None:
    running.fleet.states["demo-5"] = ("failed", "ended with exit status 1")
    page = open_page(width=390, height=844).goto("/live")
    expect(page.locator("#attention")).to_contain_text("demo-5")
    tops = [page.locator(part).bounding_box()["y"] for part in ("#attention", "#heat", "#tiles")]
    assert tops == sorted(tops)
    assert page.locator("#attention").bounding_box()["width"] > 340
    expect(page.locator("#flow [data-kind=instance]")).to_have_count(8)
    ends = "() => [...document.querySelectorAll('#flow text')].map((text) => text.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= 390
