from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from controlplane.doors.api import idempotency
from controlplane.doors.api.idempotency import forget_old
from controlplane.doors.api.models import IdempotentAnswer
from controlplane.doors.steps import STEPS
from controlplane.people.accounts.models import ApiToken
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import api_caller
from controlplane.traffic.policies.tests.conftest import WHY, edit

NIGHT = {"name": "night", "reason": WHY}


def test_a_repeated_post_gets_the_same_answer_and_is_performed_once(policy, ci):
    edit(policy, heavy_new_tokens=9000)
    first, second = (
        ci.post("/policies/default/draft/publish", {"reason": WHY}, Idempotency_Key="deploy-7") for _ in range(2)
    )
    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert second.headers["ETag"] == first.headers["ETag"]
    assert second.headers["Idempotent-Replayed"] == "true"
    assert policy.versions.count() == 2


def test_the_same_key_for_another_request_is_refused(policy, ci):
    ci.post("/policies", NIGHT, Idempotency_Key="k1")
    answer = ci.post("/policies", {**NIGHT, "name": "day"}, Idempotency_Key="k1")
    assert answer.status_code == 422
    assert "another request" in answer.json()["detail"]


def test_another_key_is_another_request(policy, ci):
    assert ci.post("/policies", NIGHT, Idempotency_Key="k1").status_code == 201
    assert ci.post("/policies", NIGHT, Idempotency_Key="k2").status_code == 409


def test_callers_with_the_same_key_do_not_affect_one_another(policy, ci, ada_api):
    ci.post("/policies/default/draft", Idempotency_Key="k1")
    assert "Idempotent-Replayed" not in ada_api.post("/policies/default/draft", Idempotency_Key="k1").headers


def test_two_tokens_of_the_same_name_and_user_do_not_share_keys(policy, otto):
    first, second = api_caller(otto), api_caller(otto)
    first.post("/policies/default/draft", Idempotency_Key="k1")
    assert "Idempotent-Replayed" not in second.post("/policies/default/draft", Idempotency_Key="k1").headers


def test_a_token_that_lost_the_scope_gets_no_replay(policy, ci):
    assert ci.post("/policies/default/draft", Idempotency_Key="k1").status_code == 201
    ApiToken.objects.update(scopes=["live:read"])
    assert ci.post("/policies/default/draft", Idempotency_Key="k1").status_code == 403


def test_a_user_who_lost_the_role_gets_no_replay(policy, otto, otto_client):
    def post():
        return otto_client.post("/api/v1/policies/default/draft", headers={"Idempotency-Key": "k1"})

    assert post().status_code == 201
    otto.groups.set(Group.objects.filter(name="viewer"))
    assert post().status_code == 403


def test_a_revoked_token_gets_no_replay(policy, ci):
    ci.post("/policies/default/draft", Idempotency_Key="k1")
    ApiToken.objects.update(revoked_at=timezone.now())
    assert ci.post("/policies/default/draft", Idempotency_Key="k1").status_code == 401


def test_a_repeated_request_must_wait_while_the_first_one_runs(policy, ci):
    ci.post("/policies/default/draft", Idempotency_Key="k1")
    IdempotentAnswer.objects.update(status=0)
    answer = ci.post("/policies/default/draft", Idempotency_Key="k1")
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")


def test_a_claim_of_a_process_that_died_expires(policy, ci):
    ci.post("/policies/default/draft", Idempotency_Key="k1")
    IdempotentAnswer.objects.update(status=0, created_at=timezone.now() - timedelta(minutes=3))
    assert ci.post("/policies/default/draft", Idempotency_Key="k1").status_code == 200


def test_a_request_that_outlasts_its_claim_gets_its_answer(policy, ci, monkeypatch):
    keep = idempotency._keep

    def late(claim, answer):
        IdempotentAnswer.objects.all().delete()  # as if the same request arrived again, two minutes after the first
        keep(claim, answer)

    monkeypatch.setattr(idempotency, "_keep", late)
    assert ci.post("/policies", NIGHT, Idempotency_Key="k1").status_code == 201


def test_a_refusal_because_of_a_missing_scope_is_not_stored(policy, otto):
    caller = api_caller(otto, "policy:read")
    assert caller.post("/policies/default/draft", Idempotency_Key="k1").status_code == 403
    ApiToken.objects.update(scopes=["policy:write"])
    assert caller.post("/policies/default/draft", Idempotency_Key="k1").status_code == 201


def test_a_crash_is_not_stored(policy, ci, monkeypatch):
    from controlplane.doors.api.routes.traffic import policies

    with monkeypatch.context() as patch:
        patch.setattr(policies.services, "open_draft", lambda *_: 1 / 0)
        assert ci.post("/policies/default/draft", Idempotency_Key="k1").status_code == 500
    assert ci.post("/policies/default/draft", Idempotency_Key="k1").status_code == 201


def test_a_validation_error_is_stored(policy, ci):
    first = ci.post("/policies", {"name": "X", "reason": WHY}, Idempotency_Key="k1")
    assert first.status_code == 422
    assert ci.post("/policies", {"name": "X", "reason": WHY}, Idempotency_Key="k1").content == first.content


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_the_length_of_a_key_is_limited(policy, ci, key):
    assert ci.post("/policies", NIGHT, Idempotency_Key=key).status_code == 422


def test_only_answers_to_posts_are_stored(policy, ci):
    ci.get("/policies", Idempotency_Key="k1")
    assert not IdempotentAnswer.objects.exists()


def test_answers_are_forgotten_after_a_day(policy, ci):
    ci.post("/policies/default/draft", Idempotency_Key="old")
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    ci.post("/policies/default/draft", Idempotency_Key="new")
    assert forget_old() == 1
    assert IdempotentAnswer.objects.get().key == "new"


def test_a_token_in_an_answer_is_not_stored_in_the_clear(ada_api):
    answer = ada_api.post("/tokens", {"name": "x", "scopes": ["policy:read"]}, Idempotency_Key="k1")
    assert answer.status_code == 201
    assert answer.json()["token"] not in str(IdempotentAnswer.objects.values())
    again = ada_api.post("/tokens", {"name": "x", "scopes": ["policy:read"]}, Idempotency_Key="k1")
    assert (again.status_code, again.json()["detail"].partition(";")[0]) == (409, "the request succeeded")
    assert AuditEntry.objects.filter(action="token.create").count() == 1


def test_the_daily_task_cleans_up(policy, ci):
    ci.post("/policies/default/draft", Idempotency_Key="old")
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    STEPS["api.clean_up"].run()
    assert not IdempotentAnswer.objects.exists()
