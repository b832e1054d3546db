"""The fleet pages in a browser: they update themselves, show a plan before it is applied, and are accessible."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.live.dashboard.tests.browser.conftest import RunningFleet
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.fleet_pages.tests.browser.conftest import write_router, write_samples
from controlplane.testing_browser import Web
from controlplane.testing_reading import STILL, faults_of, shifted

pytestmark = pytest.mark.browser
PAGES = (
    "/fleet/",
    "/fleet/pools/demo/",
    "/fleet/pools/chat/",
    "/fleet/instances/demo-0/",
    "/fleet/nodes/",
    "/fleet/nodes/local/",
    "/fleet/apply",
    "/policies/",
)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_accessible_and_its_console_stays_empty(fleet: Web, open_page: Any, path: str) -> None:
    opened = open_page("otto")
    page = opened.goto(path)
    if page.locator("#fleet-pause").count():
        page.wait_for_event("response", lambda answer: "hx-request" in answer.request.headers)
    assert shifted(page) < STILL
    assert faults_of(page) == []
    assert opened.faults == []


def test_a_row_on_a_narrow_screen_is_a_card_with_labelled_figures(fleet: Web, open_page: Any) -> None:
    page = open_page("vera", width=320, height=640).goto("/fleet/")
    cell = page.locator("tr", has_text="demo-0").locator("[data-label='KV usage']")
    cell.scroll_into_view_if_needed()
    assert cell.evaluate("node => getComputedStyle(node, '::before').content") == '"KV usage"'
    assert cell.evaluate("node => node.getBoundingClientRect().right") <= 320


def test_the_list_names_a_policy_that_does_not_exist(fleet: Web, open_page: Any) -> None:
    page = open_page("otto").goto("/fleet/")
    chat = page.locator("section", has=page.locator("#pool-chat"))
    expect(chat).to_contain_text("policy chat does not exist")
    chat.get_by_text("Create it").click()
    expect(page.locator(".notice--warning")).to_contain_text("names policy chat, which does not exist")
    page.get_by_text("Create a policy named chat").click()
    expect(page.locator("#new-name")).to_be_in_viewport()


def test_topology_and_bars_show_where_requests_and_blocks_are(fleet: Web, open_page: Any) -> None:
    write_router(fleet)
    opened = open_page("otto")
    page = opened.goto("/fleet/")
    way = page.get_by_role("group", name="Topology of demo")
    expect(way).to_contain_text("router-1")
    expect(way).to_contain_text("v3")
    assert way.locator("[data-status=failed]").inner_text() == "demo-1"
    expect(way.get_by_role("img", name="KV usage 25 %")).to_have_count(1)
    menu = page.get_by_label("Menu of demo")
    menu.click()
    expect(page.locator("#fleet-age")).to_have_text(
        re.compile("updated ([3-9]|[0-9]{2}) s ago")
    )  # a refresh does not close the menu
    expect(page.locator("details.menu[open]")).to_have_text(re.compile("Live.*Requests.*Scale.*Edit.*Roll back", re.S))
    page.keyboard.press("Escape")
    page.click("#way-demo-0")
    expect(page.locator(".fleet-danger + ul")).to_contain_text("it stays stopped")
    expect(page.locator(".fleet-verbs").first).not_to_contain_text("Restart")
    assert opened.faults == []


def test_figures_update_by_themselves_until_the_reader_pauses(fleet: Web, open_page: Any) -> None:
    page = open_page("vera").goto("/fleet/pools/demo/")
    running = page.locator("tr", has_text="demo-0").locator("[data-label='Running']")
    expect(running).to_have_text("2")
    write_samples(fleet, running=7)
    expect(running).to_have_text("7")
    page.click("#fleet-pause")
    expect(page.locator("#fleet-age")).to_contain_text("paused")
    write_samples(fleet, running=9)
    expect(page.locator("#fleet-age")).to_have_text(re.compile("paused, updated ([5-9]|[0-9]{2}) s ago"))
    expect(running).to_have_text("7")
    page.click("#fleet-pause")
    expect(running).to_have_text("9")


def test_a_log_follows_its_end_unless_the_reader_has_scrolled(fleet: Web, log: Path, open_page: Any) -> None:
    page = open_page("vera").goto("/fleet/instances/demo-0/")
    shown = page.locator(".log")
    node = "() => { const node = document.querySelector('.log'); return "
    at_end = node + "node.scrollTop + node.clientHeight >= node.scrollHeight - 4 }"
    assert shown.evaluate("node => node.scrollHeight > node.clientHeight")
    page.wait_for_function(at_end)
    with log.open("a") as file:
        file.write("simengine: a new line\n")
    expect(shown).to_contain_text("a new line")
    page.wait_for_function(at_end)
    shown.evaluate("node => { node.scrollTop = 40; }")
    with log.open("a") as file:
        file.write("simengine: one more\n")
    expect(shown).to_contain_text("one more")
    page.wait_for_function(node + "node.scrollTop === 40 }")


def test_a_document_is_planned_then_applied_with_a_reason(changing_fleet: Web, open_page: Any) -> None:
    opened = open_page("otto")
    page = opened.goto("/fleet/apply")
    page.fill(
        "#document",
        page.input_value("#document").replace("replicas: 3", "replicas: 5").replace("policy: chat", "policy: default"),
    )
    page.click("text=Show changes")
    plan = page.locator("section", has=page.locator("#plan"))
    expect(plan).to_contain_text("replicas 3 → 5")
    expect(plan).to_contain_text("starts 2 instances")
    expect(plan).to_contain_text("policy chat → default")
    page.click("text=Apply 2 changes")
    assert page.evaluate("document.activeElement.id") == "reason"  # nothing was sent without a reason
    page.fill("#reason", "the evening needs more")
    page.click("text=Apply 2 changes")
    page.wait_for_url("**/fleet/")
    expect(page.locator("section", has=page.locator("#pool-demo"))).to_contain_text("2 not created yet")
    page.goto(changing_fleet.url + "/audit/?action=fleet.applied")
    expect(page.locator("tbody tr").first).to_contain_text("the evening needs more")
    assert opened.faults == []


def test_a_document_that_cannot_be_applied_says_where_and_keeps_the_text(fleet: Web, open_page: Any) -> None:
    page = open_page("otto").goto("/fleet/apply")
    # The form would refuse a policy that does not exist; this pool was created in another way.
    wrong = page.input_value("#document").replace("replicas: 3", "replicas: -1")
    page.fill("#document", wrong)
    page.click("text=Show changes")
    expect(page.locator("#problems")).to_contain_text("spec.pools[1].replicas")
    assert page.input_value("#document").replace("\r\n", "\n") == wrong
    assert page.locator("#plan").count() == 0


def test_an_operator_drains_with_a_reason_and_a_viewer_cannot(changing_fleet: Web, open_page: Any) -> None:
    page = open_page("otto").goto("/fleet/instances/demo-0/")
    page.fill("#reason", "a fan is loud")
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.locator(".timeline")).to_contain_text("a fan is loud")
    page = open_page("vera").goto("/fleet/instances/demo-0/")
    expect(page.locator("#locked")).to_contain_text("requires the role operator")
    expect(page.get_by_role("button", name="Restart")).to_be_disabled()


def test_controls_are_beside_the_state_on_a_wide_screen_and_above_it_on_a_narrow_one(
    fleet: Web, open_page: Any
) -> None:
    where = """() => ['.fleet-controls', '.fleet-main']
                      .map((name) => document.querySelector(name).getBoundingClientRect())
                      .map(({left, top}) => ({left, top}))"""
    controls, facts = open_page("otto", width=1440).goto("/fleet/instances/demo-0/").evaluate(where)
    assert controls["left"] > facts["left"]
    assert controls["top"] == facts["top"]
    controls, facts = open_page("otto", width=390).goto("/fleet/instances/demo-0/").evaluate(where)
    assert controls["top"] < facts["top"]


@pytest.fixture
def loaded(fleet: Web) -> Iterator[RunningFleet]:
    running = RunningFleet(FakeFleet(fleet.redis, size=3))
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("path", "kv", "opens"),
    [
        ("/fleet/instances/demo-0/", r"KV usage of demo-0 over 5 min: latest KV usage \d+ %", "instance=demo-0"),
        ("/fleet/pools/demo/", r"KV usage of demo over 5 min: latest mean \d+ %, highest \d+ %", "pool=demo"),
        ("/fleet/nodes/local/", r"KV usage of local over 5 min: latest mean \d+ %, highest \d+ %", ""),
    ],
)
def test_charts_show_the_load_over_the_ranges_of_live_and_open_the_requests_behind_it(
    loaded: RunningFleet, open_page: Any, path: str, kv: str, opens: str
) -> None:
    opened = open_page("vera")
    page = opened.goto(path)

    def chart(key: str) -> Any:
        return page.locator(f"[data-chart={key}] canvas")

    expect(chart("kv")).to_have_attribute("aria-label", re.compile(kv))
    expect(chart("running")).to_have_attribute("aria-label", re.compile(r"latest running \d+$"))
    expect(chart("hits")).to_have_attribute("aria-label", re.compile(r"latest hits \d+ %$"))
    expect(chart("ttft")).to_have_attribute("aria-label", re.compile(r"TTFT p90 of the pool .* latest warm [\d.]+ m?s"))
    beside_sample = "instances" in path  # the panel of the sample has its figures and their age
    latest = page.locator("[data-chart=waiting] [data-part=latest]")
    expect(latest).to_have_text("" if beside_sample else re.compile(r"^\d"))
    page.click("[data-range='900']")
    expect(chart("kv")).to_have_attribute("aria-label", re.compile("over 15 min"))
    expect(page).to_have_url(re.compile("range=900"))
    with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
        pass
    chart("waiting").focus()
    page.keyboard.press("End")
    expect(page.locator("[data-chart=waiting] output")).to_have_text(re.compile(r"waiting \d|no data"))
    beside = page.locator("[data-chart=kv] output")  # shows its value at that time, and is not read aloud
    expect(beside).to_have_text(re.compile(r"KV usage \d|mean \d|no data"))
    expect(beside).to_have_attribute("aria-live", "off")
    page.keyboard.press("Tab")
    expect(beside).to_have_text("")
    legend = page.locator("[data-chart=ttft] [data-series]")
    for pressed in (["false", "true", "false"], ["false", "false", "false"]):
        legend.nth(1).click()
        assert [each.get_attribute("aria-pressed") for each in legend.all()] == pressed
    assert opened.faults == []
    if opens:
        at_its_end(chart("waiting"), rf"\?{opens}&sort=ttft&until=20\d\d-.*Z&ended_since=20\d\d-.*Z$")
    else:
        expect(page.locator("[data-opens]")).to_have_count(0)


def at_its_end(canvas: Any, opens: str) -> None:
    """Open the requests at the right end of a chart."""
    canvas.focus()
    canvas.page.keyboard.press("End")
    canvas.page.keyboard.press("Enter")
    canvas.page.wait_for_url(re.compile(f"/requests/{opens}"))


def test_a_chart_of_an_api_key_opens_its_requests(fleet: Web, open_page: Any) -> None:
    page = open_page("ada").goto("/keys/#new")
    page.fill("#id_name", "team-a")
    page.click("button:text-is('Create key')")
    page.click("a:text-is('team-a')")
    drawn = page.locator("[data-chart=tokens] canvas")
    expect(drawn).to_have_attribute("aria-label", re.compile("of team-a over 5 min"))
    at_its_end(drawn, r"\?key=team-a&sort=ttft&since=20\d\d-.*Z&until=20\d\d-.*Z$")
