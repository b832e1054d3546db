"""Previews in a browser: edit, preview, watch, read, publish; and every state of the panel."""

import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.testing_reading import by_axe, in_both_themes, too_wide, unreadable

pytestmark = pytest.mark.browser

HEAVY = "#f-classes-heavy-new-tokens"
PREVIEW = "button:has-text('Preview on recorded traffic')"
STATE = "#preview-state"
WHY = "less prefill on warm instances"
FEW = "87 requests were compared, fewer than 200"


def editor(open_page: Any, policy: str, user: str = "otto", **options: Any) -> Page:
    page: Page = open_page(user, **options).goto(f"/policies/{policy}/draft")
    return page


def put(page: Page, selector: str, text: str) -> None:
    page.fill(selector, text)
    page.press(selector, "Tab")


def test_a_change_is_previewed_read_and_published(open_page, shell, policy):
    page = editor(open_page, policy)
    expect(page.locator(STATE)).to_contain_text("Not previewed yet")
    page.fill(HEAVY, "7000")
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    expect(page.locator("#draft-state")).to_contain_text("1 change against what is live")
    expect(page.locator("#preview")).to_be_in_viewport()
    shell(f"worker_begins({policy!r})")
    expect(page.locator("#preview-progress")).to_be_visible()
    expect(page.locator("#preview-left")).to_contain_text("left")
    expect(page.locator(".preview-first")).to_contain_text("The full result will replace it")
    expect(page.locator(f"{STATE} svg.forest:visible")).to_be_visible()
    shell(f"worker_computes({policy!r})")
    expect(page.locator(".preview-first")).to_have_count(0)
    expect(page.locator(".preview-sentence")).to_contain_text("differently")
    expect(page.locator("#preview-said")).to_contain_text("Preview done. 1 caveat.")
    expect(page.locator("#preview")).to_contain_text("is not traffic of pool")
    page.click("text=Review changes")
    expect(page.locator(".preview-line")).to_contain_text("differently")
    page.fill("#reason", WHY)
    page.click("button:has-text('Publish v2')")
    expect(page.locator("h1")).to_contain_text(f"{policy} v2")
    page.click("a:has-text('of requests routed differently')")
    expect(page.locator(STATE)).to_contain_text("of a draft that is no longer open")


def test_a_preview_started_while_the_draft_is_saved_is_shown_even_by_a_slow_server(open_page, policy):
    """The refresh of the panel for the saved draft must not end between the press and its answer."""
    opened = open_page("otto")
    page = opened.goto(f"/policies/{policy}/draft")
    expect(page.locator(STATE)).to_contain_text("Not previewed yet")

    def late(route: Any) -> None:
        answer = route.fetch()
        time.sleep(0.7)
        route.fulfill(response=answer)

    page.route("**/draft/autosave", late)
    page.route("**/draft/preview", late)
    with page.expect_request("**/draft/autosave"):
        put(page, HEAVY, "7000")
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    assert opened.faults == []


def test_a_running_preview_is_cancelled_and_the_focus_stays_nearby(open_page, shell, policy):
    page = editor(open_page, policy)
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    shell(f"worker_begins({policy!r})")
    expect(page.locator("#preview-progress")).to_be_visible()
    page.focus("#preview-cancel")
    for _ in range(2):
        with page.expect_response("**/draft/preview/state"):
            pass
    expect(page.locator("#preview-cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(STATE)).to_contain_text("The preview was cancelled")
    expect(page.locator(STATE)).to_contain_text("cancelled by otto")
    expect(page.locator(".preview-first")).to_contain_text("First answer, from ")
    expect(page.locator("#preview-said")).to_contain_text("Preview cancelled")
    expect(page.locator("#preview-title")).to_be_focused()


def test_a_failure_says_its_cause_and_the_next_press_tries_again(open_page, shell, policy):
    page = editor(open_page, policy)
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    shell(f"worker_fails({policy!r}, 'worker lost: nothing was heard of it for 12 s')")
    expect(page.locator(STATE)).to_contain_text("worker lost")
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")


def test_an_invalid_value_is_marked_at_its_field_and_nothing_is_started(open_page, policy):
    page = editor(open_page, policy)
    page.fill(HEAVY, "plenty")
    with page.expect_response("**/draft/autosave"):
        page.click(PREVIEW)
    expect(page.locator(HEAVY)).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#draft-state")).to_contain_text("Not saved yet")
    page.wait_for_timeout(500)  # time enough for a second request of the panel
    expect(page.locator(STATE)).to_contain_text("No preview was started")


def test_a_change_after_the_preview_greys_it_and_undoing_the_change_restores_it(open_page, shell, policy):
    shell(f"previewed({policy!r})")
    page = editor(open_page, policy)
    expect(page.locator(".preview-sentence")).to_be_visible()
    page.click("#preview-more > summary")
    page.click("#preview-class-medium > summary")
    put(page, HEAVY, "8000")
    expect(page.locator(STATE)).to_contain_text("of revision 2, and the draft is now revision 3")
    expect(page.locator(".preview-result--older")).to_have_count(1)
    expect(page.locator("#preview-class-medium")).to_have_attribute("open", "")
    put(page, HEAVY, "9000")
    expect(page.locator(".preview-result--older")).to_have_count(0)


def test_seeds_and_trace_are_chosen_by_keyboard(open_page, policy):
    page = editor(open_page, policy)
    page.focus("#preview-choices > summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#preview-pool")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("agentic")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("3, 4")
    page.keyboard.press("Tab")
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    page.reload()
    expect(page.locator("#preview-seeds")).to_have_value("3, 4")


def test_enter_in_a_field_saves_the_draft_and_starts_no_preview(open_page, policy):
    page = editor(open_page, policy)
    page.fill(HEAVY, "7000")
    with page.expect_navigation():
        page.press(HEAVY, "Enter")
    expect(page.locator("main")).to_contain_text("Draft saved")
    expect(page.locator(STATE)).to_contain_text("Not previewed yet")


def test_a_server_that_is_unreachable_is_reported_and_the_draft_is_kept(open_page, policy):
    page = editor(open_page, policy)
    page.route("**/draft/preview", lambda route: route.fulfill(status=503))
    page.click(PREVIEW)
    expect(page.locator("#preview-fault")).to_contain_text("error 503; nothing was started")
    page.unroute("**/draft/preview")
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    expect(page.locator("#preview-fault")).to_be_hidden()


def test_without_javascript_a_draft_is_previewed_and_published(open_page, shell, policy):
    page = editor(open_page, policy, java_script_enabled=False)
    page.fill(HEAVY, "7000")
    page.click(PREVIEW)
    expect(page.locator("h1")).to_contain_text(f"of {policy}")
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    shell(f"worker_ends({policy!r})")
    expect(page.locator(".preview-sentence")).to_contain_text("differently")  # it reloads itself
    page.click("text=Review changes")
    expect(page.locator(".preview-line")).to_contain_text("differently")
    page.fill("#reason", WHY)
    page.click("button:has-text('Publish v2')")
    expect(page.locator("h1")).to_contain_text(f"{policy} v2")


def test_without_javascript_a_preview_is_cancelled(open_page, policy):
    page = editor(open_page, policy, java_script_enabled=False)
    page.click(PREVIEW)
    page.click("text=Cancel preview")
    expect(page.locator(STATE)).to_contain_text("cancelled by otto")


def test_a_viewer_reads_the_same_verdict_in_headline_plot_and_table_and_has_no_button(open_page, shell, policy):
    shell(f"barely_better({policy!r})")
    page = editor(open_page, policy)
    link = page.get_by_role("link", name="Link to this preview").get_attribute("href")
    page = open_page("vera").goto(link)
    expect(page.locator(".preview-sentence")).to_contain_text("no difference in TTFT p90 or E2E p50")
    expect(page.locator(".forest .forest-better, .forest .forest-worse")).to_have_count(0)
    page.click("#preview-summary-all")
    row = page.locator("#preview-class-all tbody tr", has_text="E2E p50")
    expect(row.locator(".verdict")).to_have_text("◇ not distinguishable")
    expect(page.locator("#locked")).to_contain_text("requires the role operator")
    assert page.locator("main button").count() == 0


def pages_of(shell: Any, policy: str) -> tuple[str, ...]:
    """The editor and the review with a preview that is in doubt, and the preview's own page."""
    shell(f"previewed({policy!r}, {FEW!r})")
    base = f"/policies/{policy}/"
    return f"{base}draft", f"{base}draft/review", base


def opened_everything(page: Page) -> None:
    for fold in page.locator("#preview details").all():
        if fold.get_attribute("open") is None:
            fold.locator("> summary").click()


def test_current_and_older_previews_are_readable_and_their_controls_large_enough(open_page, shell, policy):
    opened, found = open_page("otto"), []
    paths = pages_of(shell, policy)
    for path in (*paths[1:], paths[0]):
        page = opened.goto(path)
        opened_everything(page)
        found += in_both_themes(page) + too_wide(page)
        page.set_viewport_size({"width": 1440, "height": 900})
    controls = page.locator("#preview :is(summary, select, input, button), .policy-actions button")
    sizes = [control.bounding_box() for control in controls.all()]
    assert len(sizes) > 8
    assert [size for size in sizes if size["height"] < 24 or size["width"] < 24] == []
    put(page, HEAVY, "8000")
    expect(page.locator(".preview-result--older")).to_have_count(1)
    assert found + in_both_themes(page) == []
    assert opened.faults == []


def test_axe_finds_nothing_while_it_runs_and_on_its_own_page(open_page, shell, policy):
    opened = open_page("otto")
    page = opened.goto(f"/policies/{policy}/draft")
    page.click(PREVIEW)
    expect(page.locator(STATE)).to_contain_text("waiting for a worker")
    shell(f"worker_begins({policy!r})")
    expect(page.locator("#preview-progress")).to_be_visible()
    found = by_axe(page)
    shell(f"previewed({policy!r})")
    expect(page.locator(".preview-sentence")).to_be_visible()
    page.get_by_role("link", name="Link to this preview").click()
    page.wait_for_url("**/previews/*/")
    assert (found + by_axe(page), opened.faults) == ([], [])


def test_the_page_of_a_draft_with_its_preview_has_at_most_450_words(open_page, shell, policy):
    shell(f"previewed({policy!r})")
    page = editor(open_page, policy)
    expect(page.locator(".preview-sentence")).to_be_visible()
    assert unreadable(page) == []
