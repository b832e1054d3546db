"""Deliveries, delivery rules and freezes over REST. Otto's token proposes, olga approves, ada administers."""

import threading
import time
from typing import Any

import pytest
from django.utils import timezone

from controlplane.doors.api.routes.traffic import deliveries as routes
from controlplane.testing import ApiCaller, api_caller
from controlplane.traffic.deliveries import moving, services
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.models import Delivery, Freeze, Look
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.deliveries.tests.conftest import OTTO, STEPS, plan
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.tests.conftest import WHY, edit, pool  # noqa: F401  (fixture)
from fleet.models import Pool

DELIVER = "/policies/default/draft/deliver"


@pytest.fixture
def olga(db: None) -> ApiCaller:
    from controlplane.testing import _person

    return api_caller(_person("olga", "operator"))


@pytest.fixture
def draft(policy: Policy, pool: Pool) -> str:  # noqa: F811
    return edit(policy, OTTO, heavy_new_tokens=9000)


@pytest.fixture
def proposed(draft: str, ci: ApiCaller) -> dict[str, Any]:
    """A proposed delivery that needs one approval."""
    return ci.post(DELIVER, {"plan": plan(approvals={"needed": 1}), "reason": WHY}).json()


@pytest.fixture
def running(draft: str, ci: ApiCaller) -> dict[str, Any]:
    """A delivery in its first canary step."""
    made = ci.post(DELIVER, {"plan": plan(*STEPS[1:]), "reason": WHY}).json()
    row = Delivery.objects.get(pk=made["id"])
    for what, by in ((Trigger.START, Origin.PERSON), (Trigger.ARMED, Origin.SYSTEM)):
        row = moving.move(row, moving.TransitionRequest(what, by, OTTO, WHY))
    return ci.get(f"/deliveries/{row.pk}").json()


def test_a_draft_becomes_the_candidate_of_a_delivery(draft, ci):
    answer = ci.post(DELIVER, {"plan": plan(), "reason": WHY}, If_Match=f'"{draft}"')
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["ETag"] == f'"{made["etag"]}"'
    assert (made["policy"], made["candidate"]["number"], made["base"]["number"]) == ("default", 2, 1)
    assert (made["state"], made["open"], made["step"], made["steps"]) == ("ready", True, 1, 4)
    assert (made["proposed_by"], made["reason"]) == ("ci (otto)", WHY)
    assert ci.get("/policies/default").json()["live"]["number"] == 1
    assert ci.get("/policies/default/draft").status_code == 404
    assert [row["id"] for row in ci.get("/policies/default/deliveries").json()] == [made["id"]]
    assert ci.get(f"/policies/default/deliveries?before={made['id']}").json() == []


def test_without_a_plan_the_default_is_proposed(draft, ci):
    made = ci.post(DELIVER, {"reason": WHY}).json()
    assert [step["mode"] for step in made["plan"]["steps"]] == ["shadow", "canary", "canary", "full"]
    assert made["plan"]["pools"] == ["demo"]


def test_a_repeated_key_proposes_once(draft, ci):
    first, again = (ci.post(DELIVER, {"reason": WHY}, Idempotency_Key="k") for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert Delivery.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"reason": "short"}, 422, "reason"),
        ({"reason": WHY, "plan": {"steps": []}}, 422, "plan.steps"),
        ({"reason": WHY, "plan": plan({"mode": "canary", "share": 0.9, "for_s": 60})}, 422, "plan.steps[0].share"),
        ({"reason": WHY, "plan": 5}, 422, "plan"),
        ({"reason": WHY, "force": True}, 422, "force"),
    ],
)
def test_a_proposal_that_is_refused_names_the_field(draft, ci, body, status, path):
    answer = ci.post(DELIVER, body)
    assert answer.status_code == status
    assert answer.json()["errors"][0]["path"] == path


def test_a_stale_draft_is_412_no_draft_404_and_a_second_delivery_409(draft, ci, policy):
    assert ci.post(DELIVER, {"reason": WHY}, If_Match='"d1.99"').status_code == 412
    assert ci.post(DELIVER, {"reason": WHY}).status_code == 201
    assert ci.post(DELIVER, {"reason": WHY}).status_code in (404, 409)
    edit(policy, OTTO, heavy_new_tokens=8000)
    answer = ci.post(DELIVER, {"reason": WHY})
    assert answer.status_code == 409
    assert "is being delivered" in answer.json()["detail"]


def test_publishing_beside_an_open_delivery_needs_abort_open(proposed, ci, policy):
    edit(policy, OTTO, heavy_new_tokens=8000)
    assert ci.post("/policies/default/draft/publish", {"reason": WHY}).status_code == 409
    answer = ci.post("/policies/default/draft/publish", {"reason": WHY, "abort_open": True})
    assert answer.status_code == 200
    assert ci.get(f"/deliveries/{proposed['id']}").json()["state"] == "aborted"


def test_another_person_approves_and_the_proposer_cannot(proposed, ci, olga, otto):
    path = f"/deliveries/{proposed['id']}/approve"
    refused = ci.post(path)
    assert (refused.status_code, "somebody else" in refused.json()["detail"]) == (403, True)
    assert olga.post(path, {"comment": "fine"}, If_Match='"y0.0"').status_code == 412
    answer = olga.post(path, {"comment": "fine"}, If_Match=f'"{proposed["etag"]}"')
    assert (answer.status_code, answer.json()["state"]) == (200, "ready")
    (approval,) = answer.json()["approvals"]
    assert (approval["by"], approval["comment"]) == ("ci (olga)", "fine")
    assert olga.post(path).status_code == 409


def test_rejecting_needs_a_reason_and_ends_the_delivery(proposed, olga):
    path = f"/deliveries/{proposed['id']}/reject"
    assert olga.post(path, {}).status_code == 422
    assert olga.post(path, {"reason": "too steep a step"}).json()["state"] == "rejected"


def test_withdrawing_turns_the_candidate_into_a_draft_again_and_only_its_proposer_may_do_so(proposed, ci, olga):
    path = f"/deliveries/{proposed['id']}/withdraw"
    assert olga.post(path).status_code == 403
    assert ci.post(path).json()["state"] == "withdrawn"
    assert ci.get("/policies/default/draft").status_code == 200


def test_only_the_admin_scope_may_skip_approvals(proposed, ada, ada_api, ci, draft, policy):
    path, body = f"/deliveries/{proposed['id']}/approve", {"emergency": "prefill melts the GPUs"}
    assert ci.post(path, body).status_code == 403
    assert api_caller(ada, "policy:approve").post(path, body).status_code == 403
    answer = ada_api.post(path, body)
    assert (answer.json()["state"], answer.json()["emergency"]) == ("ready", "prefill melts the GPUs")


def test_proposing_in_an_emergency_needs_the_admin_scope(draft, ada, ada_api, ci):
    body = {"plan": plan(approvals={"needed": 2}), "reason": WHY, "emergency": "prefill melts the GPUs"}
    assert ci.post(DELIVER, body).status_code == 403
    assert api_caller(ada, "policy:publish").post(DELIVER, body).status_code == 403
    assert ada_api.post(DELIVER, body).json()["state"] == "ready"


def test_a_delivery_is_started_steered_and_aborted(draft, ci):
    made = ci.post(DELIVER, {"plan": plan(*STEPS[1:]), "reason": WHY}).json()
    path = f"/deliveries/{made['id']}"

    def act(verb: str, body: object = None) -> tuple[int, str]:
        answer = ci.post(f"{path}/{verb}", body)
        return answer.status_code, answer.json().get("state", "")

    assert act("start") == (200, "arming")
    row = Delivery.objects.get(pk=made["id"])
    moving.move(row, moving.TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
    assert act("pause", {"reason": "odd"}) == (200, "paused")
    assert act("pause") == (409, "")
    assert act("extend", {"reason": "a canary has no pairs"}) == (409, "")
    assert ci.get(path).json()["share"] == 0
    assert act("resume", {}) == (422, "")
    assert act("resume", {"reason": "it was the switch"}) == (200, "arming")
    moving.move(Delivery.objects.get(pk=made["id"]), moving.TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
    assert act("advance", {"reason": "seen enough"}) == (200, "step")
    assert ci.get(path).json()["step"] == 2
    assert act("abort") == (200, "aborted")
    assert act("abort") == (409, "")


BACK = {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 4}


def test_a_switchback_reports_its_block_its_schedule_and_the_results_of_its_steps(draft, ci):
    made = ci.post(DELIVER, {"plan": plan(STEPS[1], BACK), "reason": WHY}).json()
    path = f"/deliveries/{made['id']}"
    assert (made["switchback"], made["results"], made["stands_still"]) == (None, [], False)
    ci.post(f"{path}/start")
    moving.move(Delivery.objects.get(pk=made["id"]), moving.TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
    seen = GuardFinding("ttft", "fine", "warm TTFT × 0.8", estimate=-0.2, upper=-0.1, request_class="warm", needed=True)
    row = Delivery.objects.get(pk=made["id"])
    moving.move(row, moving.TransitionRequest(Trigger.PASS, Origin.JUDGE, findings=(seen,)))
    got = ci.get(path).json()
    assert (got["switchback"]["block"], got["switchback"]["blocks"]) == (1, 8)
    assert sorted(got["switchback"]["schedule"]) == ["candidate"] * 4 + ["control"] * 4
    assert 0 < got["switchback"]["left_s"] <= 60
    (comparison,) = got["results"][0]["shown"]
    assert (comparison["class"], comparison["word"], comparison["estimate"]) == ("warm", "better", -0.2)
    paused = ci.post(f"{path}/pause").json()
    assert (paused["stands_still"], paused["share"], paused["switchback"]["block"]) == (True, 0.0, 1)


def test_a_stale_etag_is_412_and_changes_nothing(running, ci):
    path = f"/deliveries/{running['id']}"
    for verb in ("pause", "abort", "start", "withdraw"):
        assert ci.post(f"{path}/{verb}", If_Match='"y1.0"').status_code in (403, 412)
    for verb in ("advance", "resume", "extend", "reject"):
        assert ci.post(f"{path}/{verb}", {"reason": "seen enough"}, If_Match='"y1.0"').status_code == 412
    assert ci.get(path).json()["etag"] == running["etag"]


def test_a_token_that_may_only_abort_can_only_make_things_safer(running, otto):
    alone = api_caller(otto, "policy:abort")
    path = f"/deliveries/{running['id']}"
    for verb in ("approve", "reject", "withdraw", "start", "resume", "extend", "advance"):
        assert alone.post(f"{path}/{verb}", {"reason": "seen enough"}).status_code == 403
    assert alone.post(DELIVER, {"reason": WHY}).status_code == 403
    assert alone.post(f"{path}/pause").json()["state"] == "paused"
    assert alone.post(f"{path}/abort").json()["state"] == "aborted"


def test_looks_are_listed_newest_first(running, ci):
    for n in range(3):
        Look.objects.create(
            delivery_id=running["id"], state="step", step=0, generation=1, proposal="stay", facts={"n": n}
        )
    looks = ci.get(f"/deliveries/{running['id']}/looks").json()
    assert [look["facts"]["n"] for look in looks] == [2, 1, 0]
    assert looks[0]["step"] == 1
    older = ci.get(f"/deliveries/{running['id']}/looks?limit=1&before={looks[0]['id']}").json()
    assert older == looks[1:2]
    assert ci.get(f"/deliveries/{running['id']}").json()["look"] == looks[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/deliveries/77", "/deliveries/77/looks", "/freezes/77")),
        *(("GET", f"/policies/gone/{what}") for what in ("deliveries", "delivery-rules")),
        *(("POST", f"/deliveries/77/{verb}") for verb in ("approve", "withdraw", "start", "pause", "abort")),
        ("DELETE", "/freezes/77"),
    ],
)
def test_an_unknown_address_is_404(ada_api, db, method, path):
    assert ada_api.call(method, path).status_code == 404


# Waiting


def test_an_unchanged_delivery_is_answered_with_304_and_its_etag(running, ci):
    answer = ci.get(f"/deliveries/{running['id']}", If_None_Match=f'"{running["etag"]}"')
    assert (answer.status_code, answer.headers["ETag"]) == (304, f'"{running["etag"]}"')
    assert ci.get(f"/deliveries/{running['id']}", If_None_Match='"other"').status_code == 200


def test_a_wait_ends_with_304_when_nothing_happens(running, ci):
    begun = time.monotonic()
    answer = ci.get(f"/deliveries/{running['id']}?wait=1", If_None_Match=f'"{running["etag"]}"')
    assert answer.status_code == 304
    assert time.monotonic() - begun > 0.9


def test_a_wait_ends_as_soon_as_the_delivery_changes(running, ci, monkeypatch):
    def sleep(_: float) -> None:
        row = Delivery.objects.get(pk=running["id"])
        services.pause(row, OTTO, "odd")

    monkeypatch.setattr(routes.time, "sleep", sleep)
    answer = ci.get(f"/deliveries/{running['id']}?wait=60", If_None_Match=f'"{running["etag"]}"')
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")


def test_without_an_etag_or_with_another_the_answer_is_immediate(running, ci):
    begun = time.monotonic()
    assert ci.get(f"/deliveries/{running['id']}?wait=60").status_code == 200
    assert ci.get(f"/deliveries/{running['id']}?wait=60", If_None_Match='"y0.0"').status_code == 200
    assert time.monotonic() - begun < 60


def test_waiters_beyond_the_limit_are_answered_at_once(running, ci, monkeypatch):
    monkeypatch.setattr(routes, "_waiters", threading.BoundedSemaphore(1))
    with routes._waiters:
        answer = ci.get(f"/deliveries/{running['id']}?wait=60", If_None_Match=f'"{running["etag"]}"')
    assert answer.status_code == 304


@pytest.mark.parametrize("wait", ["-1", "61", "x"])
def test_an_impossible_wait_is_refused(running, ci, wait):
    assert ci.get(f"/deliveries/{running['id']}?wait={wait}").status_code == 422


# Rules and freezes

WEEKLY = {
    "name": "weekends",
    "policies": ["default"],
    "start": "2026-01-02T18:00",
    "end": "2026-01-05T07:00",
    "zone": "Europe/Berlin",
    "rrule": "FREQ=WEEKLY",
    "reason": "nobody is there",
}


def test_everybody_reads_the_rules_and_only_administrators_set_them(policy, ci, ada_api, ada):
    path = "/policies/default/delivery-rules"
    least = {"least_share": 0.05, "least_for_s": 600, "least_bake_s": 600}
    read = ci.get(path)
    assert read.json() == {"direct": "allowed", "approvals_needed": 0, **least, "etag": read["ETag"].strip('"')}
    body = {"direct": "never", "approvals_needed": 1, "reason": "two people look at each change"}
    assert ci.call("PUT", path, body).status_code == 403
    changed = ada_api.call("PUT", path, {**body, "least_share": 0.1}).json()
    assert changed.pop("etag") != read.json()["etag"]
    assert changed == {"direct": "never", "approvals_needed": 1, **least, "least_share": 0.1}
    assert api_caller(ada, "freeze:write").call("PUT", path, {**body, "direct": "admin"}).status_code == 200
    for wrong in ({"direct": "maybe"}, {"approvals_needed": 11}, {"reason": "x"}, {"least_share": 0.6}):
        assert ada_api.call("PUT", path, {**body, **wrong}).status_code == 422


def test_a_policy_that_is_never_published_directly_refuses_it(policy, pool, ci, ada_api):  # noqa: F811
    body = {"direct": "never", "approvals_needed": 0, "reason": "each change is watched"}
    ada_api.call("PUT", "/policies/default/delivery-rules", body)
    edit(policy, OTTO, heavy_new_tokens=9000)
    answer = ci.post("/policies/default/draft/publish", {"reason": WHY})
    assert answer.status_code in (403, 409, 422)


def test_freezes_are_added_changed_and_removed_by_administrators(policy, ci, ada_api):
    assert ci.post("/freezes", WEEKLY).status_code == 403
    made = ada_api.post("/freezes", WEEKLY).json()
    path = f"/freezes/{made['id']}"
    assert {name: made[name] for name in WEEKLY} == WEEKLY
    assert ci.get("/freezes").json() == [made]
    assert ci.get(path).json() == made
    assert ci.patch(path, {"behaviour": "abort"}).status_code == 403
    changed = ada_api.patch(path, {"behaviour": "abort", "policies": [], "name": None}).json()
    assert (changed["behaviour"], changed["policies"], changed["name"]) == ("abort", [], "weekends")
    assert ci.delete(path).status_code == 403
    assert ada_api.delete(path).status_code == 204
    assert ada_api.get(path).status_code == 404
    assert ci.get("/freezes").json() == []


def test_a_freeze_that_is_refused_names_the_field(policy, ada_api):
    answer = ada_api.post("/freezes", {**WEEKLY, "rrule": "FREQ=HOURLY"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "rrule"
    assert not Freeze.objects.exists()


def test_nothing_starts_in_a_freeze(draft, ci, ada_api):
    now = timezone.now()
    whole = {**WEEKLY, "policies": [], "rrule": "", "zone": "UTC"}
    whole |= {"start": f"{now:%Y-%m-%d}T00:00", "end": f"{now + timezone.timedelta(days=2):%Y-%m-%d}T00:00"}
    assert ada_api.post("/freezes", whole).status_code == 201
    made = ci.post(DELIVER, {"plan": plan(), "reason": WHY}).json()
    answer = ci.post(f"/deliveries/{made['id']}/start")
    assert answer.status_code == 409
    assert "the freeze weekends is in force" in answer.json()["detail"]
    assert Delivery.objects.get().state == State.READY
