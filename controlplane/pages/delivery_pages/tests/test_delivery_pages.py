"""The page of a delivery: everybody sees it, operators control it, nobody approves their own."""

import pytest

from controlplane.pages.delivery_pages.tests.values import finding
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.models import Look
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.deliveries.tests.conftest import ADA, CANARY, FULL, OTTO, WHY, proposed
from controlplane.traffic.policies import services as policies

VERBS = ("pause", "abort", "approve", "reject", "start", "resume", "extend", "advance", "withdraw", "explain")


def page(client, delivery, path=""):
    return client.get(f"/deliveries/{delivery.pk}/{path}").content.decode()


def press(client, delivery, verb, **fields):
    response = client.post(f"/deliveries/{delivery.pk}/{verb}", fields)
    delivery.refresh_from_db()
    return response


@pytest.fixture
def running(delivery):
    """A delivery in its first canary, of 5 %."""
    for what, by in (
        (Trigger.START, Origin.PERSON),
        (Trigger.ARMED, Origin.SYSTEM),
        (Trigger.PASS, Origin.JUDGE),
    ):
        delivery = move(delivery, TransitionRequest(what, by, OTTO))
    return delivery


def test_a_viewer_sees_everything_and_can_do_nothing(vera_client, running):
    shown = page(vera_client, running)
    assert "v2 decides 5 % of the requests of pool demo; v1 decides the other 95 %." in shown
    assert "requires the role operator" in shown
    assert 'id="act-abort" type="submit" disabled' in shown
    for verb in VERBS:
        assert press(vera_client, running, verb).status_code == 403
    assert running.state == State.STEP


def test_the_page_requires_a_sign_in(client, running):
    assert client.get(f"/deliveries/{running.pk}/").status_code == 302


def test_an_unknown_delivery_and_an_unknown_action_are_missing(otto_client, running):
    assert otto_client.get("/deliveries/999/").status_code == 404
    assert press(otto_client, running, "explode").status_code == 404


def test_abort_is_one_click_and_the_reason_can_follow(otto_client, running):
    assert press(otto_client, running, "abort").status_code == 302
    assert running.state == State.ABORTED
    shown = page(otto_client, running)
    assert "By otto: no reason was given" in shown
    assert "Add the reason" in shown
    assert press(otto_client, running, "explain", reason="heavy requests looked slow").status_code == 302
    assert "heavy requests looked slow" in page(otto_client, running)
    assert "Add the reason" not in page(otto_client, running)


def test_a_delivery_is_paused_resumed_and_advanced(otto_client, running):
    press(otto_client, running, "pause")
    assert (running.state, running.share) == (State.PAUSED, 0.0)
    assert press(otto_client, running, "resume", reason="short").status_code == 422
    press(otto_client, running, "resume", reason="the node is back again")
    assert running.state == State.ARMING


def test_a_missing_reason_is_reported_at_its_field_and_typed_text_kept(otto_client, running):
    response = press(otto_client, running, "advance", reason="short")
    shown = response.content.decode()
    assert response.status_code == 422
    assert 'id="reason-error"' in shown
    assert ">short</textarea>" in shown
    assert running.step == 1


def test_actions_on_a_changed_delivery_are_refused_except_abort(otto_client, running):
    old = running.etag
    services.pause(running, ADA)
    response = press(otto_client, running, "resume", reason=WHY, etag=old)
    assert response.status_code == 409
    assert "the delivery was changed meanwhile" in response.content.decode()
    assert press(otto_client, running, "abort", etag=old).status_code == 302
    assert running.state == State.ABORTED


def test_an_action_that_the_state_does_not_allow_is_refused(otto_client, delivery):
    response = press(otto_client, delivery, "pause")
    assert response.status_code == 409
    assert "Not done: the delivery is ready" in response.content.decode()


def test_another_person_must_approve(redis_away, pool, policy, otto_client, ada_client):
    made = proposed(policy, CANARY, FULL, approvals={"needed": 1})
    shown = page(otto_client, made)
    assert "Ready to start after 1 approval" in shown
    assert "otto proposed the delivery: somebody else must approve it" in shown
    assert press(otto_client, made, "approve").status_code == 403
    assert press(ada_client, made, "approve").status_code == 302
    assert made.state == State.READY
    assert "Approved" in page(otto_client, made)


def test_only_administrators_can_skip_approvals(redis_away, pool, policy, otto_client, ada_client):
    made = proposed(policy, CANARY, FULL, approvals={"needed": 1})
    assert "Bypass the rules" not in page(otto_client, made)
    assert "Bypass the rules" in page(ada_client, made)
    assert press(otto_client, made, "go-without", reason=WHY).status_code == 403
    press(ada_client, made, "go-without", reason="the old version fails every request")
    assert made.state == State.READY


def test_deliveries_waiting_for_approval_are_counted_in_the_navigation(
    redis_away, pool, policy, vera_client, otto_client, ada_client
):
    made = proposed(policy, CANARY, FULL, approvals={"needed": 1})
    assert "waiting for you" in ada_client.get("/policies/").content.decode()
    assert "Waiting for you" in ada_client.get("/deliveries/").content.decode()
    for client in (vera_client, otto_client):
        assert "waiting for you" not in client.get("/deliveries/").content.decode().lower()
    services.reject(made, ADA, "not on a Friday evening")
    assert "waiting for you" not in ada_client.get("/deliveries/").content.decode().lower()


def test_figures_of_the_step_are_shown_on_their_axis(vera_client, running):
    Look.objects.create(
        delivery=running, state="step", step=1, generation=running.generation, findings=[finding().as_dict()]
    )
    shown = page(vera_client, running)
    assert "1.04×" in shown
    assert '<svg class="interval"' in shown
    assert "Nothing fails; heavy TTFT is not decided yet." in shown
    assert "if heavy TTFT is enough to go on" in shown


def test_without_scripts_the_charts_of_a_delivery_are_not_shown(vera_client, running):
    assert '<section class="panel scripted" id="delivery-charts"' in page(vera_client, running)


def test_before_the_first_look_the_page_says_what_the_step_waits_for(vera_client, running):
    assert "if warm TTFT, medium TTFT, heavy TTFT and warm TPOT are enough to go on" in page(vera_client, running)


def test_figures_of_an_earlier_step_are_not_shown(vera_client, running):
    Look.objects.create(delivery=running, state="step", step=0, generation=1, findings=[finding().as_dict()])
    assert "1.04×" not in page(vera_client, running)


def test_the_refreshed_part_contains_the_buttons_only_if_something_changed(otto_client, running):
    same = page(otto_client, running, f"live?etag={running.etag}")
    assert 'id="delivery-live"' in same
    assert "hx-swap-oob" not in same
    assert "hx-swap-oob" in page(otto_client, running, "live?etag=y1.1")


def test_the_history_says_what_happened_and_who_did_it(vera_client, running):
    shown = page(vera_client, running)
    for text in ("Proposed", "Started", "Shadow began", "Canary 5 % began", WHY):
        assert text in shown


def test_the_list_shows_the_newest_delivery_first_and_says_what_to_do_if_empty(vera_client, running):
    shown = vera_client.get("/deliveries/").content.decode()
    assert "default v1 → v2" in shown


def test_an_empty_list_says_what_to_do(redis_away, policy, vera_client):
    assert "No deliveries yet" in vera_client.get("/deliveries/").content.decode()


def test_the_policy_shows_its_delivery_and_the_history_shows_versions_that_never_went_live(otto_client, running):
    shown = otto_client.get("/policies/default/").content.decode()
    assert "v2 decides 5 % of the requests" in shown
    assert "never live" in shown
    services.abort(running, OTTO, WHY)
    shown = otto_client.get("/policies/default/").content.decode()
    assert "aborted" in shown
    assert "Roll back to v2" not in shown


def test_changes_that_apply_to_the_whole_pool_are_shown_as_waiting(redis_away, policy, pool, otto_client):
    policies.open_draft(policy, OTTO)
    policies.patch_draft(policy, {"affinity.ttl_s": 900, "classes.heavy_new_tokens": 9000}, OTTO)
    form = otto_client.get("/policies/default/draft/deliver").content.decode()
    assert form.count("when it goes live") == 1
    made = services.propose(policy, {"steps": [CANARY, FULL]}, OTTO, WHY)
    assert page(otto_client, made).count("when it goes live") == 1
