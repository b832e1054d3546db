"""API keys of the data plane over REST."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.traffic.keys.models import ApiKey
from fleet.models import Pool

pytestmark = pytest.mark.usefixtures("redis_away")


@pytest.fixture(autouse=True)
def chat(db):
    Pool.objects.create(name="chat")


def test_an_administrator_makes_lists_changes_and_revokes_keys(ada_api):
    made = ada_api.post("/keys", {"name": "search", "pools": ["chat"], "requests_per_min": 60}).json()
    assert made["key"].startswith("sk-weir-")
    changed = ada_api.patch(f"/keys/{made['id']}", {"requests_per_min": None, "tokens_per_min": 500})
    assert (changed.json()["requests_per_min"], changed.json()["tokens_per_min"]) == (None, 500)
    assert changed.json()["pools"] == ["chat"]
    assert (changed.json()["priority"], changed.json()["priority_max"]) == (0, 0)
    changed = ada_api.patch(f"/keys/{made['id']}", {"priority": -5, "priority_max": 7}).json()
    assert (changed["priority"], changed["priority_max"]) == (-5, 7)
    for _ in range(2):
        assert ada_api.post(f"/keys/{made['id']}/revoke").json()["status"] == "revoked"
    (listed,) = ada_api.get("/keys").json()
    assert (listed["name"], listed["status"]) == ("search", "revoked")
    assert "key" not in listed


def test_an_operators_token_sees_keys_and_changes_none(ci, ada_api):
    row = ada_api.post("/keys", {"name": "search"}).json()
    assert ci.get("/keys").status_code == 200
    assert ci.post("/keys", {"name": "x"}).status_code == 403
    assert ci.patch(f"/keys/{row['id']}", {"name": "x"}).status_code == 403
    assert ci.post(f"/keys/{row['id']}/revoke").status_code == 403
    assert ci.call("PUT", "/keys/required", {"pools": ["*"]}).status_code == 403


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "x", "pools": ["gone"]}, "pools"),
        ({"name": "x", "requests_per_min": 0}, "requests_per_min"),
        ({"name": "x", "tokens_per_min": -1}, "tokens_per_min"),
        ({"name": "x", "priority": 101}, "priority"),
        ({"name": "x", "priority": 5, "priority_max": 4}, "priority"),
        ({"name": "x", "priority_max": -101}, "priority_max"),
        ({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "expires_at": "2101-01-01T00:00:00"}, "expires_at"),
    ],
)
def test_a_wrong_field_is_named(ada_api, body, path):
    answer = ada_api.post("/keys", body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


@pytest.mark.parametrize(
    "body",
    [
        {"name": None},
        {"priority": None},
        {"priority": 1},
        {"pools": None},
        {"pools": ["gone"]},
        {"name": "taken"},
        {"name": " x" * 41},
    ],
)
def test_an_invalid_change_changes_nothing(ada_api, body):
    ada_api.post("/keys", {"name": "taken"})
    row = ada_api.post("/keys", {"name": "search"}).json()
    assert ada_api.patch(f"/keys/{row['id']}", body).status_code == 422
    assert ApiKey.objects.get(pk=row["id"]).name == "search"


def test_a_revoked_key_cannot_be_changed(ada_api):
    row = ada_api.post("/keys", {"name": "search"}).json()
    ada_api.post(f"/keys/{row['id']}/revoke")
    answer = ada_api.patch(f"/keys/{row['id']}", {"requests_per_min": 5})
    assert answer.status_code == 422
    assert "revoked" in answer.json()["errors"][0]["message"]


def test_an_expired_key_can_still_be_changed(ada_api):
    row = ada_api.post("/keys", {"name": "search"}).json()
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(hours=1))
    assert ada_api.patch(f"/keys/{row['id']}", {"requests_per_min": 5}).json()["status"] == "expired"
    assert ada_api.patch(f"/keys/{row['id']}", {"expires_at": None}).json()["status"] == "usable"


def test_the_pools_that_require_keys_are_read_and_written(ada_api):
    assert ada_api.get("/keys/required").json()["pools"] == []
    assert ada_api.call("PUT", "/keys/required", {"pools": ["chat"]}).json()["pools"] == ["chat"]
    assert ada_api.call("PUT", "/keys/required", {"pools": ["*"]}).json()["pools"] == ["*"]
    assert ada_api.call("PUT", "/keys/required", {"pools": ["gone"]}).status_code == 422
    assert ada_api.get("/keys/required").json()["pools"] == ["*"]


@pytest.mark.parametrize(("method", "path"), [("patch", "/keys/999"), ("post", "/keys/999/revoke")])
def test_an_unknown_key_is_404(ada_api, method, path):
    assert getattr(ada_api, method)(path, {}).status_code == 404
