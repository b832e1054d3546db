"""Pages are accessible: axe finds nothing serious in both themes, pages are short, and screen readers hear all
names."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.urls import URLPattern, URLResolver, get_resolver
from playwright.sync_api import expect

from controlplane.live.dashboard.tests.browser.conftest import RunningFleet
from controlplane.testing_reading import by_axe, in_both_themes, too_wide, unreadable

pytestmark = pytest.mark.browser
PAGES = ("/login", "/live", "/wall", "/wall?kiosk=1", "/requests/", "/requests/req-1/", "/requests/gone/", "/help")


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_on_a_page(running: RunningFleet, open_page: Any, path: str) -> None:
    running.fleet.states["demo-5"] = ("failed", "ended with exit status 1")
    running.fleet.kv["demo-3"] = 0.96
    running.fleet.write_receipt("req-1", time.time())
    page = open_page(user="" if path == "/login" else "vera").drawn(path)
    assert in_both_themes(page, minor=False) == []
    assert path.startswith("/wall") or too_wide(page) == []  # the tests of the wall cover phones
    wide = "wraps => wraps.filter((wrap) => wrap.scrollWidth > wrap.clientWidth).length"
    assert path != "/requests/" or page.locator(".table-wrap").evaluate_all(wide) == 0


@pytest.mark.parametrize("name", ["400", "405", "500", "503", "507", "read_only"])
def test_an_error_without_a_database_can_be_read_and_quotes_an_id(open_page: Any, name: str) -> None:
    opened = open_page("vera")
    html = render_to_string(f"errors/{name}.html", {"request_id": "6c6b046d"})
    opened.page.route("**/broken", lambda route: route.fulfill(status=500, content_type="text/html", body=html))
    page = opened.goto("/broken")
    expect(page.locator("main")).to_contain_text("Request id to quote: 6c6b046d")
    expect(page.locator("main a")).to_have_attribute("href", "/live")
    assert (
        page.locator(".panel").evaluate("panel => getComputedStyle(panel).borderTopStyle") == "solid"
    )  # its style sheet is loaded
    assert in_both_themes(page, minor=False) == []
    assert too_wide(page) == []


def plain_paths(resolver: URLResolver, before: str = "/") -> Iterator[str]:
    """Yield the path of every URL that names no object."""
    for each in resolver.url_patterns:
        path = before + str(each.pattern).lstrip("^").rstrip("$")
        if isinstance(each, URLResolver):
            yield from plain_paths(each, path)
        elif isinstance(each, URLPattern) and not set("<(") & set(path) and not path.startswith("/api/"):
            yield path


def test_every_page_has_at_most_450_words_and_names_for_screen_readers(running: RunningFleet, open_page: Any) -> None:
    """Pages of one object are tested with their subject. The API reference is excluded, since nobody reads it as a
    whole."""
    opened, found = open_page("ada"), {}
    for path in plain_paths(get_resolver()):
        answer = opened.page.request.get(opened.base + path)
        if answer.ok and '<main id="content"' in answer.text():
            page = opened.drawn(path)
            found[path] = unreadable(page)
            if page.locator("a[href='#new']").count():  # its form
                page.locator("a[href='#new']").click()
                expect(page.locator("#new")).to_be_visible()
                found[path] += unreadable(page)
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert {"/live", "/wall", "/use/", "/policies/", "/fleet/", "/experiments/new", "/login"} - {*found} == set()
    assert len(found) > 25
    assert opened.faults == []


STOP = """() => {
  const node = document.activeElement;
  if (node === document.body || node.dataset.stopped) return null;
  node.dataset.stopped = "yes";
  const box = node.getBoundingClientRect(), style = getComputedStyle(node);
  const top = document.elementFromPoint(box.left + box.width / 2, Math.min(box.top + box.height / 2, innerHeight - 1));
  const name = node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent;
  const faults = [];
  if (!name?.trim()) faults.push("no name");
  if (box.bottom < 0 || box.top > innerHeight || !box.width) faults.push("out of sight");
  // A part of a picture has its own shape for its focus, and its box may be empty in the middle.
  if (!(node instanceof SVGElement)) {
    if (style.outlineStyle === "none" || Number.parseFloat(style.outlineWidth) < 2) faults.push("no outline");
    if (!top || !(node.contains(top) || top.contains(node))) faults.push("covered");
  }
  return faults.map((fault) => `${fault}: ${node.outerHTML.slice(0, 90)}`);
}"""


@pytest.mark.parametrize("path", ["/live", "/requests/"])
def test_each_element_in_the_tab_order_has_a_name_and_a_visible_focus(
    running: RunningFleet, open_page: Any, path: str
) -> None:
    running.fleet.write_receipt("req-1", time.time())
    page = open_page("otto").drawn(path)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    stops, faults = 0, []
    while (found := page.evaluate(STOP)) is not None and stops < 200:
        stops, faults = stops + 1, faults + found
        page.keyboard.press("Tab")
    assert faults == []
    assert 20 < stops < 200


MOVING = """() => {
  const button = document.body.appendChild(document.createElement("button"));
  button.className = "button htmx-request";
  button.setAttribute("aria-busy", "true");
  return document.getAnimations().filter((each) => each.playState === "running").length;
}"""


def test_nothing_moves_if_reduced_motion_is_preferred(running: RunningFleet, open_page: Any) -> None:
    page = open_page("otto").drawn("/live")
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(MOVING) == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(MOVING) > 0


SHAPES = """(words) => words.map((word) => {
  const node = document.body.appendChild(document.createElement("span"));
  node.className = `status status--${word}`;
  const { maskImage, backgroundColor, width } = getComputedStyle(node, "::before");
  return [maskImage, backgroundColor, Number.parseFloat(width) > 8];
})"""


def test_forced_colors_keep_the_shape_of_each_status(running: RunningFleet, open_page: Any) -> None:
    page = open_page("otto").drawn("/live")
    page.emulate_media(forced_colors="active")
    shapes = page.evaluate(
        SHAPES, ["ready", "loading", "draining", "saturated", "failed", "stale", "offline", "stopped"]
    )
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert len({mask for mask, _, _ in shapes}) == len(shapes)
    assert all(mask.startswith("url(") and seen for mask, _, seen in shapes)
    assert {colour for _, colour, _ in shapes} == {ink}


def test_the_chosen_theme_is_remembered(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/requests/")
    page.click("[data-theme-toggle]")
    chosen = page.evaluate("document.documentElement.dataset.theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == chosen


def test_the_palette_can_be_used_by_keyboard_and_every_page_offers_help(running: RunningFleet, open_page: Any) -> None:
    opened = open_page("vera")
    page = opened.goto("/requests/")
    page.locator("a[aria-label=Help]").click()
    page.wait_for_url("**/help")
    page.keyboard.press("Control+k")
    found = page.locator("#palette-found [role=option]")
    expect(found.first).to_contain_text("Live")
    page.keyboard.type("exper")
    expect(found).to_have_count(1)
    expect(page.locator("#palette-query")).to_have_attribute("aria-activedescendant", "palette-0")
    assert by_axe(page, minor=False) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/experiments/")
    page.click("#palette-open")
    page.locator("#palette-query").fill("no such thing")
    expect(page.locator("#palette-note")).to_contain_text("Nothing found")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "palette-open"
    assert opened.faults == []


STATES = (
    "loading",
    "live",
    "paused",
    "stale",
    "offline",
    "never",
    "empty",
    "partial",
    "error",
    "forbidden",
    "finished",
)


@pytest.mark.parametrize("path", ["/live", "/wall"])
def test_the_url_can_show_every_panel_in_each_state_and_nothing_else_changes(
    running: RunningFleet, open_page: Any, path: str
) -> None:
    opened = open_page("vera")
    page = opened.goto(path)
    panels = page.locator(".panel, .wall section").count()
    for number, state in enumerate(STATES):
        page = opened.goto(f"{path}?panels={state}&theme={('dark', 'light')[number % 2]}")
        expect(page.locator("[data-state] > .panel-state .status")).to_have_count(panels)
        assert set(page.locator(".panel-state .status").all_inner_texts()) == {state}
        expect(page.locator('[data-kind="panels"]')).to_contain_text(f"panels={state}")
        part = None if number < 2 else ".panel-state"  # what the states add; one replaces the content, one keeps it
        assert by_axe(page, part, minor=False) == [], state
    page = opened.goto(f"{path}?panels=plenty")
    expect(page.locator(".panel-state")).to_have_count(0)
    assert opened.faults == []
