"""The wall: a screen without interaction."""

import re
import time
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.live.dashboard.tests.browser.conftest import LAYOUT_SHIFT, RunningFleet, write_delivery
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet

pytestmark = pytest.mark.browser

LIVE = "() => document.body.dataset.data === 'live'"
SMALLEST_PX = """() => Math.min(...[...document.querySelectorAll('.wall *')]
  .filter((node) => node.checkVisibility({visibilityProperty: true}) && !node.closest('.visually-hidden, svg')
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((node) => Number.parseFloat(getComputedStyle(node).fontSize)))"""
LABEL_PX = "Number.parseFloat(getComputedStyle(document.getElementById('heat')).fontSize)"
CLIPPED = """() => ['class', 'attention', 'events', 'more', 'numbers', 'fleet', 'head', 'policies']
  .flatMap((name) => [...document.querySelectorAll(`.wall-${name}`)])
  .filter((node) => node.scrollHeight > node.clientHeight + 1 || node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.className)"""
OVERLAPPING = """() => {
  const boxes = [...document.querySelectorAll('.wall-head > *, .wall-numbers > *')]
    .filter((node) => node.checkVisibility() && node.textContent.trim())
    .map((node) => [node, node.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    .map(([other]) => `${one.className} ${other.className}`));
}"""
WHOLE = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (3840, 2160)])
def test_nothing_scrolls_is_cut_off_or_too_small(
    running: RunningFleet, open_page: Any, width: int, height: int
) -> None:
    running.fleet.slo = {"warm": 100.0, "heavy": 90_000.0}
    running.fleet.write()
    page = open_page(width=width, height=height).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    for instances in (1, 12, 128):
        running.fleet.size = instances
        noun = "instance" if instances == 1 else "instances"
        note = rf"^{instances} {noun}( in \d+ rows, the highest of each)?$"
        expect(page.locator("#tile-note")).to_have_text(re.compile(note))
        rows = re.search(r"in (\d+) rows", page.locator("#tile-note").inner_text())
        assert bool(rows) == (instances == 128)
        if rows:  # each row has room for its name
            room = page.evaluate("document.getElementById('heat').clientHeight")
            assert int(rows[1]) * page.evaluate(LABEL_PX) <= room
        expect(page.locator("[data-class=warm] [data-part=verdict]")).to_have_text("SLO missed")
        assert page.evaluate(WHOLE) == [width, height]
        assert page.evaluate(CLIPPED) == []
        assert page.evaluate(OVERLAPPING) == []
        assert page.evaluate(SMALLEST_PX) >= 18 * height / 1080 - 0.1


def test_with_two_pools_of_a_thousand_instances_failed_ones_are_shown_first(
    running: RunningFleet, open_page: Any
) -> None:
    running.fleet.size = 500
    other = FakeFleet(running.fleet.client, size=500, pool="production-llama-3-1-70b")
    other.routers = ["router-9"]
    other.states = {"production-llama-3-1-70b-417": ("failed", "the process was killed by SIGKILL (signal 9)")}
    running.beside.append(other)
    running.write()
    opened = open_page(width=1920, height=1080)
    page = opened.goto("/wall?kiosk=1")
    expect(page.locator("#tile-note")).to_contain_text("1,000 instances in ")
    expect(page.locator("#counts")).to_contain_text("1 failed")
    # The frame in the first page may be older than the second pool.
    page.reload()
    page.wait_for_function(LIVE)
    rows = page.evaluate("""async () => {
      const { heatRows } = await import("/static/js/heat_data.js");
      const { unfolded } = await import("/static/js/live_frame.js");
      const columns = unfolded(JSON.parse(document.getElementById("snapshot").textContent).frame).instances;
      const all = columns.id.map((id, i) => ({ id, pool: columns.pool[i], status: columns.status[i] }));
      const status = (row, i) => (i === 8 ? "saturated" : row.status);
      globalThis.onNodes = all.map((row, i) => ({ ...row, node: `gpu-${i % 7}`, status: status(row, i) }));
      globalThis.heatRows = heatRows;
      return heatRows(all, 64).map(({ name, ids, status, broken }) => [name, ids.length, status, broken]);
    }""")
    on_nodes = page.evaluate("heatRows(onNodes, 64).map(({ name, place, status }) => [name, place, status])")
    assert on_nodes[1] == ["demo on gpu-1 (72)", "demo on gpu-1", "saturated"]
    assert len(on_nodes) == 1 + 2 * 7
    assert rows[0] == ["production-llama-3-1-70b-417", 1, "failed", True]
    assert len(rows) <= 64
    assert sum(row[1] for row in rows) == 1_000
    assert ["demo-0…16 (17)", 17, "ready", False] in rows
    expect(page.locator("#attention li").first).to_contain_text("production-llama-3-1-70b-417")
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(WHOLE) == [1920, 1080]
    assert opened.faults == []


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (3840, 2160)])
def test_the_attention_list_fits_beside_events_and_moves_nothing(
    running: RunningFleet, open_page: Any, width: int, height: int
) -> None:
    running.fleet.size = 12
    running.fleet.write()
    page = open_page(width=width, height=height).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    page.evaluate(LAYOUT_SHIFT)
    running.fleet.states = {f"demo-{i}": ("failed", "CUDA out of memory") for i in range(8)}
    for number in range(3):
        running.fleet.write_event(time.time(), f"demo: version {number}", kind="update", pools=["demo"])
    write_delivery(running)
    expect(page.locator("#attention li[data-severity]")).to_have_count(6)
    expect(page.locator(".wall-events li")).to_have_count(3)
    expect(page.locator(".delivery-line")).to_be_attached()
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate("globalThis.shift") <= 0.02


def test_three_lines_of_policies_are_visible(running: RunningFleet, open_page: Any) -> None:
    for number in range(3):
        pool = FakeFleet(running.fleet.client, size=1, pool=f"llama-3-1-70b-instruct-for-long-documents-only-{number}")
        running.beside.append(pool)
    running.write()
    page = open_page("otto", width=1920, height=1080).goto("/wall?kiosk=1")
    expect(page.locator("#policies p")).to_have_count(4)
    tops = "lines => new Set(lines.map((line) => Math.round(line.getBoundingClientRect().top))).size"
    assert page.locator("#policies p").evaluate_all(tops) == 3
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(WHOLE) == [1920, 1080]


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1440, 900)])
def test_on_a_laptop_the_wall_scrolls_and_its_counts_overlap_nothing(
    running: RunningFleet, open_page: Any, width: int, height: int
) -> None:
    running.fleet.states = {"demo-1": ("draining", "asked"), "demo-2": ("unreachable", "no answer for 12 s")}
    page = open_page(width=width, height=height).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    expect(page.locator(".wall-head")).to_contain_text("memory, 2.4 kW, simulated")
    assert page.locator("#counts").evaluate("counts => counts.scrollWidth > counts.clientWidth") is False
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate(WHOLE)[0] == width
    top = "fleet => fleet.getBoundingClientRect().top"
    before = page.locator(".wall-fleet").evaluate(top)
    running.fleet.states = {}
    expect(page.locator("#counts")).to_have_text("8 ready")
    assert page.locator(".wall-fleet").evaluate(top) == before, "nothing moves when all is well again"


def test_a_phone_shows_the_wall_without_overlaps(running: RunningFleet, open_page: Any) -> None:
    page = open_page(width=390, height=844).goto("/wall")
    page.wait_for_function(LIVE)
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_rollback_takes_two_clicks_and_is_hidden_until_the_mouse_moves(running: RunningFleet, open_page: Any) -> None:
    page = open_page("otto", width=1920, height=1080).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    button = page.locator("#policies").get_by_text("Roll back")
    expect(button).to_be_hidden()
    page.mouse.move(300, 300)
    expect(button).to_be_visible()
    expect(button).to_have_attribute("href", "/policies/default/rollback")
    assert open_page("vera").goto("/wall").get_by_text("Roll back").count() == 0


def test_a_kiosk_shows_no_navigation_and_escape_leaves_it(running: RunningFleet, open_page: Any) -> None:
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


def test_a_computer_that_slept_gets_a_snapshot_instead_of_the_queued_frames(
    running: RunningFleet, open_page: Any
) -> None:
    page = open_page().goto("/wall")
    page.wait_for_function(LIVE)
    page.evaluate("""async () => {
      const feed = globalThis.weirFeed, take = feed.on.message;
      clearInterval(feed.watch);  // a message may come before its next turn
      feed.heardAt = Date.now() - 60_000;
      await feed.reading;  // one that came before is inflated yet
      globalThis.taken = [];
      feed.on.message = (message) => { taken.push(message.type); take(message); };
    }""")
    page.wait_for_function("() => weirFeed.retryAt > 0")
    page.evaluate("() => globalThis.dispatchEvent(new Event('online'))")
    page.wait_for_function("() => taken.includes('frame')")
    assert page.evaluate("taken")[0] == "snapshot"


def test_a_server_that_waits_for_redis_does_not_say_that_it_answers(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/wall")
    page.wait_for_function(LIVE)
    page.evaluate("""() => {
      const feed = globalThis.weirFeed;
      clearInterval(feed.watch);
      feed.socket = null;  // nothing more is taken from the server
      for (const message of [{ type: "trouble", what: "redis" }, { type: "waiting" }]) feed.say(message);
    }""")
    expect(page.locator("#banners .banner")).to_contain_text("Redis is down")


def test_an_ended_session_keeps_the_last_frame_and_shows_no_login_form(running: RunningFleet, open_page: Any) -> None:
    page = open_page(width=1920, height=1080).goto("/wall?kiosk=1")
    page.wait_for_function(LIVE)
    page.context.clear_cookies()
    page.evaluate("() => globalThis.dispatchEvent(new Event('online'))")
    # The open socket is not closed when the cookie is lost: the next one is refused.
    page.evaluate("() => globalThis.weirFeed.socket.close()")
    expect(page.locator('[data-kind="signin"]')).to_contain_text("Sign-in needed")
    expect(page.locator("#tile-note")).to_have_text("8 instances")
    expect(page.locator(".wall-fleet")).to_have_css("opacity", "0.45")
    assert page.locator("input[type=password]").count() == 0
