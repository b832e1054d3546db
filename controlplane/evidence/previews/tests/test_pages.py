"""The preview in every state on the editor, the review, its own page and in the history."""

import re
from datetime import timedelta
from html import unescape

import pytest

from controlplane.evidence.previews import body, services
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.tests.rows import preview_of
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.models import Draft
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, edit
from fleet.jobs import CANCELLED, FAILED, QUEUED, RUNNING

DRAFT = "/policies/default/draft"
START = f"{DRAFT}/preview"
FEW = {"code": "few_requests", "text": "87 requests were compared, fewer than 200: record more traffic"}


@pytest.fixture
def started(monkeypatch) -> list[body.PreviewIn]:
    """Collects the previews that would be computed; the answer is a queued preview of the open draft."""
    found: list[body.PreviewIn] = []

    def start(policy, actor, asked):
        found.append(asked)
        return preview_of(policies.open_draft(policy), QUEUED, actor=actor.name)

    monkeypatch.setattr(services, "start", start)
    return found


def form_of(answer) -> dict[str, str]:
    """Return the draft's fields together with the preview's, as a browser sends them."""
    fields = {f.path: f.text for part in answer.context["sections"] for f in part.fields}
    return {"etag": answer.context["etag"], "loaded": answer.context["loaded"], **fields}


def page(client, path=DRAFT) -> str:
    return client.get(path).content.decode()


def text_of(html: str) -> str:
    """The text that a reader sees."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html))).replace(" ,", ",")


def test_before_the_first_preview_the_panel_explains_previews(draft, otto_client):
    html = page(otto_client)
    assert "Not previewed yet" in html
    assert "It uses no router and no engine" in html
    assert html.count(">Preview on recorded traffic</button>") == 1


def test_pool_trace_and_seeds_can_be_chosen_and_belong_to_the_drafts_form(draft, otto_client):
    html = page(otto_client)
    for name in ("pool", "trace", "seeds"):
        assert re.search(rf'id="preview-{name}" name="{name}"[^>]* form="draft-form"', html)
    assert '<option value="demo" selected>demo</option>' in html
    assert "recorded traffic of the pool; agentic-demo below 200 requests" in html
    assert "demo, agentic-demo (only 0 requests recorded), seed 1" in html
    assert "agentic-demo: built-in" in html


def test_recorded_traffic_is_named_with_its_size_and_age(draft, record, otto_client):
    record(3)
    assert re.search(r"recorded:demo: 3 requests, newest [\d.]+ s old</option>", page(otto_client))


def test_starting_saves_what_was_typed_first(draft, started, otto_client):
    typed = {**form_of(otto_client.get(DRAFT)), "classes.heavy_new_tokens": "8,000"}
    answer = otto_client.post(START, {**typed, "pool": "demo", "trace": "agentic-demo", "seeds": "1, 2"})
    assert Draft.objects.get().document["classes"]["heavy_new_tokens"] == 8000
    assert started == [body.PreviewIn(pool="demo", trace="agentic-demo", seeds=(1, 2))]
    assert answer.headers["Location"] == f"/policies/default/previews/{Preview.objects.get().pk}/"


def test_an_invalid_value_is_reported_at_its_field_and_nothing_is_started(draft, started, otto_client):
    answer = otto_client.post(START, {**form_of(otto_client.get(DRAFT)), "classes.heavy_new_tokens": "plenty"})
    assert answer.status_code == 422
    assert 'value="plenty"' in answer.content.decode()
    assert started == []


def test_a_conflict_with_a_draft_that_another_saved_is_settled_before_a_preview(draft, started, otto_client):
    typed = {**form_of(otto_client.get(DRAFT)), "classes.heavy_new_tokens": "8000"}
    edit(draft.policy, ADA, heavy_new_tokens=7000)
    answer = otto_client.post(START, typed)
    assert (answer.status_code, started) == (412, [])
    assert "saved by ada meanwhile" in answer.content.decode()


def test_starting_from_the_review_takes_the_draft_as_it_is(draft, started, otto_client):
    otto_client.post(START)
    assert started == [body.PreviewIn()]
    assert Draft.objects.get().document == draft.document


@pytest.mark.parametrize(
    ("seeds", "allowed"),
    [*((seeds, "whole number from 0 to ") for seeds in ("one", "-1", "1.5")), ("1 2 3 4 5 6", "at most 5")],
)
def test_seeds_that_are_not_numbers_are_refused_with_what_is_allowed(draft, started, otto_client, seeds, allowed):
    answer = otto_client.post(START, {**form_of(otto_client.get(DRAFT)), "seeds": seeds})
    html = answer.content.decode()
    assert (answer.status_code, started) == (422, [])
    assert re.search(f'<a href="#preview-seeds">Seeds</a>: [^<]*{allowed}', html)
    assert f'value="{seeds}"' in html


def test_a_draft_that_equals_the_live_version_is_not_previewed(policy, pool, otto_client):
    policy_services.open_draft(policy, OTTO)
    answer = otto_client.post(START)
    assert answer.status_code == 422
    assert "the draft equals v1, which is live" in answer.content.decode()


def test_a_missing_draft_redirects_to_its_policy(policy, pool, otto_client):
    answer = otto_client.post(START, follow=True)
    assert "There is no open draft of default" in answer.content.decode()


def test_a_request_by_htmx_gets_the_panel_and_the_next_etag(draft, started, otto_client):
    typed = {**form_of(otto_client.get(DRAFT)), "classes.heavy_new_tokens": "8000"}
    html = otto_client.post(START, typed, headers={"HX-Request": "true"}).content.decode()
    assert html.lstrip().startswith('<div id="preview-state"')
    assert 'hx-trigger="every 1s, refresh"' in html
    assert f'name="etag" value="{Draft.objects.get().etag}"' in html
    assert "1 change against what is live" in html
    assert html.count('id="draft-hidden"') == html.count('id="draft-state"') == 1


def test_a_request_by_htmx_with_an_invalid_value_marks_its_field_and_starts_nothing(draft, started, otto_client):
    typed = {**form_of(otto_client.get(DRAFT)), "classes.heavy_new_tokens": "7"}
    html = otto_client.post(START, typed, headers={"HX-Request": "true"}).content.decode()
    assert started == []
    assert "No preview was started" in html
    assert '"classes.heavy_new_tokens"' in html
    assert 'id="draft-hidden"' not in html


def test_a_request_by_htmx_for_another_strategy_loads_its_fields(draft, started, otto_client):
    typed = {**form_of(otto_client.get(DRAFT)), "strategy.name": "lpwl"}
    answer = otto_client.post(START, typed, headers={"HX-Request": "true"})
    assert answer.headers["HX-Refresh"] == "true"
    assert len(started) == 1


def test_while_it_runs_the_panel_shows_the_progress_and_can_cancel(draft, otto_client):
    running = preview_of(draft, RUNNING, done=1200)
    html = page(otto_client, f"{START}/state")
    assert 'value="1200" max="3740"' in html
    assert "1,200 of 3,740 simulated requests" in html
    assert f'action="/policies/default/previews/{running.pk}/cancel"' in html
    assert 'hx-trigger="every 1s, refresh"' in html


def test_without_javascript_the_page_of_a_running_preview_reloads_itself(draft, otto_client):
    running = preview_of(draft, QUEUED, total=0)
    html = page(otto_client, f"/policies/default/previews/{running.pk}/")
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in html
    assert "waiting for a worker" in html


def test_the_panel_of_an_ended_preview_is_not_polled(draft, otto_client):
    done = preview_of(draft)
    html = page(otto_client, f"/policies/default/previews/{done.pk}/")
    assert "http-equiv" not in html
    assert "every 1s" not in html


def test_the_result_is_described_as_simulated_in_a_sentence_with_tables_below(draft, otto_client):
    preview_of(draft)
    html = page(otto_client)
    said = text_of(html)
    assert "Simulated" in said
    assert "The draft would route 232 of 1,870 requests differently (12.4 %, 95 % CI 10.9–14.1); no difference" in said
    for words in (
        "Refused requests 0 → 3", "Prompt tokens from the cache 54.2 → 58.1 %", "KV usage 41 → 44.4 %",
        "Instances whose requests change 6 of 8", "Heavy n = 12 (few), 41.7 % routed differently ◌ 9 too few requests",
        "recorded:demo: 1,870 of 2,000 requests played", "3 min before the preview",
        "constants of h100_sxm, Llama-3.1-8B",
        "TTFT is 8.01 % above what was measured (512 → 553 ms, n = 1,240), measured",
        "v1 with revision 2 of the draft, pool demo, seed 1",
    ):  # fmt: skip
        assert words in said
    for request_class in ("all", "warm", "medium", "heavy"):
        assert f"Latencies of class {request_class}, simulated, live against draft" in said


def test_the_age_of_the_traffic_is_that_at_the_preview_however_late_it_is_read(draft, otto_client):
    made = preview_of(draft)
    earlier = {"first_at": made.trace["first_at"] - 7 * 86_400, "last_at": made.trace["last_at"] - 7 * 86_400}
    created_at = made.created_at - timedelta(days=7)
    Preview.objects.update(created_at=created_at, trace=made.trace | earlier)
    assert "(3 min before the preview)" in text_of(page(otto_client))


def test_each_verdict_is_a_word_with_a_shape(draft, otto_client):
    preview_of(draft)
    html = page(otto_client)
    for words in ("● better", "◇ not distinguishable", "◌ too few requests"):
        assert re.search(rf'<span class="verdict verdict--[a-z-]+ nowrap">{words}</span>', html)


def test_doubts_are_shown_first_and_mute_the_verdicts(draft, otto_client):
    preview_of(draft, trust=[FEW])
    html = page(otto_client)
    said = text_of(html)
    assert said.index(FEW["text"]) < said.index("The draft would route")
    assert "Caveats" in html
    assert "preview-result--doubtful" in html


def test_without_doubts_none_are_mentioned(draft, otto_client):
    preview_of(draft)
    html = page(otto_client)
    assert "Caveats" not in html
    assert "preview-result--doubtful" not in html


def test_a_preview_of_an_older_revision_is_greyed_and_says_so(draft, otto_client):
    preview_of(draft)
    edit(draft.policy, heavy_new_tokens=8000)
    html = page(otto_client)
    assert "This preview is of revision 2, and the draft is now revision 3." in html
    assert "Preview again" in html
    assert "preview-result--older" in html


def test_a_preview_against_a_version_that_is_no_longer_live_is_greyed_and_says_so(redis_away, draft, otto_client):
    preview_of(draft)
    policy_services.publish(draft.policy, ADA, WHY)
    edit(draft.policy, heavy_new_tokens=7000)
    html = page(otto_client)
    assert "against v1, and v2 is live now" in html
    assert "preview-result--older" in html


def test_a_cached_preview_says_so(draft, otto_client):
    before = preview_of(draft)
    Preview.objects.update(asked_at=before.ended_at.replace(year=before.ended_at.year + 1))
    assert "computed earlier for the same content" in page(otto_client)


@pytest.mark.parametrize(
    ("status", "cause", "words"),
    [
        (FAILED, "no law is known for the engines of pool demo: calibrate one", "The preview failed."),
        (CANCELLED, "cancelled by ada", "The preview was cancelled."),
    ],
)
def test_a_failed_or_cancelled_preview_says_why_and_that_the_draft_is_kept(draft, otto_client, status, cause, words):
    preview_of(draft, status, cause=cause)
    said = text_of(page(otto_client))
    assert words in said
    assert cause in said
    assert "The draft is kept" in said


def test_cancelling_leads_back_to_the_preview(draft, otto_client):
    running = preview_of(draft, RUNNING)
    answer = otto_client.post(f"/policies/default/previews/{running.pk}/cancel", follow=True)
    assert "cancelled by otto" in answer.content.decode()


def test_cancelling_by_htmx_answers_with_the_panel(draft, otto_client):
    running = preview_of(draft, RUNNING)
    url = f"/policies/default/previews/{running.pk}/cancel"
    html = otto_client.post(url, headers={"HX-Request": "true"}).content.decode()
    assert html.lstrip().startswith('<div id="preview-state"')
    assert f'hx-get="{START}/state"' in html


def test_cancelling_on_its_own_page_returns_to_that_page(draft, otto_client):
    running = preview_of(draft, RUNNING)
    url = f"/policies/default/previews/{running.pk}/"
    html = otto_client.post(f"{url}cancel", {"fixed": "1"}, headers={"HX-Request": "true"}).content.decode()
    assert f'hx-get="{url}state"' in html


def test_a_viewer_sees_the_result_and_why_there_is_no_button(draft, otto, vera_client):
    done = preview_of(draft)
    html = page(vera_client, f"/policies/default/previews/{done.pk}/")
    assert "The draft would route 232 of 1,870" in html
    assert "Previewing requires the role operator; ask otto" in html
    assert "<button" not in html[html.index("page-head") :]


def test_a_viewer_cannot_start_or_cancel(draft, started, vera_client):
    running = preview_of(draft, RUNNING)
    assert vera_client.post(START).status_code == 403
    assert vera_client.post(f"/policies/default/previews/{running.pk}/cancel").status_code == 403
    assert started == []


@pytest.mark.parametrize("number", [7, 2**63])
def test_an_unknown_preview_is_a_404(draft, otto_client, number):
    assert otto_client.get(f"/policies/default/previews/{number}/").status_code == 404


def test_the_review_shows_the_preview_of_exactly_this_content_in_one_line(draft, otto_client):
    done = preview_of(draft)
    html = page(otto_client, f"{DRAFT}/review")
    assert "The draft would route 232 of 1,870" in html
    assert f'href="/policies/default/previews/{done.pk}/"' in html
    assert "Simulated" in html


def test_the_review_of_other_content_says_not_previewed_and_offers_a_preview(draft, otto_client):
    preview_of(draft)
    edit(draft.policy, heavy_new_tokens=8000)
    html = page(otto_client, f"{DRAFT}/review")
    assert "Not previewed as it is now" in html
    assert "The draft would route" not in html
    assert ">Preview on recorded traffic</button>" in html


def test_the_review_without_any_preview_says_not_previewed(draft, otto_client):
    assert "Not previewed." in page(otto_client, f"{DRAFT}/review")


def test_the_review_shows_cautions(draft, otto_client):
    preview_of(draft, trust=[FEW])
    assert "1 caveat" in page(otto_client, f"{DRAFT}/review")


def test_a_published_version_keeps_its_preview(redis_away, draft, vera_client):
    done = preview_of(draft)
    policy_services.publish(draft.policy, OTTO, WHY)
    link = f'href="/policies/default/previews/{done.pk}/"'
    for path in ("/policies/default/", "/policies/default/versions/2/"):
        html = page(vera_client, path)
        assert link in html
        assert "12.4 % of requests routed differently" in html
    assert link not in page(vera_client, "/policies/default/versions/1/")
