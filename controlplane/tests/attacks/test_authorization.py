"""Every operation of the OpenAPI document, called with every kind of credential: none allows more than its scopes.
The calls name things that do not exist and send no body, so a permitted call changes nothing.
"""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.doors.api.api import api
from controlplane.people.accounts import services as accounts
from controlplane.people.accounts.models import ApiToken
from controlplane.people.permissions import ROLE_SCOPES, SCOPES

pytestmark = [pytest.mark.attacks, pytest.mark.usefixtures("redis_away")]

METHODS = ("get", "post", "put", "patch", "delete")


def operations():
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method in METHODS:
            if method in methods:
                yield method.upper(), path, frozenset(methods[method]["security"][0]["TokenOrSession"])


OPERATIONS = list(operations())


def concrete(path):
    """Fill the path with names and numbers that do not exist."""
    path = re.sub(r"\{(number|version|\w+_id)\}", "2147483000", path)
    return path.replace("{verb}", "stop").replace("{", "no-").replace("}", "")


def outcomes(ask):
    """Return by operation whether the caller was admitted; 401 and 403 mean no."""
    return {(method, path): ask(method, concrete(path)).status_code not in (401, 403) for method, path, _ in OPERATIONS}


def permitted(scopes):
    return {(method, path): needed <= scopes for method, path, needed in OPERATIONS}


def bearing(token):
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    return client.generic


def token_of(user, scopes, **more):
    return ApiToken.issue(user=user, name="attack", scopes=scopes, **more)[1]


def test_every_operation_names_its_scopes():
    assert len(OPERATIONS) > 60
    assert [(method, path) for method, path, scopes in OPERATIONS if not scopes] == []
    assert {scope for _, _, scopes in OPERATIONS for scope in scopes} == set(SCOPES)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_token_with_one_scope_is_permitted_what_that_scope_allows(ada, scope):
    held = frozenset({scope})
    assert outcomes(bearing(token_of(ada, held))) == permitted(held)


@pytest.mark.parametrize(("name", "role"), [("vera", "viewer"), ("otto", "operator"), ("ada", "admin")])
def test_a_token_never_exceeds_the_role_of_its_owner(request, name, role):
    token = token_of(request.getfixturevalue(name), SCOPES)
    assert outcomes(bearing(token)) == permitted(ROLE_SCOPES[role])


@pytest.mark.parametrize(("name", "role"), [("vera", "viewer"), ("otto", "operator"), ("ada", "admin")])
def test_a_session_is_permitted_what_its_role_allows_and_changes_nothing_without_a_csrf_token(request, name, role):
    client = Client(raise_request_exception=False, enforce_csrf_checks=True)
    client.force_login(request.getfixturevalue(name))
    reads = {key: allowed and key[0] == "GET" for key, allowed in permitted(ROLE_SCOPES[role]).items()}
    assert outcomes(client.generic) == reads


def strangers(ada):
    row, revoked = ApiToken.issue(user=ada, name="revoked", scopes=SCOPES)
    accounts.revoke_token(row, accounts.SYSTEM)
    expired = token_of(ada, SCOPES, expires_at=timezone.now() - timedelta(seconds=1))
    good = token_of(ada, SCOPES)
    yield from (revoked, expired, "", "null", good[:-1], good + "x", good.swapcase(), f"{good},{good}", "é" * 40)


def test_every_other_credential_is_refused(ada):
    for token in strangers(ada):
        assert not any(outcomes(bearing(token)).values()), f"let through with {token!r}"
    assert not any(outcomes(lambda method, path: Client().generic(method, path)).values())


def test_the_tokens_of_a_disabled_user_are_refused(ada):
    token = token_of(ada, SCOPES)
    ada.is_active = False
    ada.save()
    assert not any(outcomes(bearing(token)).values())
