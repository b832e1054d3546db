"""Experiments as only a browser shows them: charts, live updates, the command that follows the form, axe."""

import re
from decimal import Decimal
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.testing_reading import by_axe, faults_of

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("made")]
PAGES = (
    "/experiments/",
    "/experiments/1/",
    "/experiments/2/",
    "/experiments/3/",
    "/experiments/4/",
    "/experiments/new",
    "/experiments/traces/",
    "/experiments/new?preset=peers",
    "/experiments/compare",
    "/experiments/matrix/1/",
)


def test_the_distribution_is_a_chart_with_a_line_for_each_arm_and_a_table(open_page: Any) -> None:
    opened = open_page("vera")
    page = opened.goto("/experiments/1/")
    first = page.locator("[data-ecdf=ttft]")
    expect(first.locator(".scatterlayer .trace")).to_have_count(3)
    figure = page.locator("figure", has=first)
    figure.get_by_text("View as table").click()
    expect(figure.locator("tbody tr")).to_have_count(3)
    first.evaluate("(chart) => chart.emit('plotly_click', { points: [{ curveNumber: 1, x: 400 }] })")  # as if pressed
    page.wait_for_url(re.compile(r"/experiments/1/requests\?arm=\w+&class=all&latency=ttft&ms=400$"))
    expect(page.locator("h1")).to_have_text(re.compile("^Requests of "))
    assert opened.faults == []


def test_the_comparison_can_be_sorted_filtered_saved_and_viewed_across_metrics(open_page: Any) -> None:
    opened = open_page("vera")
    page = opened.goto("/experiments/1/")
    table = page.locator(".comparison")
    arms = table.locator("thead th:not(:first-child)")
    names = arms.all_inner_texts()
    heading = table.locator("tr[data-title]").first.locator("th button")
    heading.click()
    expect(table.locator("tr[data-title] th").first).to_have_attribute("aria-sort", "ascending")
    first = table.locator("tr[data-title]").first.locator("td")
    values = first.evaluate_all("cells => cells.map((cell) => Number(cell.dataset.value))")
    assert values == sorted(values)
    heading.click()
    assert first.evaluate_all("cells => cells.map((cell) => Number(cell.dataset.value))") == values[::-1]
    heading.click()
    assert arms.all_inner_texts() == names
    page.fill("#comparison-filter", "TTFT p90")
    shown = table.locator("tbody tr:visible")
    expect(shown).to_have_count(1)
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV as shown").click()
    lines = saved.value.path().read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("TTFT p90")
    plot = page.locator("#parallel")
    lines_of = plot.locator("[data-arm]")
    expect(lines_of).to_have_count(len(names))
    before = lines_of.first.locator("polyline").get_attribute("points")
    plot.get_by_text("Turn and limit axes").click()
    plot.get_by_role("button", name="Turn the axis").first.click()
    expect(lines_of.first.locator("polyline")).not_to_have_attribute("points", before)
    plot.get_by_label("to").first.fill("0")
    expect(plot.locator(".parallel-out")).to_have_count(len(names))
    assert by_axe(page, ".comparison, #parallel") == []
    assert opened.faults == []


def test_an_arm_can_be_greyed_out_and_the_url_keeps_it(open_page: Any) -> None:
    page = open_page("vera").goto("/experiments/1/?class=heavy")
    toggle = page.locator("[data-toggles] button").nth(1)
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    expect(page).to_have_url(re.compile("hide=cache_aware"))
    expect(page).to_have_url(re.compile("class=heavy"))
    page.reload()
    expect(page.locator("[data-toggles] button").nth(1)).to_have_attribute("aria-pressed", "false")


def test_the_command_follows_the_form(open_page: Any) -> None:
    page = open_page("otto").goto("/experiments/new")
    page.fill("#f-name", "Typed just now")
    page.click("#more > summary")
    expect(page.locator("#curl")).to_contain_text('"name": "Typed just now"')
    page.select_option("#f-mode", "replay")
    page.fill("#f-time_scale", "fast")
    expect(page.locator("#curl")).to_contain_text("allowed is a number from 0.1 to 100")


def test_choosing_the_twin_hides_the_time_scale_and_choosing_a_replay_shows_it_again(open_page: Any) -> None:
    page = open_page("otto").goto("/experiments/new")
    page.click("#more > summary")
    page.select_option("#f-mode", "replay")
    page.fill("#f-time_scale", "10")
    page.select_option("#f-mode", "twin")
    expect(page.locator("#f-time_scale")).to_be_disabled()
    expect(page.locator("#curl")).to_contain_text('"mode": "twin"')
    expect(page.locator("#curl")).to_contain_text('"time_scale": 1,')
    page.select_option("#f-mode", "replay")
    expect(page.locator("#f-time_scale")).to_be_enabled()
    expect(page.locator("#curl")).to_contain_text('"time_scale": 10,')


def test_an_experiment_in_the_twin_is_started_by_the_form_and_described_as_simulated(open_page: Any) -> None:
    page = open_page("otto").goto("/experiments/new")
    page.select_option("#f-mode", "twin")
    page.get_by_role("button", name="Start experiment").click()
    expect(page.get_by_text("simulated in the twin").first).to_be_visible()
    expect(page.get_by_text("in the twin; no engine is started")).to_be_visible()


def test_without_javascript_the_form_says_to_leave_the_time_scale_at_1_for_the_twin(open_page: Any) -> None:
    page = open_page("otto", java_script_enabled=False).goto("/experiments/new")
    page.click("#more > summary")
    page.fill("#f-time_scale", "10")
    page.get_by_role("button", name="Start experiment").click()
    expect(page.locator("#e-time_scale")).to_contain_text("allowed: 1")
    expect(page.locator("#f-mode")).to_have_value("twin")


def test_the_page_of_a_simulation_lists_its_inputs(open_page: Any) -> None:
    page = open_page("vera").goto("/experiments/4/")
    page.click("#about > summary")
    expect(page.get_by_text("in the twin, constants of h100_sxm, Llama-3.1-8B; no engine was started")).to_be_visible()
    expect(page.get_by_role("columnheader", name="KV used, peak")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Client late p99")).to_have_count(0)


@pytest.mark.parametrize(("number", "section", "row"), [(4, "kv", "exp-0"), (1, "gpu", "gpu-1/0")])
def test_usage_over_time_is_a_chart_for_each_arm_and_a_table(
    open_page: Any, number: int, section: str, row: str
) -> None:
    opened = open_page("vera")
    page = opened.goto(f"/experiments/{number}/")
    first = page.locator("canvas[data-kv]").first
    first.hover(position={"x": 300, "y": 5})
    expect(page.locator("[data-kv-read]").first).to_contain_text(f"{row} · ")
    pixel = "canvas => [...canvas.getContext('2d').getImageData(canvas.width - 4, 24, 1, 1).data]"
    assert first.evaluate(pixel) == [228, 207, 82, 255]  # 0.9 in Cividis
    page.locator(f"#{section} figure").first.get_by_text("View as table").click()
    expect(page.locator(f"#{section} figure").first.locator("tbody tr")).to_have_count(2)
    assert opened.faults == []


def test_a_refused_form_moves_the_focus_to_the_problem(open_page: Any) -> None:
    page = open_page("otto").goto("/experiments/new")
    page.click("#more > summary")
    page.select_option("#f-mode", "replay")
    page.fill("#f-time_scale", "fast")
    page.click("text=Start experiment >> nth=-1")
    expect(page.locator("#problems")).to_be_focused()
    expect(page.locator("#f-time_scale")).to_have_value("fast")
    expect(page.locator("#f-time_scale")).to_be_visible()


def test_an_operator_cancels_a_queued_experiment(open_page: Any) -> None:
    page = open_page("otto").goto("/experiments/3/")
    page.get_by_role("button", name="Cancel experiment").click()
    expect(page.locator(".status--cancelled").first).to_be_visible()
    expect(page.get_by_text("cancelled by otto").first).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
def test_pages_pass_the_accessibility_checks(open_page: Any, path: str) -> None:
    assert faults_of(open_page("otto").drawn(path)) == []


def test_the_forest_plot_fits_a_phone(open_page: Any) -> None:
    page = open_page("vera", width=390, height=844).goto("/experiments/1/")
    plot = page.locator(".forest:visible")
    expect(plot).to_have_count(1)
    inside = plot.bounding_box()
    edges = plot.locator("text").evaluate_all("texts => texts.map((text) => text.getBoundingClientRect().right)")
    assert len(edges) > 12
    assert max(edges) <= inside["x"] + inside["width"] <= 390


def test_without_javascript_everything_but_the_chart_is_there(open_page: Any) -> None:
    page = open_page("vera", java_script_enabled=False).goto("/experiments/1/?class=warm&baseline=round_robin")
    expect(page.locator("[data-metric=ttft_p50_ms]")).to_have_count(3)
    expect(page.get_by_text("● better").first).to_be_visible()


def test_a_panel_that_cannot_be_refreshed_says_so_and_recovers(open_page: Any) -> None:
    page = open_page("vera").goto("/experiments/")
    note = page.locator(".panel-state")
    page.route("**/experiments/table*", lambda route: route.abort())
    expect(note).to_contain_text("offline The server does not answer")
    page.unroute("**/experiments/table*")
    page.route("**/experiments/table*", lambda route: route.fulfill(status=500, headers={"x-request-id": "abc"}))
    expect(note).to_contain_text("the error 500; the last values stay. Quote the request abc. Trying again.")
    page.unroute("**/experiments/table*")
    expect(note).to_have_count(0)


@pytest.mark.parametrize("path", ["/experiments/1/", "/experiments/1/?class=heavy&baseline=cache_aware"])
def test_each_difference_has_the_sign_of_its_levels(open_page: Any, path: str) -> None:
    """A reader subtracts the shown level of the baseline from that of the arm."""
    page = open_page("vera").drawn(path)
    page.get_by_role("button", name=re.compile("^All ")).click()
    rows = page.locator(".comparison tbody tr").evaluate_all(
        """rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => (
             [cell.dataset.value, cell.querySelectorAll('.number')[1]?.textContent ?? ''])))"""
    )
    compared = [
        (Decimal(value) - Decimal(level), difference)
        for row in rows
        for level in [value for value, difference in row if value and not difference]
        for value, difference in row
        if value and difference and not difference.startswith("falls")
    ]
    assert len(compared) >= 10
    for expected, difference in compared:
        assert difference[0] == ("+" if expected > 0 else "−" if expected < 0 else "0"), (expected, difference)


def test_the_comparison_scrolls_with_the_page_and_its_heading_stays(open_page: Any) -> None:
    page = open_page("vera", width=1440, height=900).drawn("/experiments/1/")
    page.get_by_role("button", name=re.compile("^All ")).click()
    table = page.locator(".comparison")
    assert table.evaluate("node => node.scrollHeight <= node.clientHeight + 1 && node.scrollWidth <= node.clientWidth")
    table.locator("tbody tr").last.evaluate("row => row.scrollIntoView({ block: 'center' })")
    bar = page.locator(".topbar").bounding_box()
    heading = table.locator("thead th").first.bounding_box()
    assert abs(heading["y"] - bar["y"] - bar["height"]) <= 2
