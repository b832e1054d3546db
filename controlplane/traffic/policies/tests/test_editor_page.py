import json
import re

import pytest

from controlplane.traffic.policies import acknowledged, selectors, services
from controlplane.traffic.policies.drafts.editor import BASIC, sections, strategy_of
from controlplane.traffic.policies.models import Draft
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, edit, published
from router.contract.redis import redis_keys
from router.policy.schema import document as documents
from router.policy.schema.document import parameters_of

DRAFT = "/policies/default/draft"


def form_of(answer) -> dict[str, str]:
    """The fields of the page's main form, as a browser would send them."""
    context = answer.context
    fields = {f.path: f.text for part in context["sections"] for f in part.fields}
    return {"etag": context["etag"], "loaded": context["loaded"], **fields}


@pytest.fixture
def form(redis_away, policy, otto_client) -> dict[str, str]:
    services.open_draft(policy, OTTO)
    return form_of(otto_client.get(DRAFT))


def test_each_field_shows_live_default_range_unit_and_the_effect_of_raising_it(form, policy, otto_client):
    edit(policy, heavy_new_tokens=9000)
    content = otto_client.get(DRAFT).content.decode()
    heavy = content[content.index('data-live="40000"') :][:2000]
    for text in ('value="9000"', "40,000 tokens", "data-changed", "256 to 1,000,000", "Fewer requests count as heavy"):
        assert text in heavy
    assert "(tokens)</span>" in heavy


def folded(document, errors=None):
    found = sections(document, documents.default(), {}, errors=errors)
    return {field.path for section in found for field in section.folded}


def test_basic_changed_and_invalid_parameters_are_not_folded():
    document = documents.default()
    everything = {parameter.path for parameter in parameters_of(strategy_of(document))}
    assert everything >= BASIC
    assert folded(document).isdisjoint(BASIC)
    assert {"failure.connect_timeout_s", "load.request_tokens"} <= folded(document)
    document["failure"]["connect_timeout_s"] = 3.0
    shown = everything - folded(document, {"load.request_tokens": "too few"})
    assert {"failure.connect_timeout_s", "load.request_tokens"} <= shown


def test_an_unchanged_form_saves_the_same_document(form, policy, otto_client):
    otto_client.post(DRAFT, form)
    assert Draft.objects.get().document == documents.default()


def test_saving_stays_on_the_page_and_reviewing_leaves_it(form, otto_client):
    form["classes.heavy_new_tokens"] = "9,000"
    assert otto_client.post(DRAFT, {**form, "action": "save"}).headers["Location"] == DRAFT
    form = form_of(otto_client.get(DRAFT))
    assert otto_client.post(DRAFT, {**form, "action": "review"}).headers["Location"] == f"{DRAFT}/review"
    assert Draft.objects.get().document["classes"]["heavy_new_tokens"] == 9000


def test_an_invalid_value_is_reported_at_its_field_and_kept(form, otto_client):
    answer = otto_client.post(DRAFT, {**form, "classes.heavy_new_tokens": "plenty", "failure.retries": "3"})
    content = answer.content.decode()
    assert answer.status_code == 422
    assert 'value="plenty"' in content
    assert 'value="3"' in content
    assert '<a href="#f-classes-heavy-new-tokens">Heavy threshold</a>' in content
    at_field = content[content.index('id="f-classes-heavy-new-tokens-error"') :]
    assert at_field.partition(">")[2].startswith("&quot;plenty&quot; is not")
    assert "allowed: a whole number from 256" in at_field.partition("</span>")[0]
    assert Draft.objects.get().revision == 1


def test_after_a_refusal_a_conflict_is_still_detected(form, policy, otto_client):
    answer = otto_client.post(DRAFT, {**form, "classes.heavy_new_tokens": "plenty"})
    edit(policy, ADA, warm_hit_share=0.25)
    corrected = {**form_of(answer), "classes.heavy_new_tokens": "9000"}
    assert otto_client.post(DRAFT, corrected).status_code == 412


def test_another_strategy_shows_its_own_fields(form, policy, otto_client):
    otto_client.post(DRAFT, {**form, "strategy.name": "cache_aware"})
    paths = set(form_of(otto_client.get(DRAFT)))
    assert {p.path for p in documents.parameters_of("cache_aware")} <= paths
    assert "strategy.heavy_cache_loss_max" not in paths


def test_two_people_on_one_draft_choose_field_by_field(form, policy, otto_client):
    edit(policy, ADA, warm_hit_share=0.25, heavy_new_tokens=8000)
    mine = {**form, "classes.heavy_new_tokens": "9000", "failure.retries": "4"}
    page = otto_client.post(DRAFT, mine)
    assert page.status_code == 412
    fields = {f["path"]: f for f in page.context["fields"]}
    assert fields["classes.heavy_new_tokens"]["suggested"] == ""
    assert (fields["classes.heavy_new_tokens"]["base"], fields["classes.heavy_new_tokens"]["theirs"]) == (
        "40,000 tokens",
        "8,000 tokens",
    )
    assert fields["classes.warm_hit_share"]["suggested"] == "theirs"
    assert fields["failure.retries"]["suggested"] == "mine"
    choices = {f"choose-{path}": f["suggested"] or "mine" for path, f in fields.items()}
    hidden = {key: page.context[key] for key in ("mine", "theirs", "current", "based_on")}
    answer = otto_client.post(f"{DRAFT}/resolve", {**hidden, **choices})
    assert answer.headers["Location"] == f"{DRAFT}/review"
    saved = Draft.objects.get().document
    assert (saved["classes"]["heavy_new_tokens"], saved["classes"]["warm_hit_share"]) == (9000, 0.25)
    assert saved["failure"]["retries"] == 4


def test_every_disputed_field_needs_a_choice(form, policy, otto_client):
    edit(policy, ADA, heavy_new_tokens=8000)
    page = otto_client.post(DRAFT, {**form, "classes.heavy_new_tokens": "9000"})
    hidden = {key: page.context[key] for key in ("mine", "theirs", "current", "based_on")}
    otto_client.post(f"{DRAFT}/resolve", hidden)
    assert Draft.objects.get().document["classes"]["heavy_new_tokens"] == 8000


def test_a_reason_that_is_too_short_is_reported_at_its_focused_field(redis_away, policy, otto_client):
    edit(policy, heavy_new_tokens=9000)
    answer = otto_client.post(f"{DRAFT}/publish", {"reason": "short"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert 'aria-invalid="true" autofocus>short</textarea>' in page
    assert 'id="reason-error">Say why in 10 to 500 characters; this has 5<' in page
    assert "autofocus>Cancel" not in page


def test_a_draft_saved_after_its_review_is_not_published_and_the_reason_is_not_marked(redis_away, policy, otto_client):
    seen = edit(policy, heavy_new_tokens=9000)
    edit(policy, ADA, heavy_new_tokens=8000)
    answer = otto_client.post(f"{DRAFT}/publish", {"reason": WHY, "etag": seen})
    page = answer.content.decode()
    assert answer.status_code == 412
    assert "saved by ada meanwhile (revision 3). Look at the values below once more." in page
    assert "aria-invalid" not in page


def test_text_typed_while_another_person_published_is_kept_as_a_new_draft(form, policy, otto_client):
    edit(policy, ADA, heavy_new_tokens=8000)
    services.publish(policy, ADA, WHY)
    page = otto_client.post(DRAFT, {**form, "failure.retries": "4"})
    assert page.status_code == 412
    choices = {f"choose-{f['path']}": f["suggested"] for f in page.context["fields"]}
    assert choices == {"choose-classes.heavy_new_tokens": "theirs", "choose-failure.retries": "mine"}
    hidden = {key: page.context[key] for key in ("mine", "theirs", "current", "based_on")}
    otto_client.post(f"{DRAFT}/resolve", {**hidden, **choices})
    draft = Draft.objects.get()
    assert (draft.based_on, draft.document["failure"]["retries"]) == (2, 4)
    assert draft.document["classes"]["heavy_new_tokens"] == 8000


def test_a_draft_whose_base_was_replaced_by_another_version_must_be_settled(redis_away, policy, otto_client):
    published(policy, heavy_new_tokens=9000)
    edit(policy, warm_hit_share=0.75)
    services.rollback(policy, 1, ADA, WHY)
    assert b"was published by ada" in otto_client.get(DRAFT).content
    page = otto_client.get(f"{DRAFT}/settle")
    choices = {f"choose-{f['path']}": f["suggested"] for f in page.context["fields"]}
    hidden = {key: page.context[key] for key in ("mine", "theirs", "current", "based_on")}
    otto_client.post(f"{DRAFT}/resolve", {**hidden, **choices})
    answer = otto_client.post(f"{DRAFT}/publish", {"reason": WHY})
    assert answer.headers["Location"] == "/policies/default/versions/4/"
    live = selectors.live_version(policy).document["classes"]
    assert (live["heavy_new_tokens"], live["warm_hit_share"]) == (40_000, 0.75)


def test_autosave_says_when_and_returns_the_next_etag(form, otto_client):
    answer = otto_client.post(f"{DRAFT}/autosave", {**form, "classes.heavy_new_tokens": "9000"})
    draft = Draft.objects.get()
    assert b"Draft saved" in answer.content
    assert f'name="etag" value="{draft.etag}"'.encode() in answer.content
    assert b"1 change against what is live" in answer.content


def test_autosave_marks_invalid_fields_and_saves_nothing(form, otto_client):
    answer = otto_client.post(f"{DRAFT}/autosave", {**form, "classes.heavy_new_tokens": "7"})
    told = json.loads(re.search(rb'type="application/json">(.*)</script>', answer.content)[1])
    assert list(told["errors"]) == ["classes.heavy_new_tokens"]
    assert told["kept"] is False
    assert Draft.objects.get().revision == 1


def test_autosave_reports_a_conflict_without_overwriting(form, policy, otto_client):
    edit(policy, ADA, heavy_new_tokens=8000)
    answer = otto_client.post(f"{DRAFT}/autosave", {**form, "classes.heavy_new_tokens": "9000"})
    assert b"saved by ada meanwhile" in answer.content
    assert Draft.objects.get().document["classes"]["heavy_new_tokens"] == 8000


def test_autosave_of_another_strategy_loads_its_fields(form, otto_client):
    answer = otto_client.post(f"{DRAFT}/autosave", {**form, "strategy.name": "lpwl"})
    assert answer.headers["HX-Refresh"] == "true"


def test_polling_reports_nothing_without_changes_by_others(form, policy, otto_client):
    etag = Draft.objects.get().etag
    answer = otto_client.get(f"{DRAFT}/watch?etag={etag}&based_on=1")
    assert answer.content.strip() == b""


def test_polling_reports_a_save_a_publication_and_a_discard(form, policy, otto_client):
    url = f"{DRAFT}/watch?etag={Draft.objects.get().etag}&based_on=1"
    edit(policy, ADA, heavy_new_tokens=8000)
    assert b"ada saved this draft" in otto_client.get(url).content
    services.publish(policy, ADA, WHY)
    assert b"ada published v2" in otto_client.get(url).content
    services.open_draft(policy, ADA)
    services.discard_draft(policy, ADA)
    assert b"ada published v2" in otto_client.get(url).content


def test_the_review_shows_descriptions_of_changed_fields_and_the_scope(form, policy, pool, otto_client):
    edit(policy, heavy_new_tokens=9000)
    content = otto_client.get(f"{DRAFT}/review").content.decode()
    assert '<del class="diff-old">40,000 tokens</del>' in content
    assert '<ins class="diff-new">9,000 tokens</ins>' in content
    assert "more requests count as heavy" in content
    assert "pool demo, 8 instances, 100 %" in content
    assert content.count('class="diff-new"') == 1
    assert ">Publish v2</button>" in content


def test_publishing_leads_to_the_version_with_its_acknowledgements(
    policy, pool, otto, otto_client, routers, live_redis, monkeypatch
):
    monkeypatch.setattr(acknowledged, "WAIT_S", 0.2)
    routers("router-1")
    routers("router-2", answers=False)
    etag = edit(policy, heavy_new_tokens=9000)
    answer = otto_client.post(f"{DRAFT}/publish", {"etag": etag, "reason": WHY})
    live_redis.zrem(redis_keys.ROUTERS, "router-2")  # it ends before the page is shown
    content = otto_client.get(answer.headers["Location"]).content.decode()
    assert "default v2 is published: 1/2 routers, " in content
    assert "router-1 runs it after" in content
    assert "router-2 has not acknowledged it" in content
    assert "is published" not in otto_client.get("/policies/default/versions/2/").content.decode()


def test_pressing_publish_twice_publishes_once(redis_away, policy, otto_client):
    etag = edit(policy, heavy_new_tokens=9000)
    answers = [otto_client.post(f"{DRAFT}/publish", {"etag": etag, "reason": WHY}) for _ in range(2)]
    assert {a.headers["Location"] for a in answers} == {"/policies/default/versions/2/"}
    assert policy.versions.count() == 2


def test_a_draft_changed_after_the_review_is_shown_again_instead_of_published(redis_away, policy, otto_client):
    etag = edit(policy, heavy_new_tokens=9000)
    edit(policy, ADA, heavy_new_tokens=8000)
    answer = otto_client.post(f"{DRAFT}/publish", {"etag": etag, "reason": WHY})
    assert answer.status_code == 412
    content = answer.content.decode()
    assert "saved by ada meanwhile" in content
    assert "8,000 tokens" in content
    assert WHY in content
    assert policy.versions.count() == 1


def test_publishing_an_equal_draft_after_someone_else_is_reported(redis_away, policy, otto_client):
    etag = edit(policy, heavy_new_tokens=9000)
    edit(policy, ADA, heavy_new_tokens=8000)
    services.publish(policy, ADA, WHY)
    answer = otto_client.post(f"{DRAFT}/publish", {"etag": etag, "reason": WHY}, follow=True)
    assert "v2 by ada is live" in answer.content.decode()
    assert policy.versions.count() == 2


def test_a_missing_reason_keeps_the_review_open(redis_away, policy, otto_client):
    etag = edit(policy, heavy_new_tokens=9000)
    answer = otto_client.post(f"{DRAFT}/publish", {"etag": etag, "reason": "short"})
    assert answer.status_code == 422
    assert b"10 to 500" in answer.content
    assert b">short</textarea>" in answer.content


def test_a_draft_can_be_discarded(form, policy, otto_client):
    assert otto_client.post(f"{DRAFT}/discard").headers["Location"] == "/policies/default/"
    assert selectors.open_draft(policy) is None


@pytest.mark.parametrize("loaded", ["", "not json", "[]", '{"strategy": 5}', "[" * 5000])
def test_a_tampered_hidden_field_is_harmless(form, policy, otto_client, loaded):
    answer = otto_client.post(DRAFT, {**form, "loaded": loaded, "classes.heavy_new_tokens": "9000"})
    assert answer.status_code == 302
    assert Draft.objects.get().document["classes"]["heavy_new_tokens"] == 9000
