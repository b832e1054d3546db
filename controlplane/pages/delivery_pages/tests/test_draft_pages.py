""" "Deliver…" beside "Publish": its form, what it refuses, and publishing while a delivery is open."""

import json
import re

import pytest

from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, Trigger
from controlplane.traffic.deliveries.tests.conftest import ADA, OTTO, SHADOW, WHY, proposed
from controlplane.traffic.deliveries.timing import freezing
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.tests.conftest import edit
from fleet.models import Pool

pytestmark = pytest.mark.usefixtures("redis_away", "pool")
URL = "/policies/default/draft/deliver"
ALWAYS = FreezeRule(
    "always", ("default",), "2026-01-01T00:00", "2026-01-02T00:00", "UTC", "FREQ=DAILY", reason="nobody is there"
)


@pytest.fixture
def draft(policy):
    edit(policy, OTTO, heavy_new_tokens=9_000)
    return policies.open_draft(policy)


def fields(client):
    """The form's fields as a browser would send them unchanged."""
    context = client.get(URL).context
    sent = {name: value for name, value in context["values"].items() if name != "pools"}
    return {
        **sent,
        "pools": context["values"]["pools"],
        "etag": context["etag"],
        "reason": WHY,
    }


def test_the_plan_is_filled_in_and_can_be_proposed_unchanged(otto_client, draft):
    response = otto_client.post(URL, fields(otto_client))
    made = Delivery.objects.get()
    assert response.url == f"/deliveries/{made.pk}/"
    assert [step["mode"] for step in made.plan["steps"]] == ["shadow", "canary", "canary", "full"]
    assert (made.plan["pools"], made.reason) == (["demo"], WHY)


def test_one_click_starts_a_delivery_that_needs_no_approval(otto_client, draft):
    assert "Deliver and start v2</button>" in otto_client.get(URL).content.decode()
    otto_client.post(URL, fields(otto_client))
    assert Delivery.objects.get().state == "arming"


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"approvals": "1"}, "proposed"),
        ({"start.at": "2036-08-03T03:00", "start.zone": "UTC", "start.latest": "1 h"}, "ready"),
    ],
)
def test_a_delivery_that_waits_for_approval_or_a_time_is_only_proposed(otto_client, draft, more, state):
    otto_client.post(URL, {**fields(otto_client), **more})
    assert Delivery.objects.get().state == state


def test_a_policy_with_required_approvals_offers_only_delivery(otto_client, draft, policy):
    services.set_rules(policy, ADA, WHY, direct="allowed", approvals_needed=1)
    shown = otto_client.get(URL).content.decode()
    assert "Deliver v2</button>" in shown
    assert "Deliver and start" not in shown


def test_a_freeze_keeps_the_delivery_ready_and_the_page_says_why(otto_client, draft):
    freezing.add_freeze(ALWAYS, ADA)
    assert "Deliver v2</button>" in otto_client.get(URL).content.decode()
    shown = otto_client.post(URL, fields(otto_client), follow=True).content.decode()
    assert Delivery.objects.get().state == "ready"
    assert "v2 is proposed and has not started: the freeze always is in force until" in shown


def test_a_short_plan_stays_chosen_when_the_reason_is_missing(otto_client, draft):
    short = f"{URL}?plan=short"
    assert f'action="{short}"' in otto_client.get(short).content.decode()
    response = otto_client.post(short, {**fields(otto_client), "reason": ""})
    shown = response.content.decode()
    assert response.status_code == 422
    assert 'href="?plan=short" aria-current="true"' in shown
    assert f'action="{short}"' in shown


def test_the_review_offers_the_delivery_before_publishing(otto_client, draft):
    shown = otto_client.get("/policies/default/draft/review").content.decode()
    primary = re.findall(r'button--primary"[^>]*>([^<]*)<', shown)
    assert primary == ["Deliver…"]


def test_a_viewer_is_refused_and_a_missing_draft_redirects(vera_client, otto_client, policy):
    assert vera_client.get(URL).status_code == 403
    assert otto_client.get(URL).url == "/policies/default/"


def test_problems_are_shown_at_their_fields_and_nothing_is_proposed(otto_client, draft):
    response = otto_client.post(URL, {**fields(otto_client), "canary1.share": "70", "reason": "short"})
    shown = response.content.decode()
    assert response.status_code == 422
    assert 'id="p-canary1-share-note">Out of range; allowed: 0.1 to 50 %' in shown
    assert 'value="70"' in shown
    assert 'id="reason-error"' in shown
    assert not Delivery.objects.exists()


def test_a_reason_that_is_too_short_is_reported_at_its_field(otto_client, draft):
    response = otto_client.post(URL, {**fields(otto_client), "reason": "short"})
    assert response.status_code == 422
    assert 'id="reason-error"' in response.content.decode()


def test_no_folded_part_describes_another_plan_than_the_one_sent(otto_client, draft, pool):
    Pool.objects.create(name="other", model="m", kind="sim", policy="default", replicas=1)
    changed = {**fields(otto_client), "canary1.share": "7", "pools": [pool.name]}
    shown = otto_client.post(URL, {**changed, "reason": "short"}).content.decode()
    assert re.findall(r'id="plan-(\w+)" open>', shown) == ["steps", "guards", "start"]
    shown = otto_client.post(URL, {**changed, "foresee": "1"}).content.decode()
    assert re.findall(r'id="plan-(\w+)" open>', shown) == []
    said = dict(re.findall(r"<summary><h2>(.*?)</h2> <span [^>]*>(.*?)</span></summary>", shown))
    assert "Canary 7 %" in said["Steps"]
    assert said["Where, when, who"].startswith("demo; ")


def test_the_plan_can_be_given_as_json(otto_client, draft):
    plan = {"steps": [{**SHADOW, "for_s": 77}]}
    otto_client.post(URL, {**fields(otto_client), "use_json": "on", "json": json.dumps(plan)})
    assert Delivery.objects.get().plan["steps"][0]["for_s"] == 77


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "The plan cannot be read as JSON"),
        ("[]", "must be an object"),
        (" " * 20_001, "longer than 20,000 characters"),
        ('{"steps": [{"mode": "canary", "share": 2, "for_s": 60}]}', "steps[0].share: 2 is above 0.5"),
    ],
)
def test_json_that_is_not_a_plan_is_refused_and_kept(otto_client, draft, text, said):
    response = otto_client.post(URL, {**fields(otto_client), "use_json": "on", "json": text})
    assert response.status_code == 422
    assert said in response.content.decode()
    assert response.context["json"] == text


def test_a_second_click_leads_to_the_same_delivery(otto_client, draft):
    sent = fields(otto_client)
    first = otto_client.post(URL, sent)
    edit(draft.policy, OTTO, heavy_new_tokens=8_000)
    assert otto_client.post(URL, sent).url == first.url


def test_a_draft_saved_in_the_meantime_is_not_delivered(otto_client, draft):
    sent = fields(otto_client)
    edit(draft.policy, ADA, heavy_new_tokens=8_000)
    response = otto_client.post(URL, sent)
    assert response.status_code == 409
    assert "saved by ada meanwhile" in response.content.decode()


def test_delivering_a_document_that_failed_before_asks_why_again(otto_client, policy):
    failed = proposed(policy)
    for what, by in (
        (Trigger.START, Origin.PERSON),
        (Trigger.ARMED, Origin.SYSTEM),
        (Trigger.FAIL, Origin.JUDGE),
    ):
        failed = move(failed, TransitionRequest(what, by, why="heavy TTFT × 2"))
    edit(policy, OTTO, heavy_new_tokens=9_000)
    assert "Why deliver it again" in otto_client.get(URL).content.decode()
    response = otto_client.post(URL, fields(otto_client))
    assert response.status_code == 422
    assert "heavy TTFT × 2; say why again" in response.content.decode()
    assert otto_client.post(URL, {**fields(otto_client), "again": "the node was replaced"}).status_code == 302


def test_a_policy_has_one_delivery_at_a_time(otto_client, delivery):
    edit(delivery.policy, OTTO, heavy_new_tokens=8_000)
    assert "A policy has one delivery at a time" in otto_client.get("/policies/default/draft/review").content.decode()
    response = otto_client.post(URL, fields(otto_client))
    assert response.status_code == 409
    assert "v2 is being delivered" in response.content.decode()


def test_publishing_while_a_delivery_is_open_explains_and_aborts_only_on_request(otto_client, delivery):
    edit(delivery.policy, OTTO, heavy_new_tokens=8_000)
    review = otto_client.get("/policies/default/draft/review")
    assert "v1 decides every request of pool" in review.content.decode()
    assert "Abort that delivery and publish v3 instead" in review.content.decode()
    sent = {"etag": review.context["draft"].etag, "reason": WHY}
    refused = otto_client.post("/policies/default/draft/publish", sent)
    assert refused.status_code == 409
    assert "v2 is being delivered" in refused.content.decode()
    assert otto_client.post("/policies/default/draft/publish", {**sent, "abort_open": "on"}).status_code == 302
    delivery.refresh_from_db()
    assert delivery.state == "aborted"


def test_a_policy_that_requires_deliveries_offers_no_publishing(otto_client, policy, draft):
    services.set_rules(policy, ADA, WHY, direct="never", approvals_needed=0)
    shown = otto_client.get("/policies/default/draft/review").content.decode()
    assert "goes live by delivery only" in shown
    assert 'action="/policies/default/draft/publish"' not in shown


def test_only_administrators_change_the_rules(otto_client, ada_client, policy):
    sent = {"direct": "admin", "approvals_needed": "2", "reason": WHY}
    assert otto_client.post("/policies/default/delivery-rules", sent).status_code == 403
    ada_client.post("/policies/default/delivery-rules", sent)
    policy.refresh_from_db()
    assert (policy.direct, policy.approvals_needed) == ("admin", 2)
    shown = ada_client.post("/policies/default/delivery-rules", {**sent, "approvals_needed": "many"}, follow=True)
    assert "Not changed: Approvals of a delivery: " in shown.content.decode()
