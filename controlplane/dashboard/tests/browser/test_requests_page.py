"""The Requests pages in a browser."""

import re
import time
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.dashboard.tests.browser.conftest import RunningFleet

pytestmark = pytest.mark.browser


def test_filters_go_into_the_url_and_new_requests_wait_to_be_shown(running: RunningFleet, open_page: Any) -> None:
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


def test_a_receipt_is_explained_from_the_list(running: RunningFleet, open_page: Any) -> None:
    running.fleet.write_receipt("req-1", time.time())
    opened = open_page()
    page = opened.goto("/requests/")
    page.click("text=req-1")
    expect(page.locator("h2").first).to_have_text("Why demo-1")
    expect(page.locator(".phase--prefill")).to_have_count(2)
    assert opened.faults == []


def test_a_decision_is_made_again_by_the_version_chosen(running: RunningFleet, open_page: Any) -> None:
    making = open_page("otto").goto("/policies/")
    making.fill("#new-name", "replayed")
    making.select_option("#new-strategy", "least_requests")
    making.fill("#new-reason", "for one browser test")
    making.click("text=Create policy")
    making.wait_for_url("**/policies/replayed/")
    running.fleet.write_receipt("req-1", time.time(), policy="", version=0)
    opened = open_page()
    page = opened.goto("/requests/req-1/")
    expect(page.locator("#replay [role=status]")).to_contain_text("the built-in default makes the same choice")
    page.select_option("#replay-by", "replayed:1")
    expect(page.locator("#replay [role=status]")).to_contain_text("replayed v1 would have sent it to demo-0")
    assert opened.faults == []
