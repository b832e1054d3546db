"""Only in a browser: autosave, marks at fields, two people at once, and everything without JavaScript."""

import itertools
import json
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.receipts import class_shares, spreads
from controlplane.testing_browser import PASSWORD, Web
from controlplane.testing_reading import by_axe, in_both_themes, too_wide, unreadable
from router.policy.schema import document as documents

pytestmark = pytest.mark.browser

NAMES = (f"night-{number}" for number in itertools.count(1))
HEAVY = "#f-classes-heavy-new-tokens"
USAGE = "#f-load-kv-usage-max"
STATE = "#draft-state"
LIVE = documents.default()
WHY = "less prefill on warm instances"


@pytest.fixture(scope="session", autouse=True)
def default_policy(web: Web) -> None:
    web.run("from controlplane.traffic.policies.services import ensure_default_policy as e; e()")


@pytest.fixture
def policy(open_page: Any) -> str:
    """A separate policy for the test, which otto creates on the list."""
    name = next(NAMES)
    page = open_page("otto").goto("/policies/")
    page.click("text=New policy")
    page.fill("#new-name", name)
    page.fill("#new-reason", "for one browser test")
    page.click("text=Create policy")
    page.wait_for_url(f"**/policies/{name}/")
    return name


def editor(open_page: Any, policy: str, user: str = "otto", **options: Any) -> Page:
    page: Page = open_page(user, **options).goto(f"/policies/{policy}/")
    page.locator(".page-head").get_by_text("Edit").click()
    page.wait_for_url("**/draft")
    return page


def put(page: Page, selector: str, text: str) -> None:
    page.fill(selector, text)
    page.press(selector, "Tab")


def test_a_change_is_saved_automatically(open_page, policy):
    page = editor(open_page, policy)
    put(page, HEAVY, "12,000")
    expect(page.locator(STATE)).to_contain_text("1 change against what is live")
    expect(page.locator(".draft-index")).to_contain_text("Request classes 1")
    page.reload()
    expect(page.locator(HEAVY)).to_have_value("12000")


def test_arrow_keys_change_a_value_by_the_parameters_step(open_page, policy):
    page = editor(open_page, policy)
    page.focus(HEAVY)
    page.keyboard.press("ArrowUp")
    expect(page.locator(HEAVY)).to_have_value("41000")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator(HEAVY)).to_have_value("31000")


def test_an_invalid_value_is_marked_at_its_field_and_kept(open_page, policy):
    page = editor(open_page, policy)
    put(page, HEAVY, "plenty")
    expect(page.locator(f"{HEAVY}-error")).to_contain_text("allowed: a whole number from 256")
    expect(page.locator(HEAVY)).to_have_value("plenty")
    expect(page.locator(HEAVY)).to_have_attribute("aria-invalid", "true")
    put(page, HEAVY, "12000")
    expect(page.locator(f"{HEAVY}-error")).to_be_hidden()
    expect(page.locator(STATE)).to_contain_text("Draft saved")


def test_the_distribution_of_requests_comes_first_and_nothing_overlaps_it(web, open_page, policy):
    fleet = FakeFleet(web.redis)
    for number in range(40):
        fleet.write_receipt(f"first-{number}", time.time(), pool=policy)
    made = f"Pool.objects.create(name='{policy}', model='m', kind='sim', policy='{policy}', replicas=1)"
    web.run(f"from fleet.models import Pool; {made}")
    page = editor(open_page, policy, width=1440, height=900)
    assert page.locator(".draft-section h2").first.inner_text() == "Request classes"
    picture = page.locator("#class-shares [data-plots]").bounding_box()
    bar = page.locator(".policy-actions").bounding_box()
    assert picture["height"] > 100
    assert picture["y"] + picture["height"] <= bar["y"]
    expect(page.locator(".strategy-formula code")).to_be_hidden()
    page.click("text=How it decides")
    expect(page.locator(".strategy-formula code")).to_be_visible()
    assert unreadable(page) == []


def test_parameters_can_be_searched_and_filtered_by_change(open_page, policy):
    page = editor(open_page, policy)
    timeout = page.locator("#f-failure-connect-timeout-s")
    expect(timeout).to_be_hidden()
    page.fill("#draft-search", "connecting give")
    expect(timeout).to_be_visible()
    expect(page.locator(HEAVY)).to_be_hidden()
    expect(page.locator("#draft-found")).to_contain_text("1 of ")
    put(page, "#f-failure-connect-timeout-s", "2.5")
    page.fill("#draft-search", "")
    page.check("#draft-changed")
    expect(page.locator(".parameter[data-words]:visible")).to_have_count(1)
    page.uncheck("#draft-changed")
    expect(page.locator(HEAVY)).to_be_visible()
    expect(page.locator(STATE)).to_contain_text("1 change against what is live")
    page.reload()
    expect(timeout).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") < 3600


def test_corrected_fields_disappear_from_the_summary_of_errors(open_page, policy):
    page = editor(open_page, policy)
    page.fill(HEAVY, "7")
    page.fill(USAGE, "much")
    page.click("button:has-text('Review changes')")
    expect(page.locator("#error-summary")).to_contain_text("2 errors to fix")
    page.wait_for_load_state()  # the scripts that save have loaded
    put(page, HEAVY, "12000")
    expect(page.locator("#error-summary")).to_contain_text("1 error to fix")
    put(page, USAGE, "0.8")
    expect(page.locator("#error-summary")).to_have_count(0)


def test_leaving_the_page_warns_only_if_something_would_be_lost(open_page, policy):
    page = editor(open_page, policy)
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    put(page, HEAVY, "12000")
    expect(page.locator(STATE)).to_contain_text("1 change")
    page.reload()
    assert asked == []
    put(page, HEAVY, "plenty")
    expect(page.locator(STATE)).to_contain_text("Not saved yet")
    page.reload()
    assert asked == ["beforeunload"]


def test_a_failed_save_is_not_reported_as_saved(open_page, policy):
    page = editor(open_page, policy)
    page.route("**/draft/autosave", lambda route: route.fulfill(status=503))
    put(page, HEAVY, "12000")
    expect(page.locator(STATE)).to_contain_text("Not saved: the server answered with the error 503")
    page.unroute("**/draft/autosave")
    expect(page.locator(STATE)).to_contain_text("1 change against what is live")  # it is retried automatically


def test_a_killed_web_process_loses_nothing_that_was_typed(open_page, policy, web):
    page = editor(open_page, policy)
    page.evaluate("globalThis.sameDocument = true")
    web.stop("web")
    put(page, HEAVY, "12000")
    expect(page.locator(STATE)).to_contain_text("Not saved: the server does not answer")
    web.start()
    expect(page.locator(STATE)).to_contain_text("1 change against what is live")
    assert page.evaluate("globalThis.sameDocument") is True


def test_another_strategy_shows_its_own_fields(open_page, policy):
    page = editor(open_page, policy)
    page.select_option("#f-strategy-name", "cache_aware")
    expect(page.locator("[name='strategy.hit_weight']")).to_be_visible()
    expect(page.locator("[name='strategy.heavy_cache_loss_max']")).to_have_count(0)


def test_two_authors_get_a_conflict_and_settle_it_field_by_field(open_page, policy):
    otto, ada = editor(open_page, policy), editor(open_page, policy, "ada")
    put(ada, USAGE, "0.8")
    expect(ada.locator(STATE)).to_contain_text("1 change")
    expect(otto.locator("#draft-watch")).to_contain_text("ada saved this draft")
    put(otto, HEAVY, "12000")
    expect(otto.locator(STATE)).to_contain_text("saved by ada meanwhile")
    otto.click("text=Review changes")
    expect(otto.locator("h1")).to_have_text("Resolve conflicts")
    expect(otto.locator("[name='choose-load.kv_usage_max'][value=theirs]")).to_be_checked()
    mine = otto.locator("[name='choose-classes.heavy_new_tokens'][value=mine]")
    expect(mine).to_be_checked()
    otto.set_viewport_size({"width": 390, "height": 844})
    box = mine.bounding_box()
    assert box["x"] + box["width"] <= 390
    otto.click("text=Save and review")
    expect(otto.locator("main")).to_contain_text("12,000 tokens")
    expect(otto.locator("main")).to_contain_text("0.8")


def test_after_a_session_has_ended_the_page_keeps_what_was_typed_and_a_new_session_saves_it(web, open_page, policy):
    page = editor(open_page, policy)
    page.context.clear_cookies(name="sessionid")
    put(page, HEAVY, "12000")
    expect(page.locator("#banners")).to_contain_text("You are signed out")
    expect(page.locator(STATE)).to_contain_text("Not saved: you are signed out")
    page.click("text=Save draft")  # this would open the sign-in page
    expect(page.locator(HEAVY)).to_have_value("12000")
    another = page.context.new_page()
    another.goto(f"{web.url}/login")
    another.fill("#username", "otto")
    another.fill("#password", PASSWORD)
    another.click("main button[type=submit]")
    another.wait_for_url("**/live")
    expect(page.locator(HEAVY)).to_have_value("12000")
    with page.expect_navigation():
        page.click("text=Save draft")
    expect(page.locator(HEAVY)).to_have_value("12000")
    put(page, USAGE, "0.8")
    expect(page.locator(STATE)).to_contain_text("2 changes against what is live")
    expect(page.locator("#banners")).not_to_contain_text("You are signed out")


def test_on_the_review_cancel_has_the_focus_and_the_page_opens_at_its_top(open_page, policy):
    page = editor(open_page, policy)
    put(page, HEAVY, "12000")
    expect(page.locator(STATE)).to_contain_text("1 change")
    page.click("text=Review changes")
    expect(page.get_by_role("link", name="Cancel")).to_be_focused()
    page.set_viewport_size({"width": 390, "height": 400})
    page.reload()
    expect(page.get_by_role("link", name="Cancel")).to_be_focused()
    assert page.evaluate("scrollY") == 0


def test_without_javascript_a_threshold_is_edited_published_and_rolled_back(open_page, policy):
    page = editor(open_page, policy, java_script_enabled=False)
    page.fill(HEAVY, "7")
    page.click("text=Review changes")
    expect(page.locator("#error-summary")).to_contain_text("7 is below 256")
    page.fill(HEAVY, "12000")
    page.click("text=Review changes")
    page.fill("#reason", WHY)
    page.click("button:has-text('Publish v2')")
    expect(page.locator("h1")).to_contain_text(f"{policy} v2")
    page.click("a:has-text('Roll back to v1')")
    page.click("button:has-text('Roll back to v1')")
    expect(page.locator("h1")).to_contain_text(f"{policy} v3")
    taken_back = page.locator(".page-head").get_by_text("Roll back to v2")
    expect(taken_back).to_have_count(0)
    page.goto(page.url.partition("/versions/")[0] + "/")
    expect(taken_back).to_have_count(0)


def test_a_viewer_finds_controls_disabled_and_why(open_page, policy):
    page = open_page("vera").goto(f"/policies/{policy}/")
    expect(page.get_by_role("button", name="Edit")).to_be_disabled()
    expect(page.locator("#locked")).to_contain_text("requires the role operator; ask ada, otto")
    version = page.locator("[data-tools=versions] tbody tr")
    page.fill("#versions-filter", "no such reason")
    expect(version).to_be_hidden()
    page.fill("#versions-filter", "otto one browser")
    expect(version).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="JSON as shown").click()
    assert json.loads(saved.value.path().read_text())[0]["Why"] == "for one browser test"


def test_pages_of_drafts_and_people_are_accessible_and_the_console_stays_empty(open_page, policy):
    page = editor(open_page, policy)
    put(page, HEAVY, "12000")
    expect(page.locator(STATE)).to_contain_text("1 change")
    base = f"/policies/{policy}/"
    opened, found = open_page("ada"), {}
    for path in (
        "/policies/", base, f"{base}draft", f"{base}draft/review", f"{base}versions/1/", f"{base}compare",
        f"{base}rollback", "/audit/", "/tokens/", "/keys/", "/users/", "/api/v1/docs",
    ):  # fmt: skip
        page = opened.goto(path)
        found[path] = in_both_themes(page) + too_wide(page)
        page.set_viewport_size({"width": 1440, "height": 900})
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert opened.faults == []


def test_a_threshold_is_shown_and_can_be_moved_on_the_distribution_of_requests(open_page, policy, web):
    """The picture agrees with Python, a line follows its input, and an input its line."""
    sizes = [(400 * i, 150 * (i % 3) * i // 2) for i in range(1, 101)]
    fleet = FakeFleet(web.redis)
    for i, (prompt, cached) in enumerate(sizes):
        fleet.write_receipt(
            f"r{i}", time.time() - 100 + i, time.time(), prompt_tokens=prompt, predicted_cached=cached, pool=policy
        )
    made = f"Pool.objects.create(name='{policy}', model='m', kind='sim', policy='{policy}', replicas=1)"
    web.run(f"from fleet.models import Pool; {made}")

    def said(**changes: float) -> str:
        draft = documents.apply_overrides(LIVE, {f"classes.{name}": value for name, value in changes.items()})
        return class_shares.sentence(sizes, documents.parse(LIVE), documents.parse(draft))

    page = editor(open_page, policy)
    sentence = page.locator("#class-shares [data-sentence]")
    expect(sentence).to_have_text(said())
    page.fill(HEAVY, "12,000")
    expect(sentence).to_have_text(said(heavy_new_tokens=12_000))
    line = page.get_by_role("slider", name="Heavy threshold")
    line.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(HEAVY)).to_have_value("13000")
    expect(sentence).to_have_text(said(heavy_new_tokens=13_000))
    line.scroll_into_view_if_needed()
    box = line.locator("rect").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    dragged = int(page.locator(HEAVY).input_value())
    assert dragged > 13_000
    expect(sentence).to_have_text(said(heavy_new_tokens=dragged))
    expect(page.locator(STATE)).to_contain_text("1 change against what is live")
    box = line.locator("rect").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] - 300, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    expect(page.locator(HEAVY)).to_have_value("6000")  # it stops above the warm threshold, where the draft is valid
    expect(page.locator(STATE)).to_contain_text("1 change against what is live")
    page.locator("#class-shares summary").click()
    expect(page.locator("#class-shares table")).to_be_visible()
    expect(page.locator("#class-shares")).to_contain_text("Arrived")
    usage = page.locator(".spread", has_text="KV usage of an instance")
    expect(usage.locator("[data-sentence]")).to_have_text("0.0 % above 0.95, of 300")
    page.fill("#f-load-kv-usage-max", "0.25")
    moved = spreads.sentence([(0.0, 200), (0.5, 100)], 0.95, 0.25, "share")
    expect(usage.locator("[data-sentence]")).to_have_text(moved)
    assert by_axe(page, ".draft-form") == []
    page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
    bar, preview = (page.locator(part).bounding_box() for part in (".policy-actions", "#preview"))
    assert preview["x"] >= bar["x"] + bar["width"]  # the bar covers no part of the text
