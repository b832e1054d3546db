import re

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User

from controlplane.people.audit.models import AuditEntry
from controlplane.people.permissions import role_of
from controlplane.testing import api_caller


def fresh(user: User) -> User:
    return User.objects.get(pk=user.pk)


def test_an_administrator_adds_a_user_with_a_role(ada_client):
    form = {"username": "nora", "password": "a-long-first-pass", "role": "operator"}
    assert ada_client.post("/users/", form).status_code == 302
    assert role_of(User.objects.get(username="nora")) == "operator"
    assert authenticate(username="nora", password="a-long-first-pass") is not None
    assert AuditEntry.objects.get().action == "user.create"
    assert "a-long-first-pass" not in str(AuditEntry.objects.values())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("username", "ADA", b"A user named ADA exists already"),
        ("username", "", b"required"),
        ("password", "short", b"at least 10"),
        ("role", "emperor", b"valid choice"),
    ],
)
def test_a_wrong_field_is_reported_at_the_field(ada_client, field, value, said):
    form = {"username": "nora", "password": "a-long-first-pass", "role": "viewer", field: value}
    answer = ada_client.post("/users/", form)
    assert answer.status_code == 422
    assert said in answer.content


def test_a_password_similar_to_the_name_is_refused(ada_client):
    form = {"username": "nora.of.weir", "password": "nora.of.weir", "role": "viewer"}
    assert b"too similar to the username" in ada_client.post("/users/", form).content


def test_a_role_can_be_changed(ada_client, vera):
    ada_client.post(f"/users/{vera.pk}", {"role": "operator"})
    assert role_of(fresh(vera)) == "operator"


def test_a_deactivated_persons_session_and_tokens_stop_working(ada_client, otto, otto_client):
    caller = api_caller(otto)
    ada_client.post(f"/users/{otto.pk}", {"active": "no"})
    assert otto_client.get("/policies/").status_code == 302
    assert caller.get("/policies").status_code == 401


def test_deactivated_users_can_be_activated_again(ada_client, otto):
    ada_client.post(f"/users/{otto.pk}", {"active": "no"})
    ada_client.post(f"/users/{otto.pk}", {"active": "yes"})
    assert fresh(otto).is_active


def test_a_new_password_is_shown_once_and_ends_sessions_and_tokens(ada_client, otto, otto_client):
    caller = api_caller(otto)
    answer = ada_client.post(f"/users/{otto.pk}", {"password": "reset"})
    password = re.search(rb"<code>([\w-]{16})</code>", answer.content)[1].decode()
    assert authenticate(username="otto", password=password) == otto
    assert otto_client.get("/policies/").status_code == 302
    assert caller.get("/policies").status_code == 401
    assert b"API tokens of otto are revoked" in answer.content
    assert AuditEntry.objects.first().after == {"tokens_revoked": 1}
    assert password not in str(AuditEntry.objects.values())


@pytest.mark.parametrize("change", [{"role": "viewer"}, {"active": "no"}])
def test_the_last_administrator_cannot_be_removed(ada_client, ada, change):
    answer = ada_client.post(f"/users/{ada.pk}", change, follow=True)
    assert b"the last administrator" in answer.content
    assert role_of(fresh(ada)) == "admin"


@pytest.mark.parametrize("name", ["otto_client", "vera_client"])
def test_only_administrators_see_the_page(request, ada, name):
    answer = request.getfixturevalue(name).get("/users/")
    assert answer.status_code == 403
    assert b"Who can help: ada" in answer.content
