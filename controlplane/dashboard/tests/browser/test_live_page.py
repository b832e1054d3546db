"""The Live page as an operator meets it."""

import re
import time
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.dashboard.tests.browser.conftest import RunningFleet
from controlplane.dashboard.tests.fake_fleet import FakeFleet
from controlplane.testing_browser import Web

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

UPDATED = "() => /updated 0\\.\\d s ago/.test(document.getElementById('age-text').textContent)"
LAYOUT_SHIFT = """() => {
  globalThis.shift = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shift += entry.value;
  }).observe({type: "layout-shift"});
}"""


def test_the_first_paint_is_whole_without_scripts(running: RunningFleet, open_page: Any) -> None:
    page = open_page(java_script_enabled=False).goto("/live")
    assert page.locator(".tile").count() == 8
    assert "simulated" in page.locator("#policies").inner_text()
    assert page.locator(".tile .status").first.inner_text() == "ready"
    assert "ms" in page.locator('[data-class="warm"] [data-line="ttft"]').inner_text()


def test_figures_follow_the_fleet_and_nothing_is_wrong_on_the_console(running: RunningFleet, open_page: Any) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    running.fleet.kv["demo-3"] = 0.97
    expect(page.locator('[data-id="demo-3"]')).to_have_attribute("data-status", "saturated")
    expect(page.locator('[data-id="demo-3"] [data-part="kv"]')).to_have_text("97 %")
    expect(page.locator("#attention")).to_contain_text("demo-3")
    expect(page.locator("#counts")).to_contain_text("1 saturated")
    expect(page.locator("#policies")).to_contain_text(re.compile(r"simulated.*\d/\d routers"))
    page.locator(".live-chart .main-svg").first.wait_for()
    assert opened.faults == []


def test_a_published_limit_a_second_pool_and_its_events_are_followed(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    expect(page.locator('[data-class="heavy"] [data-part="means"]')).to_have_text("20,000 new tokens or more")
    running.fleet.limits["heavy_new_tokens"] = 12_000
    expect(page.locator('[data-class="heavy"] [data-part="means"]')).to_have_text("12,000 new tokens or more")
    known = "() => JSON.parse(document.getElementById('snapshot').textContent).history.at.length"
    chat = FakeFleet(running.fleet.client, size=2, pool="chat")
    chat.routers = ["router-9"]
    chat.write()
    running.fleet.write_event(time.time(), "demo-1 failed", pools=["demo"])
    running.fleet.write_event(time.time(), "chat-1 failed", pools=["chat"])
    expect(page.locator("#events")).to_contain_text("demo-1 failed")
    page.goto(page.url + "?pool=chat")
    expect(page.locator("#events")).to_contain_text("chat-1 failed")
    expect(page.locator("#events")).not_to_contain_text("demo-1 failed")
    page.goto(page.url.partition("?")[0])
    page.wait_for_function(UPDATED)
    assert page.evaluate(known) > 3
    history = "() => JSON.parse(document.getElementById('snapshot').textContent).history.classes['*'].warm.n"
    assert all(page.evaluate(history))


def test_an_instance_that_leaves_takes_its_tile_with_it(running: RunningFleet, open_page: Any) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    running.fleet.size = 5
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.locator("#counts")).to_contain_text("5 ready")
    assert opened.faults == []


def test_no_chart_offers_to_send_data_away(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.locator(".live-chart .main-svg").first.wait_for()
    assert page.locator(".modebar-btn, [data-title*='loud'], [data-title*='hare']").count() == 0
    kept = page.evaluate("document.querySelector('.js-plotly-plot')._context")
    assert (kept["showSendToCloud"], kept["plotlyServerURL"], kept["displaylogo"]) == (False, "", False)


def test_old_data_are_called_stale_then_offline_and_their_age_counts_up(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    running.paused = True
    tile = page.locator('[data-id="demo-0"]')
    expect(tile).to_have_attribute("data-status", "stale", timeout=10_000)
    shown = page.locator('[data-id="demo-0"] [data-part="kv"]').inner_text()
    expect(page.locator("#counts")).to_have_text("8 stale")
    expect(page.locator("#wanted")).to_have_text("0 of 8")
    expect(page.locator('[data-kind="router"]')).to_contain_text("router is down")
    expect(page.locator('[data-kind="node"]')).to_contain_text("node worker is down", timeout=15_000)
    expect(tile).to_have_attribute("data-status", "offline", timeout=20_000)
    assert page.locator('[data-id="demo-0"] [data-part="kv"]').inner_text() == shown != "0 %"


def test_a_killed_web_process_is_announced_and_recovered_from_without_a_reload(
    running: RunningFleet, open_page: Any, web: Web
) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    page.evaluate("globalThis.sameDocument = true")
    web.stop("web")
    banner = page.locator('[data-kind="connection"]')
    expect(banner).to_contain_text("Disconnected", timeout=2_000)
    expect(banner).to_contain_text("Retrying in")
    page.wait_for_function("() => Number.parseFloat(document.getElementById('age-text').textContent.slice(8)) > 3")
    expect(page.locator('[data-id="demo-0"]')).to_have_attribute("data-status", "stale")
    web.start()
    expect(banner).to_have_count(0, timeout=15_000)
    page.wait_for_function(UPDATED)
    assert page.evaluate("globalThis.sameDocument") is True


def test_redis_gone_and_back_has_a_banner_of_its_own(running: RunningFleet, open_page: Any, web: Web) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    running.stop()
    web.stop("redis")
    expect(page.locator('[data-kind="redis"]')).to_contain_text("Redis is down", timeout=10_000)
    web.start_redis()
    running.fleet.write()
    expect(page.locator('[data-kind="redis"]')).to_have_count(0, timeout=15_000)


def test_pausing_holds_the_figures_and_counts_the_frames_behind(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    page.click("#pause")
    running.fleet.kv["demo-1"] = 0.99
    expect(page.locator("#age-text")).to_contain_text("paused 00:0", timeout=5_000)
    page.wait_for_function("() => /[2-9] frames behind/.test(document.getElementById('age-text').textContent)")
    assert page.locator('[data-id="demo-1"]').get_attribute("data-status") == "ready"
    page.click("#pause")
    expect(page.locator('[data-id="demo-1"]')).to_have_attribute("data-status", "saturated")


def test_updates_move_nothing(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    page.locator(".live-chart .main-svg").nth(10).wait_for()
    page.evaluate(LAYOUT_SHIFT)
    page.wait_for_timeout(5_000)
    assert page.evaluate("globalThis.shift") < 0.01


def test_the_url_alone_reproduces_the_view(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live?range=900&pool=demo&theme=light")
    page.wait_for_function(UPDATED)
    assert page.locator('[data-range="900"]').get_attribute("aria-current") == "true"
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.click('[data-range="3600"]')
    assert "range=3600" in page.url
    assert "theme=light" in page.url


def test_each_chart_has_a_table(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.locator(".live-chart .main-svg").first.wait_for()
    page.locator(".chart-as-table summary").first.click()
    expect(page.locator(".chart-table table tbody tr").first).to_be_visible()
    assert page.locator(".chart-table th").all_inner_texts() == ["Time", "p50", "p90", "p99", "n"]


def test_a_range_drawn_on_a_chart_is_kept_until_the_way_back_to_live_is_taken(
    running: RunningFleet, open_page: Any
) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    chart = page.locator(".live-chart .chart").first
    chart.locator(".main-svg").first.wait_for()
    back = page.locator("#back-to-live")
    expect(back).to_be_hidden()
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.5, steps=5)
    page.mouse.up()
    expect(back).to_be_visible()
    shown = "node => node.layout.xaxis.range.map((at) => new Date(at).getTime())"
    low, high = chart.evaluate(shown)
    assert high - low < 200_000
    page.wait_for_timeout(4_500)  # two redraws
    assert chart.evaluate(shown) == [low, high]
    back.click()
    expect(back).to_be_hidden()
    low, high = chart.evaluate(shown)
    assert high - low == pytest.approx(300_000, abs=1_000)
    assert opened.faults == []
