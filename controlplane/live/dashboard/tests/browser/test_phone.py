"""The Live page on a phone: problems are shown above everything else, and the whole flow is visible."""

from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.live.dashboard.tests.browser.conftest import RunningFleet
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet

pytestmark = pytest.mark.browser


def test_the_attention_list_is_shown_above_the_tiles(running: RunningFleet, open_page: Any) -> None:
    running.fleet.states["demo-5"] = ("failed", "ended with exit status 1")
    page = open_page(width=390, height=844).goto("/live")
    expect(page.locator("#attention")).to_contain_text("demo-5")
    tops = [page.locator(part).bounding_box()["y"] for part in ("#attention", "#heat", "#tiles")]
    assert tops == sorted(tops)
    assert page.locator("#attention").bounding_box()["width"] > 340
    expect(page.locator("#flow [data-kind=instance]")).to_have_count(8)
    ends = "() => [...document.querySelectorAll('#flow text')].map((text) => text.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= 390


CLIPPED = """() => [...document.querySelectorAll('.strip, .strip *')]
  .filter((node) => node.checkVisibility() && !node.closest('.visually-hidden, svg')
    && getComputedStyle(node).overflow !== 'visible'
    && (node.scrollHeight > node.clientHeight + 1 || node.scrollWidth > node.clientWidth + 1))
  .map((node) => node.outerHTML.slice(0, 90))"""


def test_the_whole_flow_of_two_pools_is_visible(running: RunningFleet, open_page: Any) -> None:
    chat = FakeFleet(running.fleet.client, size=3, pool="chat")
    running.beside.append(chat)
    running.write()
    page = open_page("otto", width=390, height=844).goto("/live")
    expect(page.locator("#policies p")).to_have_count(2)
    expect(page.locator("[data-total=tokens_gpu_s]")).to_be_attached()
    assert page.evaluate(CLIPPED) == []
    room = "list => list.getBoundingClientRect().bottom - list.lastElementChild.getBoundingClientRect().bottom"
    assert page.locator("#policies").evaluate(room) < 8  # no room is kept for a delivery that does not exist
