import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from controlplane.people.accounts import services
from controlplane.people.accounts.sessions import SessionStore, hashed
from controlplane.people.audit.services import SYSTEM

pytestmark = pytest.mark.django_db


def key_of(client: Client) -> str:
    return client.cookies["sessionid"].value


def test_the_database_does_not_hold_the_key_of_a_session(vera_client):
    key = key_of(vera_client)
    assert [row.session_key for row in Session.objects.all()] == [hashed(key)]
    assert key not in str(list(Session.objects.values()))


def test_the_content_of_the_database_does_not_open_a_session(vera_client):
    thief = Client()
    thief.cookies["sessionid"] = Session.objects.get().session_key
    assert thief.get("/policies/").status_code == 302
    assert vera_client.get("/policies/").status_code == 200


def test_a_changed_session_keeps_its_key():
    store = SessionStore()
    store["colour"] = "green"
    store.save()
    again = SessionStore(store.session_key)
    again["colour"] = "blue"
    again.save()
    assert SessionStore(store.session_key)["colour"] == "blue"
    assert SessionStore().exists(store.session_key)
    assert Session.objects.count() == 1


def test_an_expired_session_is_not_opened_and_is_cleared():
    store = SessionStore()
    store["a"] = 1
    store.save()
    Session.objects.update(expire_date=timezone.now())
    assert SessionStore(store.session_key).load() == {}
    call_command("clearsessions")
    assert Session.objects.count() == 0


def test_signing_out_ends_the_session_for_every_holder_of_its_key(vera_client):
    copy = Client()
    copy.cookies["sessionid"] = key_of(vera_client)
    assert copy.get("/policies/").status_code == 200
    vera_client.post("/logout")
    assert copy.get("/policies/").status_code == 302
    assert Session.objects.count() == 0


def test_a_new_password_ends_the_session(vera, vera_client):
    services.reset_password(vera, SYSTEM)
    assert vera_client.get("/policies/").status_code == 302


def test_deleting_a_missing_session_is_not_an_error():
    SessionStore().delete()
    SessionStore("no-such-session").delete()
