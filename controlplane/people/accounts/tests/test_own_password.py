import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.test import Client

from controlplane.people.accounts import throttle
from controlplane.people.accounts.services import create_user
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import SYSTEM

PASSWORD, NEW = "correct horse battery", " a new one, with spaces "

pytestmark = pytest.mark.usefixtures("live_redis")


@pytest.fixture
def nora(db: None) -> User:
    return create_user("nora", PASSWORD, "viewer", SYSTEM)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def change(client: Client, **more: str) -> object:
    return client.post("/password", {"current": PASSWORD, "new": NEW, "again": NEW, **more})


def test_a_person_changes_their_password_and_stays_signed_in(nora):
    client = signed_in(nora)
    assert change(client).headers["Location"] == "/live"
    assert authenticate(username="nora", password=NEW) == nora
    assert client.get("/live").status_code == 200


def test_their_other_sessions_end(nora):
    elsewhere = signed_in(nora)
    change(signed_in(nora))
    assert elsewhere.get("/live").headers["Location"] == "/login?next=/live"


def test_a_wrong_guess_at_the_current_password_is_audited(nora):
    change(signed_in(nora), current="a guess")
    entry = AuditEntry.objects.get(action="user.sign_in_failed")
    assert (entry.subject, entry.after) == ("user nora", {"address": "127.0.0.1"})
    assert "a guess" not in str(AuditEntry.objects.values())


def test_the_audit_log_records_the_change_without_the_password(nora):
    change(signed_in(nora))
    assert AuditEntry.objects.first().action == "user.change_password"
    assert NEW.strip() not in str(AuditEntry.objects.values())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("current", "wrong", "The current password is wrong."),
        ("new", "short", "at least 10"),
        ("new", "password123", "too common"),
        ("new", "31415926535", "entirely numeric"),
        ("again", "something else", "The two passwords differ."),
    ],
)
def test_a_wrong_field_is_reported_at_the_field_and_nothing_changes(nora, field, value, said):
    answer = change(signed_in(nora), **{field: value})
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert authenticate(username="nora", password=PASSWORD) == nora


def test_guesses_at_the_current_password_are_slowed_down(nora):
    client = signed_in(nora)
    for _ in range(throttle.ATTEMPTS):
        change(client, current="wrong")
    answer = change(client)
    assert answer.status_code == 429
    assert "Too many attempts" in answer.content.decode()


def test_a_refused_new_password_does_not_count_as_a_guess(nora):
    client = signed_in(nora)
    for _ in range(throttle.ATTEMPTS + 1):
        assert change(client, new="short").status_code == 422


def test_the_menu_links_to_the_page(nora):
    assert '<a href="/password"' in signed_in(nora).get("/live").content.decode()
