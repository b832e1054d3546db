from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from controlplane.doors.api.auth import principal_by_token
from controlplane.evidence.experiments.models import Experiment
from controlplane.people.accounts.models import ApiToken
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor, record
from controlplane.testing import ApiCaller
from fleet.jobs import owner_of


def test_an_administrator_makes_lists_and_revokes_tokens(ada_api):
    made = ada_api.post("/tokens", {"name": "nightly", "scopes": ["policy:read"]}).json()
    assert ApiCaller(made["token"]).get("/policies").status_code == 200
    listed = {row["name"]: row for row in ada_api.get("/tokens").json()}
    assert listed["nightly"]["status"] == "usable"
    assert "token" not in listed["nightly"]
    assert ada_api.delete(f"/tokens/{made['id']}").status_code == 204
    assert ada_api.delete(f"/tokens/{made['id']}").status_code == 204
    assert ApiCaller(made["token"]).get("/policies").status_code == 401


def test_only_an_administrator_lists_and_creates_tokens(ci):
    assert ci.get("/tokens").status_code == 403
    assert ci.post("/tokens", {"name": "x", "scopes": ["policy:read"]}).status_code == 403


def test_a_token_cannot_make_a_stronger_one(ada):
    from controlplane.testing import api_caller

    weak = api_caller(ada, "admin")
    answer = weak.post("/tokens", {"name": "x", "scopes": ["admin", "policy:publish"]})
    assert [e["path"] for e in answer.json()["errors"]] == ["scopes.1"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": "", "scopes": ["admin"]}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["everything"]}, "scopes.0"),
        ({"name": "x", "scopes": ["admin"], "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "scopes": ["admin"], "expires_at": "2101-01-01T00:00:00"}, "expires_at"),
    ],
)
def test_a_wrong_field_is_named(ada_api, body, path):
    answer = ada_api.post("/tokens", body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


def test_a_token_can_expire(ada_api):
    at = timezone.now() + timedelta(days=1)
    ada_api.post("/tokens", {"name": "x", "scopes": ["admin"], "expires_at": at.isoformat()})
    assert ApiToken.objects.get(name="x").expires_at == at


@pytest.mark.parametrize(("token", "user"), [("x (y) (", "u"), ("x" * 80, "u" * 150)])
def test_an_audit_entry_names_the_token_and_its_owner(ada, token, user):
    ada.username = user
    ada.save()
    _, secret = ApiToken.issue(user=ada, name=token, scopes=["policy:read"])
    caller = principal_by_token(f"Bearer {secret}")
    assert caller is not None
    assert caller.name.startswith(token[:40])
    assert len(caller.name) <= Experiment._meta.get_field("actor").max_length
    assert owner_of(caller.name) == user
    assert owner_of(user) == user


def test_an_unknown_token_is_404(ada_api):
    assert ada_api.delete("/tokens/999").status_code == 404


def test_the_audit_log_pages_by_cursor(ci):
    for number in range(5):
        record(Actor("user", "otto"), "x.y", f"thing {number}")
    first = ci.get("/audit?limit=3&action=x.y").json()
    second = ci.get(f"/audit?limit=3&action=x.y&before={first['next']}").json()
    assert [e["subject"][-1] for e in first["entries"] + second["entries"]] == list("43210")
    assert second["next"] is None


def test_the_audit_log_filters(ci):
    record(Actor("user", "otto"), "x.y", "thing")
    record(Actor("user", "vera"), "x.z", "other")
    assert [e["action"] for e in ci.get("/audit?actor=vera").json()["entries"]] == ["x.z"]
    assert [e["action"] for e in ci.get("/audit?subject=thing").json()["entries"]] == ["x.y"]


def test_the_audit_log_is_bounded_by_days_as_on_its_page(ci):
    record(Actor("user", "otto"), "x.y", "thing")
    AuditEntry.objects.filter(action="x.y").update(at=datetime(2026, 11, 28, 23, 59, tzinfo=UTC))
    queries = ("since=2026-11-28", "until=2026-11-28", "since=2026-11-29", "until=2026-11-27")
    assert [len(ci.get(f"/audit?action=x.y&{query}").json()["entries"]) for query in queries] == [1, 1, 0, 0]
    assert len(ci.get("/audit?action=x.y&since=0001-01-01&until=9999-12-31").json()["entries"]) == 1
    assert ci.get("/audit?since=soon").status_code == 422
