"""What only a browser shows of the systems: pictures, the form without JavaScript, narrow screens, axe."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from controlplane.systems.registry import SYSTEMS
from controlplane.testing_reading import unreadable

pytestmark = pytest.mark.browser
PAGES = ("/systems/", *(f"/systems/{slug}/" for slug in SYSTEMS))


@pytest.mark.parametrize("slug", SYSTEMS)
def test_every_picture_is_drawn_and_read_as_a_table(open_page: Any, slug: str) -> None:
    opened = open_page("vera")
    page = opened.goto(f"/systems/{slug}/")
    charts = page.locator("[data-chart]")
    for number in range(charts.count()):
        expect(charts.nth(number).locator(".plot-container")).to_have_count(1)
        expect(charts.nth(number).locator(".chart-note")).to_have_count(0)
    if charts.count():
        page.get_by_text("View as table").first.click()
        expect(page.locator("figure .table-wrap").first).to_be_visible()
    assert opened.faults == []


def test_the_form_works_without_javascript_and_the_url_keeps_the_inputs(open_page: Any) -> None:
    page = open_page("vera", java_script_enabled=False).goto("/systems/tutti/")
    first = page.locator(".system-form input").first
    name = first.get_attribute("name")
    first.fill("nonsense")
    page.get_by_role("button", name="Compute").click()
    expect(page).to_have_url(re.compile(f"{name}=nonsense"))
    expect(page.locator(f"#f-{name}")).to_have_value("nonsense")
    expect(page.get_by_role("alert")).to_contain_text("Please correct 1 input.")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_serious(open_page: Any, path: str, theme: str) -> None:
    page = open_page("vera").drawn(f"{path}?theme={theme}")
    found = Axe().run(page).response["violations"]
    assert [
        (v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")
    ] == []


@pytest.mark.parametrize("path", PAGES)
def test_a_narrow_screen_needs_no_sideways_scrolling(open_page: Any, path: str) -> None:
    page = open_page("vera", width=320, height=700).drawn(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_read_in_450_words(open_page: Any, path: str) -> None:
    assert unreadable(open_page("vera").drawn(path)) == []
