"""The systems as only a browser shows them: pictures, the form without JavaScript, narrow screens, axe."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.evidence.systems.registry import SYSTEMS
from controlplane.testing_browser import DRAWN, START_S
from controlplane.testing_reading import faults_of

pytestmark = pytest.mark.browser
PAGES = ("/systems/", *(f"/systems/{slug}/" for slug in SYSTEMS))


@pytest.mark.parametrize("path", PAGES)
def test_every_picture_is_drawn_and_everybody_can_read_the_page(open_page: Any, path: str) -> None:
    opened = open_page("vera")
    page = opened.drawn(path)
    charts = page.locator("[data-chart]")
    for number in range(charts.count()):
        expect(charts.nth(number).locator(".plot-container")).to_have_count(1)
        expect(charts.nth(number).locator(".chart-note")).to_have_count(0)
    if charts.count():
        page.get_by_text("View as table").first.click()
        expect(page.locator("figure .table-wrap").first).to_be_visible()
        page.get_by_text("View as table").first.click()
    assert faults_of(page) == []
    assert opened.faults == []


def test_the_list_shows_the_answer_of_each_page(open_page: Any) -> None:
    page = open_page("vera").goto("/systems/")
    assert page.locator("[data-replaced]").count() == 0  # what each page is about can be read meanwhile
    page.wait_for_function(DRAWN, timeout=START_S * 1000)
    assert page.title() == "Systems · Weir"
    said = page.locator(".system-default").all_inner_texts()
    for slug, answer in zip(SYSTEMS, said, strict=True):
        page.goto(page.url.partition("/systems/")[0] + f"/systems/{slug}/")
        assert answer == f"modelled {page.locator('.system-verdict').inner_text()}"


def test_the_form_works_without_javascript_and_the_url_keeps_the_inputs(open_page: Any) -> None:
    page = open_page("vera", java_script_enabled=False).goto("/systems/tutti/")
    first = page.locator(".system-form input").first
    name = first.get_attribute("name")
    first.fill("nonsense")
    page.get_by_role("button", name="Compute").click()
    expect(page).to_have_url(re.compile(f"{name}=nonsense"))
    expect(page.locator(f"#f-{name}")).to_have_value("nonsense")
    expect(page.get_by_role("alert")).to_contain_text("Please correct 1 input.")


def test_published_values_that_could_not_be_computed_can_be_requested_again_by_a_button(open_page: Any) -> None:
    opened = open_page("vera")
    opened.page.route("**/tutti/figures**", lambda route: route.fulfill(status=500))
    panel = opened.goto("/systems/tutti/").locator("#figures")
    expect(panel.locator(".panel-state")).to_contain_text("The server answered with the error 500")
    opened.page.unroute("**/tutti/figures**")
    panel.get_by_role("button", name="Try again").click()
    panel.locator("summary").click()
    expect(panel.get_by_role("row")).not_to_have_count(0)
    expect(panel.locator(".panel-state")).to_have_count(0)
