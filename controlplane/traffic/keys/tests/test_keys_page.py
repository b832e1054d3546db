import re

import pytest

from controlplane.people.accounts.models import digest
from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.keys.models import ApiKey, KeyedPool

SECRET = rb"sk-weir-[0-9a-f]{8}-[\w-]{43}"

pytestmark = pytest.mark.usefixtures("pools", "redis_away")


def make(client, **more):
    return client.post(
        "/keys/", {"name": "search", "pools": ["chat"], "requests_per_min": "60", "expires": "30", **more}
    )


def test_a_new_key_is_shown_once_and_only_its_hash_is_stored(ada_client):
    answer = make(ada_client)
    secret = re.search(SECRET, answer.content)[0].decode()
    assert answer.headers["Cache-Control"] == "no-store"
    row = ApiKey.objects.get()
    assert row.sha256 == digest(secret)
    assert secret[-43:] not in str(vars(row))
    assert not re.search(SECRET, ada_client.get("/keys/").content)


def test_a_key_has_the_requested_settings(ada_client):
    make(ada_client, tokens_per_min="100000", priority="5")
    row = ApiKey.objects.get()
    assert (row.priority, row.priority_max) == (5, 5)
    assert 'data-label="Priority">5<' in ada_client.get("/keys/").content.decode()
    assert (row.pools, row.requests_per_min, row.tokens_per_min) == (["chat"], 60, 100_000)
    assert row.expires_at is not None
    assert row.created_by == "ada"


def test_a_missing_limit_is_described(ada_client):
    make(ada_client)
    page = ada_client.get("/keys/").content.decode()
    assert 'data-label="Requests/min">60<' in page
    assert 'data-label="Tokens/min">no limit<' in page


def test_creating_revoking_and_requiring_are_in_the_audit_log(ada_client):
    make(ada_client)
    ada_client.post(f"/keys/{ApiKey.objects.get().pk}/revoke")
    ada_client.post("/keys/required", {"required": ["code"]})
    assert list(AuditEntry.objects.values_list("action", "actor_name", "subject")) == [
        ("key.require", "ada", "API keys"),
        ("key.revoke", "ada", "API key search"),
        ("key.create", "ada", "API key search"),
    ]


def test_an_operator_sees_keys_but_cannot_change_them(ada_client, otto_client):
    make(ada_client)
    page = otto_client.get("/keys/")
    assert b"search" in page.content
    assert b"Revoke" not in page.content
    assert make(otto_client).status_code == 403
    assert otto_client.post(f"/keys/{ApiKey.objects.get().pk}/revoke").status_code == 403
    assert otto_client.post("/keys/required", {"required": ["chat"]}).status_code == 403
    assert ApiKey.objects.get().revoked_at is None
    assert not KeyedPool.objects.exists()


def test_a_viewer_sees_no_keys(vera_client):
    assert vera_client.get("/keys/").status_code == 403


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", " "),
        ("pools", ["gone"]),
        ("requests_per_min", "0"),
        ("tokens_per_min", "many"),
        ("priority", "101"),
        ("priority_max", "x"),
    ],
)
def test_a_refused_value_is_explained_beside_its_field(ada_client, field, value):
    answer = make(ada_client, **{field: value})
    assert answer.status_code == 422
    assert b'class="error"' in answer.content
    assert not ApiKey.objects.exists()


def test_two_valid_keys_with_the_same_name_are_refused_until_the_first_is_revoked(ada_client):
    make(ada_client)
    assert make(ada_client).status_code == 422
    ada_client.post(f"/keys/{ApiKey.objects.get().pk}/revoke")
    assert make(ada_client).status_code == 200
    assert ApiKey.objects.count() == 2


def test_the_pools_that_require_keys_are_shown_and_changed(ada_client, otto_client):
    assert b"Nowhere." in otto_client.get("/keys/").content
    ada_client.post("/keys/required", {"required": ["code"]})
    assert b"In code." in otto_client.get("/keys/").content
    ada_client.post("/keys/required", {"required": ["*"]})
    assert b"In every pool." in otto_client.get("/keys/").content
    ada_client.post("/keys/required", {"required": ["gone"]})
    assert list(KeyedPool.objects.values_list("pool", flat=True)) == ["*"]


def test_the_page_is_in_the_menu_of_those_who_can_open_it(ada_client, otto_client, vera_client):
    assert [
        b'href="/keys/"' in client.get("/tokens/").content for client in (ada_client, otto_client, vera_client)
    ] == [
        True,
        True,
        False,
    ]
