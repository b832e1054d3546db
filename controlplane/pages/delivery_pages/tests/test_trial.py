"""The demo fleet offers a good and a harmful candidate; a fleet with real engines offers none."""

import pytest
from django.utils import timezone

from controlplane.pages.delivery_pages import trial
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.deliveries.tests.conftest import ADA, OTTO, WHY
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.tests.conftest import edit
from fleet.models import Pool

pytestmark = pytest.mark.usefixtures("redis_away", "pool")


@pytest.mark.parametrize("kind", ["good", "harmful"])
def test_each_candidate_is_proposed_and_started(policy, kind):
    made = trial.start(policy, kind, OTTO)
    assert made.state == State.ARMING
    assert made.plan["steps"][1]["share"] == 0.5
    assert policies.open_draft(policy) is None


def test_the_harmful_candidate_can_be_tried_again_after_its_abort(policy):
    made = move(trial.start(policy, "harmful", OTTO), TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
    move(made, TransitionRequest(Trigger.FAIL, Origin.JUDGE, why="warm TTFT × 4"))
    assert trial.start(policy, "harmful", OTTO).again == trial.AGAIN


def test_each_good_document_of_a_trial_differs_from_the_previous_one(policy):
    made = move(trial.start(policy, "good", OTTO), TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
    for _ in range(2):
        made = services.advance(made, OTTO, WHY)
    assert made.state == State.BAKING
    move(made, TransitionRequest(Trigger.DELIVER, Origin.SYSTEM))
    again = trial.start(policy, "good", OTTO)
    assert again.candidate.upgraded["classes"]["heavy_new_tokens"] == 20_000


def test_a_delivery_waits_for_the_approval_that_its_policy_requires(policy):
    services.set_rules(policy, ADA, WHY, direct="allowed", approvals_needed=1)
    policy.refresh_from_db()
    assert trial.start(policy, "good", OTTO).state == State.PROPOSED


def test_nothing_is_started_while_a_draft_or_a_delivery_is_open(policy):
    edit(policy, heavy_new_tokens=9_000)
    assert "a draft of otto is open" in trial.offered().refusal.text
    assert trial.offered().refusal.href == f"/policies/{policy.name}/draft"
    with pytest.raises(Conflict, match="draft"):
        trial.start(policy, "good", OTTO)


def test_a_draft_that_changes_nothing_does_not_prevent_a_trial(policy):
    edit(policy)
    assert trial.offered().refusal is None
    assert trial.start(policy, "good", OTTO).state == State.ARMING


def test_with_real_engines_nothing_is_offered(policy):
    Pool.objects.create(name="real", model="m", kind="vllm", policy=policy.name, replicas=1)
    assert trial.offered() is None


def test_the_short_plan_is_possible_for_every_draft_on_simulated_engines(policy, otto_client):
    edit(policy, heavy_new_tokens=9_000)
    path = f"/policies/{policy.name}/draft/deliver"
    cards = otto_client.get(path).context["presets"]
    assert [(one.key, one.takes, one.shares) for one in cards] == [
        ("short", "2 min 30 s", "50 %"),
        ("standard", "1 h 5 min", "5 %, 25 %"),
        ("day", "7 h 10 min", "5 %, 25 %, 50 %"),
        ("careful", "9 h 30 min", "1 %, 5 %, 25 %"),
    ]
    for one in cards:
        assert services.check_plan(policy, one.plan.canonical, timezone.now()) == one.plan
    chosen = otto_client.get(path, {"plan": "short"})
    assert chosen.context["numbers"] == {"shadow": 1, "canary1": 2, "full": 3}
    assert '<a class="plan-preset" href="?plan=short" aria-current="true">' in chosen.content.decode()
    assert {"shadow.for": "30 s", "canary1.share": "50"}.items() <= chosen.context["values"].items()


def test_the_short_plan_is_not_offered_with_real_engines_or_if_the_policy_requires_a_longer_one(policy):
    services.set_rules(policy, ADA, WHY, direct="never", least_share=0.1, least_for_s=600, least_bake_s=60)
    policy.refresh_from_db()
    assert trial.short_plan(policy) is None
    services.set_rules(policy, ADA, WHY, direct="allowed")
    policy.refresh_from_db()
    assert trial.short_plan(policy).least_s == 150
    Pool.objects.create(name="real", model="m", kind="vllm", policy=policy.name, replicas=1)
    assert trial.short_plan(policy) is None


def test_the_page_offers_the_trial_to_operators(policy, vera_client, otto_client):
    assert "requires the role operator" in vera_client.get("/deliveries/").content.decode()
    assert vera_client.post("/deliveries/try", {"candidate": "good"}).status_code == 403
    response = otto_client.post("/deliveries/try", {"candidate": "good"})
    assert response.url == f"/deliveries/{policy.deliveries.get().pk}/"
    refused = otto_client.post("/deliveries/try", {"candidate": "good"}, follow=True).content.decode()
    assert "Not started: v2 is being delivered" in refused


def test_without_a_demo_fleet_there_is_nothing_to_try(policy, otto_client):
    assert "/deliveries/#try" in otto_client.get("/help").content.decode()
    Pool.objects.update(kind="vllm")
    assert otto_client.post("/deliveries/try", {"candidate": "good"}).status_code == 404
    assert "Try a delivery" not in otto_client.get("/deliveries/").content.decode()
    assert "/deliveries/#try" not in otto_client.get("/help").content.decode()


def test_an_adopted_pool_that_is_only_observed_changes_nothing(policy, otto_client):
    """The pool gets no requests, so a shadow would never end."""
    Pool.objects.create(name="seen", model="m", kind="external", policy=policy.name, mode="observe")
    assert trial.offered().refusal is None
    assert trial.start(policy, "good", OTTO).plan["pools"] == ["demo"]
    page = otto_client.get(f"/policies/{policy.name}/").content.decode()
    assert "pool demo, 8 instances, 100 %" in page
    assert "pools demo and seen" not in page


def test_live_links_to_the_trial_until_there_was_a_delivery(policy, otto_client):
    assert "try a delivery" in otto_client.get("/live").content.decode()
    trial.start(policy, "good", OTTO)
    assert "try a delivery" not in otto_client.get("/live").content.decode()
