"""The wall: a screen that nobody touches."""

from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.dashboard.tests.browser.conftest import RunningFleet

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

LIVE = "() => document.body.dataset.data === 'live'"
SMALLEST_PX = """() => Math.min(...[...document.querySelectorAll('.wall *')]
  .filter((node) => node.checkVisibility({visibilityProperty: true}) && !node.closest('.visually-hidden, svg')
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((node) => Number.parseFloat(getComputedStyle(node).fontSize)))"""
CLIPPED = """() => [...document.querySelectorAll('.wall-tile, .wall-class, .wall-attention, .wall-events')]
  .filter((node) => node.scrollHeight > node.clientHeight + 1 || node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.dataset.id ?? node.className)"""


@pytest.mark.parametrize("instances", [1, 12, 100, 128])
@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (3840, 2160)])
def test_nothing_scrolls_is_clipped_or_too_small(
    running: RunningFleet, open_page: Any, instances: int, width: int, height: int
) -> None:
    running.fleet.size = instances
    running.fleet.write()
    page = open_page(width=width, height=height).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    expect(page.locator(".wall-tile")).to_have_count(instances)
    page.wait_for_timeout(300)
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [
        width,
        height,
    ]
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(SMALLEST_PX) >= 18 * height / 1080 - 0.1


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (3840, 2160)])
def test_what_needs_attention_fits_beside_events(
    running: RunningFleet, open_page: Any, width: int, height: int
) -> None:
    running.fleet.size = 12
    running.fleet.states = {f"demo-{i}": ("failed", "CUDA out of memory") for i in range(8)}
    running.fleet.write()
    page = open_page(width=width, height=height).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    expect(page.locator("#attention li[data-severity]")).to_have_count(6)
    page.evaluate("document.querySelector('.wall-events ol').innerHTML = '<li>03:32 an event</li>'.repeat(3)")
    assert page.evaluate(CLIPPED) == []


def test_more_than_fit_are_counted(running: RunningFleet, open_page: Any) -> None:
    running.fleet.size = 200
    running.fleet.write()
    page = open_page(width=1920, height=1080).goto("/wall?kiosk=1")
    expect(page.locator("#tile-note")).to_have_text("showing 128 of 200")


def test_a_kiosk_shows_no_chrome_and_escape_leaves(running: RunningFleet, open_page: Any) -> None:
    opened = open_page(width=1920, height=1080)
    page = opened.goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    assert page.locator(".topbar").count() == 0
    expect(page.locator("#leave")).to_have_css("opacity", "0")
    assert page.evaluate("getComputedStyle(document.body).cursor") == "none"
    page.mouse.move(300, 300)
    expect(page.locator("#leave")).to_have_css("opacity", "1")
    assert opened.faults == []
    page.keyboard.press("Escape")
    page.wait_for_url("**/live")


def test_an_ended_session_keeps_the_last_frame_and_shows_no_login_form(running: RunningFleet, open_page: Any) -> None:
    page = open_page(width=1920, height=1080).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    page.context.clear_cookies()
    page.evaluate("() => globalThis.dispatchEvent(new Event('online'))")
    # The socket in use is not cut by the lost cookie: the next one is refused.
    page.evaluate("() => globalThis.weirFeed.socket.close()")
    expect(page.locator('[data-kind="signin"]')).to_contain_text("Sign-in needed", timeout=10_000)
    expect(page.locator(".wall-tile")).to_have_count(8)
    assert page.locator("input[type=password]").count() == 0
