"""The Requests pages in a browser."""

import re
import time
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.live.dashboard.tests.browser.conftest import RunningFleet

pytestmark = pytest.mark.browser


def test_filters_go_into_the_url_and_new_requests_are_shown_only_on_demand(
    running: RunningFleet, open_page: Any
) -> None:
    now = time.time()
    running.fleet.write_receipt("req-warm", now - 2)
    running.fleet.write_receipt("req-heavy", now - 1, **{"class": "heavy"})
    opened = open_page()
    page = opened.goto("/requests/")
    expect(page.locator(".receipts tbody tr")).to_have_count(2)
    page.select_option("#f-class", "heavy")
    expect(page.locator(".receipts tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile("class=heavy"))
    running.fleet.write_receipt("req-later", time.time(), **{"class": "heavy"})
    button = page.locator("#new a")
    expect(button).to_have_text("Show 1 new request")
    expect(page.locator(".receipts tbody tr")).to_have_count(1)
    button.click()
    expect(page.locator(".receipts tbody tr")).to_have_count(2)
    assert opened.faults == []


def test_the_slowest_requests_can_be_found_and_show_where_their_time_went(
    running: RunningFleet, open_page: Any
) -> None:
    now = time.time()
    for i in range(20):
        running.fleet.write_receipt(f"req-{i}", now - 30 + i)
    running.fleet.write_receipt("req-slow", now - 40, ended=now, queue_ms=2_003.0, ttft_ms=2_405.0, e2e_ms=4_950.0)
    opened = open_page()
    page = opened.goto("/requests/")
    first = page.locator(".receipts tbody tr").first
    page.click(".receipts th button:has-text('E2E')")
    expect(first).to_contain_text("req-slow")
    expect(page.locator("th[aria-sort='descending']")).to_have_text("E2E")
    page.click("text=More filters")
    page.fill("#f-ttft_over_ms", "1000")
    page.press("#f-ttft_over_ms", "Tab")
    expect(page.locator(".receipts tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"sort=e2e.*ttft_over_ms=1000"))
    page.fill("#f-since", "2026-01-01T00:00:00")
    page.press("#f-since", "Tab")
    expect(page).to_have_url(re.compile(r"since=20\d\d-\d\d-\d\dT\d\d%3A\d\d%3A\d\dZ"))
    page.click("text=req-slow")
    expect(page.get_by_text("the difference is waiting in the router's queue: 2 s instead of 3 ms")).to_be_visible()
    expect(page.locator(".phases")).to_have_count(2)
    assert opened.faults == []


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_whole_table_is_visible_and_names_keys(running: RunningFleet, open_page: Any, width: int) -> None:
    running.fleet.write_receipt("req-1", time.time(), key="nightly-evaluations")
    page = open_page(width=width).goto("/requests/")
    expect(page.locator(".receipts tbody th")).to_contain_text("nightly-evaluat…")
    wrap = page.locator(".table-wrap")
    assert wrap.evaluate("wrap => wrap.scrollWidth <= wrap.clientWidth")


def test_a_receipt_is_explained_from_the_list(running: RunningFleet, open_page: Any) -> None:
    running.fleet.write_receipt("req-1", time.time())
    opened = open_page()
    page = opened.goto("/requests/")
    page.click("text=req-1")
    expect(page.locator("#why")).to_have_text("Why demo-1")
    expect(page.locator(".phase--first")).to_have_count(2)
    assert opened.faults == []


def test_a_decision_is_made_again_by_the_chosen_version(running: RunningFleet, open_page: Any) -> None:
    otto = open_page("otto")
    for name, strategy in (("deciding", "adaptive_v1"), ("replayed", "least_requests")):
        making = otto.goto("/policies/#new")
        making.fill("#new-name", name)
        making.select_option("#new-strategy", strategy)
        making.fill("#new-reason", "for one browser test")
        making.click("text=Create policy")
        making.wait_for_url(f"**/policies/{name}/")
    running.fleet.write_receipt("req-1", time.time(), policy="deciding", version=1)
    opened = open_page()
    page = opened.goto("/requests/req-1/")
    expect(page.locator("#replay [role=status]")).to_contain_text("deciding v1 makes the same choice")
    page.select_option("#replay-by", "replayed:1")
    expect(page.locator("#replay [role=status]")).to_contain_text("replayed v1 would have sent it to demo-0")
    assert opened.faults == []


def test_the_use_of_a_key_is_drawn_over_time_with_its_limit(running: RunningFleet, open_page: Any) -> None:
    making = open_page("ada").goto("/keys/")
    making.get_by_role("link", name="New key").click()
    making.fill("#id_name", "batch")
    making.get_by_text("Models, limits and priority").click()
    making.fill("#id_requests_per_min", "600")
    making.click("text=Create key")
    running.fleet.write_receipt("req-1", time.time(), key="batch")
    opened = open_page("otto")
    page = opened.goto("/keys/")
    page.click("th >> text=batch")
    chart = page.locator("[data-chart=requests]")
    chart.locator("summary").click()
    expect(chart.locator("tbody td", has_text=re.compile("^12$"))).to_have_count(1)  # one in 5 s
    expect(chart.locator("thead")).to_contain_text("refused")
    assert opened.faults == []
