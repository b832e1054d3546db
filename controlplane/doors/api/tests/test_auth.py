from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane.people.accounts.models import ApiToken
from controlplane.testing import ApiCaller, api_caller
from controlplane.traffic.policies.tests.conftest import WHY

URL = "/api/v1/policies"
OPEN = "/api/v1/policies/default/draft"


def test_a_request_without_credentials_gets_401_and_the_way_to_sign_in(db, client):
    answer = client.get(URL)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "Bearer weir_" in answer.json()["detail"]


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer x", "Bearer weir_12345678_wrong", "Basic YTpi", "bearer  ", "Bearer weir_\x00"]
)
def test_a_wrong_token_gets_401_even_with_a_session(otto_client, header):
    assert otto_client.get(URL, headers={"Authorization": header}).status_code == 401


def test_an_expired_token_gets_401(otto):
    _, token = ApiToken.issue(
        user=otto, name="old", scopes=["policy:read"], expires_at=timezone.now() - timedelta(seconds=1)
    )
    assert ApiCaller(token).get("/policies").status_code == 401


def test_a_token_of_a_deleted_user_gets_401(otto, ci):
    User.objects.filter(pk=otto.pk).update(is_active=False)
    assert ci.get("/policies").status_code == 401


def test_a_token_is_limited_to_the_role_of_its_user(policy, ada, vera):
    caller = api_caller(vera, "policy:read", "policy:write")
    assert caller.get("/policies").status_code == 200
    answer = caller.post("/policies/default/draft")
    message = "ci (vera) lacks the scope policy:write, which requires the role operator; ask ada"
    assert (answer.status_code, answer.json()["detail"]) == (403, message)


def test_a_token_is_limited_to_its_scopes(policy, ada, otto):
    answer = api_caller(otto, "policy:read").post("/policies/default/draft")
    assert answer.status_code == 403
    assert answer.json()["detail"] == "the token ci (otto) lacks the scope policy:write: create one that has it"


def test_editing_does_not_include_publishing(policy, otto):
    caller = api_caller(otto, "policy:read", "policy:write")
    assert caller.post("/policies/default/draft").status_code == 201
    assert caller.post("/policies/default/draft/publish", {"reason": WHY}).status_code == 403


def test_the_time_of_a_tokens_use_is_stored_once_a_minute(otto, ci, django_assert_num_queries):
    ci.get("/policies")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    ci.get("/policies")
    assert ApiToken.objects.get().last_used_at == first


def test_a_session_can_read_without_a_csrf_token(otto):
    client = Client(enforce_csrf_checks=True)
    client.force_login(otto)
    assert client.get(URL).status_code == 200


def test_a_session_cannot_write_without_a_csrf_token(policy, otto):
    client = Client(enforce_csrf_checks=True)
    client.force_login(otto)
    answer = client.post(OPEN)
    assert answer.status_code == 403
    assert "CSRF" in answer.json()["detail"]


def test_a_session_with_a_csrf_token_can_write(policy, otto):
    client = Client(enforce_csrf_checks=True)
    client.force_login(otto)
    client.get("/tokens/")
    token = client.cookies["csrftoken"].value
    assert client.post(OPEN, headers={"X-CSRFToken": token}).status_code == 201


def test_a_token_needs_no_csrf_token(policy, otto):
    client = Client(enforce_csrf_checks=True)
    header = {"Authorization": f"Bearer {api_caller(otto).token}"}
    assert client.post(OPEN, headers=header).status_code == 201


def test_a_viewers_session_can_only_read(policy, vera_client):
    assert vera_client.get(URL).status_code == 200
    assert vera_client.post(OPEN).status_code == 403
