"""Tunings in a browser: choose bounds, correct one, watch the trials, read the winners, open one as a draft."""

import pytest
from playwright.sync_api import expect

from controlplane.testing_reading import by_axe, unreadable
from router.policy.schema import document as documents

pytestmark = pytest.mark.browser
LIVE = documents.values_of(documents.default())["classes.heavy_new_tokens"]
HEAVY = "[name='{}:classes.heavy_new_tokens']"


def test_a_tuning_is_started_watched_and_its_winner_opened_as_a_draft(open_page, shell):
    shell("policy('searched')")
    opened = open_page("otto")
    page = opened.goto("/policies/searched/tunings/")
    expect(page.locator(HEAVY.format("low"))).to_have_value(f"{LIVE // 4:,}")
    page.click("text=Trials, time, requests and limits")
    page.click("summary:has-text('Parameters to search')")
    page.select_option("#trace", "agentic-demo")
    page.fill("#trials", "3")
    page.fill("#workers", "1")
    page.fill("#max_requests", "100")
    page.fill(HEAVY.format("low"), "900,000")
    assert by_axe(page) == []
    page.click("button:has-text('Start tuning')")
    expect(page.get_by_role("alert")).to_contain_text("Low of Heavy threshold: is not below the upper bound")
    expect(page.locator(HEAVY.format("low"))).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#trials")).to_have_value("3")
    assert by_axe(page) == []
    page.fill(HEAVY.format("low"), "8000")
    page.click("button:has-text('Start tuning')")
    expect(page.locator("#tuning-state")).to_contain_text("0 of 3 trials")
    shell("worker_begins()")
    expect(page.locator("#tuning-state")).to_contain_text("1 of 3 trials")
    expect(page.locator(".tuning-point--trial")).to_have_count(1)
    shell("worker_computes()")
    expect(page.locator("#winners-title")).to_be_visible(timeout=15_000)
    expect(page.locator(".tuning-point--live")).to_have_count(1)
    expect(page.locator("#untested-title")).to_be_visible()
    assert unreadable(page) == []
    assert by_axe(page) == []
    page.click("button:has-text('Open as draft') >> nth=0")
    page.wait_for_url("**/policies/searched/draft")
    expect(page.locator("main")).to_contain_text("which the search never saw")
    assert [fault for fault in opened.faults if "422" not in fault] == []
