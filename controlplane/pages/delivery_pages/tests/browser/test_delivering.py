"""A delivery in a browser: from the draft's form over its page to the abort."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.testing_reading import in_both_themes, too_wide, unreadable

pytestmark = pytest.mark.browser
WHY = "less prefill on warm instances"


def form(open_page: Any, way: Any, **options: Any) -> Page:
    page: Page = open_page("otto", **options).goto(f"/policies/{way.name}/draft/review")
    page.click("text=Deliver…")
    page.wait_for_url("**/draft/deliver")
    return page


def deliver(open_page: Any, way: Any, **options: Any) -> Page:
    return delivered(form(open_page, way, **options))


def delivered(page: Page) -> Page:
    page.fill("#reason", WHY)
    page.click("button:has-text('Deliver and start v2')")
    page.wait_for_url("**/deliveries/*/")
    return page


def test_an_invalid_value_is_reported_at_its_field_and_what_was_typed_is_kept(open_page, way):
    page = form(open_page, way)
    expect(page.locator("#plan-steps > summary")).to_contain_text("Shadow 10 min → Canary 5 % 10 min →")
    expect(page.locator("#p-canary1-share")).to_be_hidden()
    page.click("#plan-steps > summary")
    page.fill("#p-canary1-share", "70")
    page.fill("#p-canary2-for", "soon")
    page.fill("#reason", WHY)
    page.click("button:has-text('Deliver and start v2')")
    expect(page.locator("#p-canary1-share-note")).to_contain_text("allowed: 0.1 to 50 %")
    expect(page.locator("#p-canary1-share")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#p-canary2-for-note")).to_contain_text("is not a time")
    expect(page.locator("#p-canary1-share")).to_have_value("70")
    expect(page.locator("#reason")).to_have_value(WHY)
    expect(page.locator("[data-focus]")).to_be_focused()
    page.click("[data-focus] a >> nth=0")
    page.fill("#p-canary1-share", "7")
    page.fill("#p-canary2-for", "15 min")
    page.click("button:has-text('Deliver and start v2')")
    page.wait_for_url("**/deliveries/*/")
    expect(page.locator(".steps")).to_contain_text("Canary 7 %")


def test_the_summary_of_a_changed_and_folded_part_shows_the_change(open_page, way):
    page = form(open_page, way)
    steps, guards = (page.locator(f"#plan-{part} > summary") for part in ("steps", "guards"))
    steps.click()
    page.fill("#p-canary1-share", "7")
    steps.click()
    expect(steps).to_contain_text("changed")
    expect(steps).not_to_contain_text("Canary")
    page.fill("#reason", WHY)
    expect(guards).to_contain_text("TTFT above")
    page.click("#plan-json > summary")
    page.check("#p-use_json")
    expect(guards).to_contain_text("changed")
    page.uncheck("#p-use_json")
    page.click("button:has-text('Check against traffic')")
    expect(steps).to_contain_text("Canary 7 %")
    expect(guards).to_contain_text("TTFT above")


def test_the_page_updates_without_a_reload_and_keeps_what_is_typed(open_page, way):
    page = deliver(open_page, way)
    expect(page.locator(".delivery-state")).to_have_text("waiting for routers")
    way.to_canary()
    page.fill("#reason", "a reason that is being typed")
    page.focus("#reason")
    expect(page.locator("[data-place=now]")).to_contain_text("Canary 5 %")
    expect(page.locator(".delivery-facts")).to_contain_text("v2 decides 5 % of the requests")
    expect(page.locator(".interval").first).to_be_visible()
    expect(page.locator("#act-abort")).to_be_visible()
    expect(page.locator("#reason")).to_have_value("a reason that is being typed")
    expect(page.locator("#reason")).to_be_focused()
    way.to_next()
    expect(page.locator("[data-place=now]")).not_to_contain_text("Canary 5 %")
    expect(page.locator("#reason")).to_have_value("a reason that is being typed")
    first = page.locator("[data-countdown]").inner_text()
    expect(page.locator("[data-countdown]")).not_to_have_text(first)


def test_a_delivery_that_ends_while_its_page_is_open_is_described_in_the_past_tense(open_page, way):
    page = deliver(open_page, way)
    way.to_canary()
    expect(page.locator("[data-place=now]")).to_contain_text("Canary 5 %")
    expect(page.locator("#delivery-what")).to_have_text("What is delivered")
    way.to_its_end()
    expect(page.locator("#delivery-what")).to_have_text("What was to go live")
    expect(page.locator("#delivery-foreseen")).to_be_empty()
    expect(page.locator(".delivery-facts")).to_contain_text("When it ended, v1 decided every request")


def test_abort_is_one_click_and_asks_for_the_reason_afterwards(open_page, way):
    page = deliver(open_page, way)
    way.to_canary()
    page.reload()
    page.click("#act-abort")
    expect(page.locator(".delivery-state")).to_have_text("aborted")
    expect(page.locator(".notice--success")).to_contain_text("v1 decides every request again")
    page.fill("#reason", "heavy requests looked slow")
    page.click("text=Add the reason")
    expect(page.locator(".delivery-facts")).to_contain_text("heavy requests looked slow")


INKED = """canvas => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const shades = new Map();
  for (let i = 0; i < data.length; i += 4) {
    const shade = data.slice(i, i + 3).join();
    if (data[i + 3] === 255) shades.set(shade, (shades.get(shade) ?? 0) + 1);
  }
  return [...shades.values()].filter((count) => count > 10).length;
}"""


def test_the_difference_and_both_arms_are_drawn_over_time_and_no_limit_of_fine_lies_in_the_red(open_page, way):
    page = deliver(open_page, way)
    expect(page.locator("#delivery-charts")).to_be_hidden()
    way.to_canary()
    figure = page.locator("#delivery-charts [data-chart=ttft-heavy]")
    expect(figure.locator("canvas")).to_have_attribute("aria-label", re.compile("Heavy TTFT .* v2 520 ms, v1 500 ms"))
    page.click("#both-arms > summary")
    figure.locator("summary").click()
    expect(figure.locator("tbody tr")).to_have_text(re.compile(r"520 ms\s*500 ms\s*550 ms"))
    between = page.locator("#delivery-charts [data-chart=difference-ttft-heavy]")
    expect(between.locator("canvas")).to_have_attribute(
        "aria-label", re.compile("difference 1.04×, fails above 1.10×, enough below 1.25×")
    )
    between.locator("summary").click()
    expect(between.locator("tbody tr")).to_have_text(re.compile(r"1.04×\s*1.10×\s*1.25×"))
    assert between.locator("canvas").evaluate(INKED) >= 4
    share = page.locator("#delivery-charts [data-chart=exposure] canvas")
    expect(share).to_have_attribute("aria-label", re.compile("Share of v2 .*assigned 5 %"))
    inside = """pictures => pictures.flatMap((svg) => {
      const red = svg.querySelector('.interval-beyond').getBoundingClientRect();
      return [...svg.querySelectorAll('.interval-fine')].filter((mark) => mark.getBoundingClientRect().x > red.x + 2);
    }).length"""
    assert page.locator(".interval").evaluate_all(inside) == 0
    evidence = page.locator("table.evidence")
    expect(evidence).to_contain_text("fails above 1.10×, enough to go on below 1.25×")
    expect(evidence.locator("tbody tr").first).not_to_contain_text("%")


def test_a_single_look_is_a_dot_and_not_an_empty_chart(open_page, way):
    page = deliver(open_page, way)
    way.to_canary()
    drawn = page.locator("#delivery-charts [data-chart=difference-ttft-heavy] canvas")
    expect(drawn).to_have_attribute("aria-label", re.compile("difference 1.04×"))
    empty = page.locator("#delivery-charts [data-chart=difference-ttft-medium] canvas")
    assert drawn.evaluate(INKED) > empty.evaluate(INKED)
    drawn.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/requests/\?delivery=\d+&class=heavy&sort=ttft&ended_until=20\d\d-.*Z$"))


def test_another_person_approves(open_page, way):
    page = form(open_page, way)
    page.click("#plan-start > summary")
    page.fill("#p-approvals", "1")
    page.fill("#reason", WHY)
    page.click("button:has-text('Deliver and start v2')")
    expect(page.locator("#delivery-actions")).to_contain_text("otto proposed the delivery: somebody else must approve")
    expect(page.locator("button:has-text('Approve')").first).to_be_disabled()
    ada = open_page("ada").goto("/deliveries/")
    expect(ada.locator(".nav-count")).to_contain_text("1")
    ada.click(f".delivery-waiting a:has-text('{way.name}')")
    ada.click("button:text-is('Approve')")
    expect(ada.locator(".delivery-state")).to_have_text("ready to start")
    expect(ada.locator(".nav-count")).to_have_count(0)


def test_everything_works_without_javascript(open_page, way):
    page = deliver(open_page, way, java_script_enabled=False)
    way.to_canary()
    page.goto(page.url)
    expect(page.locator(".delivery-facts")).to_contain_text("v2 decides 5 %")
    expect(page.locator(".interval")).to_have_count(3)
    page.click("#act-abort")
    expect(page.locator(".delivery-state")).to_have_text("aborted")


def test_the_pages_are_accessible(open_page, way):
    base, found = f"/policies/{way.name}/", {}
    page = form(open_page, way)
    found["form"] = unreadable(page)
    for path in ("/policies/", base, f"{base}draft"):
        page.goto(way.web.url + path)
        found[f"{path} before"] = unreadable(page)
    page.goto(f"{way.web.url}{base}draft/deliver")
    page = delivered(page)
    way.to_canary()
    expect(page.locator("[data-place=now]")).to_contain_text("Canary 5 %")
    found["delivery"] = unreadable(page)
    delivery = page.url.removeprefix(way.web.url)
    way.run(
        "from controlplane.traffic.policies import services; from controlplane.people.audit.services import Actor;"
        "p = services.selectors.policy('{name}'); services.open_draft(p, Actor('user', 'otto'));"
        "services.patch_draft(p, {{'classes.heavy_new_tokens': 13000}}, Actor('user', 'otto'))"
    )
    opened = open_page("ada")
    for path in (delivery, "/deliveries/", "/freezes/", f"{base}draft/deliver", base):
        page = opened.goto(path)
        words = unreadable(page) if path in ("/deliveries/", "/freezes/") else []
        found[path] = words + in_both_themes(page, minor=False) + too_wide(page)
        page.set_viewport_size({"width": 1440, "height": 900})
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert opened.faults == []
