from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client

from controlplane.people.accounts import throttle
from controlplane.people.audit.models import AuditEntry

PASSWORD = "correct horse battery"


@pytest.fixture
def nora(db: None) -> User:
    return User.objects.create_user("nora", password=PASSWORD)


def sign_in(client: Client, password: str = PASSWORD, **more: str) -> object:
    return client.post("/login", {"username": "nora", "password": password, **more})


def test_the_right_password_leads_to_the_live_page(live_redis, nora, client):
    answer = sign_in(client)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/live")
    assert client.session["_auth_user_id"] == str(nora.pk)


def test_a_sign_in_leads_to_the_page_that_was_requested(live_redis, nora, client):
    assert sign_in(client, next="/policies/default/").headers["Location"] == "/policies/default/"


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/x", "javascript:alert(1)"])
def test_a_sign_in_never_leads_to_another_site(live_redis, nora, client, target):
    assert sign_in(client, next=target).headers["Location"] == "/live"


def test_a_wrong_password_is_reported_and_the_name_is_kept(live_redis, nora, client):
    answer = sign_in(client, "wrong")
    assert answer.status_code == 422
    assert b"Name and password do not match" in answer.content
    assert b'value="nora"' in answer.content


def test_too_many_failures_are_answered_with_429_and_retry_after(live_redis, nora, client):
    for _ in range(throttle.ATTEMPTS):
        sign_in(client, "wrong")
    answer = sign_in(client)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["Retry-After"]) <= throttle.WINDOW_S
    assert b"Too many failed attempts" in answer.content
    assert "_auth_user_id" not in client.session


def test_failures_of_one_name_do_not_keep_another_out(live_redis, nora, client):
    for _ in range(throttle.ATTEMPTS):
        client.post("/login", {"username": "somebody", "password": "x"})
    assert sign_in(client).status_code == 302


def test_failures_from_one_address_do_not_keep_another_out(live_redis, nora, client):
    for _ in range(throttle.ATTEMPTS):
        sign_in(client, "wrong")
    assert sign_in(Client(REMOTE_ADDR="192.0.2.7")).status_code == 302


def test_success_resets_the_failures_of_the_name(live_redis, nora, client):
    for _ in range(throttle.ATTEMPTS - 1):
        sign_in(client, "wrong")
    assert sign_in(client).status_code == 302
    (place,) = live_redis.keys("weir:signin:*")  # the address's failures remain
    assert int(live_redis.get(place)) == throttle.ATTEMPTS - 1
    assert 0 < live_redis.ttl(place) <= throttle.WINDOW_S


def test_simultaneous_attempts_cannot_bypass_the_limit(live_redis):
    """Each attempt is counted before its password is checked."""
    with ThreadPoolExecutor(16) as threads:
        waits = list(threads.map(lambda _: throttle.attempt("nora", "192.0.2.1"), range(40)))
    assert waits.count(0) == throttle.ATTEMPTS


def test_attempts_with_many_names_from_one_address_are_slowed_down(live_redis):
    waits = [throttle.attempt(f"user{n}", "192.0.2.1") for n in range(throttle.ADDRESS_ATTEMPTS + 1)]
    assert waits[:-1] == [0] * throttle.ADDRESS_ATTEMPTS
    assert waits[-1] > 0
    assert throttle.attempt("user0", "192.0.2.2") == 0


def test_attempts_on_one_name_from_many_addresses_are_slowed_down(live_redis):
    waits = [throttle.attempt("nora", f"192.0.2.{n}") for n in range(throttle.NAME_ATTEMPTS + 1)]
    assert waits[-2:] == [0, pytest.approx(throttle.WINDOW_S, abs=2)]
    assert throttle.attempt("otto", "192.0.2.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("", "", True),
    ],
)
def test_addresses_of_one_ipv6_network_count_as_one(live_redis, one, other, same):
    for _ in range(throttle.ATTEMPTS):
        throttle.attempt("nora", one)
    assert (throttle.attempt("nora", other) > 0) is same


def test_a_success_after_the_window_leaves_no_counter_without_an_expiry(live_redis):
    throttle.succeeded("nora", "192.0.2.1")
    (place,) = live_redis.keys("weir:signin:*")
    assert live_redis.ttl(place) > 0


def test_a_failed_sign_in_is_audited_without_the_password(live_redis, nora, client):
    sign_in(client, "a wrong password")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.subject, entry.after) == (
        "user.sign_in_failed", "user nora", {"address": "127.0.0.1"},
    )  # fmt: skip
    assert "a wrong password" not in str(AuditEntry.objects.values())


def test_a_sign_in_is_audited_with_its_method_and_address(live_redis, nora, client):
    sign_in(client)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_name, entry.subject) == ("user.sign_in", "nora", "user nora")
    assert (entry.reason, entry.after) == ("by a password", {"address": "127.0.0.1"})
    assert PASSWORD not in str(AuditEntry.objects.values())


@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
def test_a_nul_in_a_name_is_removed(live_redis, nora, client, password):
    answer = client.post("/login", {"username": "no\x00ra", "password": password})
    assert answer.status_code == (302 if password == PASSWORD else 422)
    assert AuditEntry.objects.get().subject == "user nora"


def test_an_unknown_name_is_not_stored_in_the_audit_log(live_redis, db, client):
    client.post("/login", {"username": "my-password-by-mistake" * 20, "password": "x"})
    assert AuditEntry.objects.get().subject == "an unknown name"
    assert "my-password" not in str(AuditEntry.objects.values())


def test_a_throttled_attempt_writes_no_audit_entry(live_redis, nora, client):
    for _ in range(throttle.ATTEMPTS + 5):
        sign_in(client, "wrong")
    assert AuditEntry.objects.count() == throttle.ATTEMPTS


def test_a_sign_in_succeeds_although_the_audit_log_cannot_be_written(live_redis, nora, client, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("database or disk is full")

    monkeypatch.setattr("controlplane.people.audit.services.record", refuse)
    assert [sign_in(client, password).status_code for password in ("wrong", PASSWORD)] == [422, 302]


def test_typed_names_are_not_stored_in_redis(live_redis, nora, client):
    client.post("/login", {"username": "my-password-by-mistake", "password": "x"})
    assert b"my-password-by-mistake" not in b"".join(live_redis.keys("*"))


def test_people_can_sign_in_when_redis_is_unreachable(redis_away, nora, client):
    assert sign_in(client, "wrong").status_code == 422
    assert sign_in(client).status_code == 302


def test_signing_out_requires_a_post_and_ends_the_session(otto_client):
    assert otto_client.get("/logout").status_code == 405
    assert otto_client.post("/logout").headers["Location"] == "/login"
    assert otto_client.get("/policies/").status_code == 302


def test_a_signed_in_person_is_redirected_from_the_sign_in_page(otto_client):
    assert otto_client.get("/login").headers["Location"] == "/live"


def test_a_post_without_a_csrf_token_gets_a_page_that_says_what_to_do(nora):
    answer = Client(enforce_csrf_checks=True).post("/login", {"username": "nora", "password": PASSWORD})
    assert answer.status_code == 403
    assert b"Go back, reload the page" in answer.content
