import re

from controlplane.people.accounts.models import ApiToken, digest
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import ApiCaller, api_caller


def make(client, **more):
    return client.post("/tokens/", {"name": "nightly", "scopes": ["policy:read"], "expires": "30", **more})


def test_a_new_token_is_shown_once_and_works(otto, otto_client):
    answer = make(otto_client)
    token = re.search(rb"weir_[0-9a-f]{8}_[\w-]{43}", answer.content)[0].decode()
    assert answer.headers["Cache-Control"] == "no-store"
    assert token.encode() not in otto_client.get("/tokens/").content
    assert ApiCaller(token).get("/policies").status_code == 200


def test_only_the_hash_of_a_token_is_stored(otto, otto_client):
    token = re.search(rb"weir_[0-9a-f]{8}_[\w-]{43}", make(otto_client).content)[0].decode()
    row = ApiToken.objects.get()
    assert row.sha256 == digest(token)
    assert token[-43:] not in str(vars(row))


def test_creating_and_revoking_are_in_the_audit_log(otto, otto_client):
    make(otto_client)
    otto_client.post(f"/tokens/{ApiToken.objects.get().pk}/revoke")
    assert list(AuditEntry.objects.values_list("action", "actor_name", "subject")) == [
        ("token.revoke", "otto", "token nightly (otto)"),
        ("token.create", "otto", "token nightly (otto)"),
    ]


def test_a_revoked_token_stops_working_at_once(otto, otto_client):
    caller = api_caller(otto)
    assert caller.get("/policies").status_code == 200
    otto_client.post(f"/tokens/{ApiToken.objects.get().pk}/revoke")
    assert caller.get("/policies").status_code == 401


def test_a_person_cannot_give_a_token_more_than_their_role_allows(otto_client):
    answer = make(otto_client, scopes=["admin"])
    assert answer.status_code == 422
    assert not ApiToken.objects.exists()


def test_a_viewer_can_create_read_only_tokens(vera_client):
    assert make(vera_client).status_code == 200
    assert make(vera_client, scopes=["policy:publish"]).status_code == 422


def test_people_see_and_revoke_only_their_own_tokens(otto, vera_client):
    row, _ = ApiToken.issue(user=otto, name="ottos secret helper", scopes=["policy:read"])
    assert b"ottos secret helper" not in vera_client.get("/tokens/").content
    assert vera_client.post(f"/tokens/{row.pk}/revoke").status_code == 404
    assert ApiToken.objects.get().revoked_at is None


def test_an_administrator_sees_and_revokes_all_of_them(otto, ada_client):
    row, _ = ApiToken.issue(user=otto, name="ottos helper", scopes=["policy:read"])
    assert b"ottos helper" in ada_client.get("/tokens/").content
    ada_client.post(f"/tokens/{row.pk}/revoke")
    assert ApiToken.objects.get().status == "revoked"
