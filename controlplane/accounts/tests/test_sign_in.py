import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.accounts import throttle

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


def test_it_leads_to_the_page_that_was_asked_for(live_redis, nora, client):
    assert sign_in(client, next="/policies/default/").headers["Location"] == "/policies/default/"


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/x", "javascript:alert(1)"])
def test_it_never_leads_to_another_site(live_redis, nora, client, target):
    assert sign_in(client, next=target).headers["Location"] == "/live"


def test_a_wrong_password_is_told_and_the_name_is_kept(live_redis, nora, client):
    answer = sign_in(client, "wrong")
    assert answer.status_code == 422
    assert b"Name and password do not match" in answer.content
    assert b'value="nora"' in answer.content


def test_too_many_failures_are_answered_with_429_and_when_to_come_back(live_redis, nora, client):
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


def test_success_forgets_earlier_failures(live_redis, nora, client):
    sign_in(client, "wrong")
    sign_in(client)
    assert live_redis.keys("weir:signin:*") == []


def test_what_was_typed_as_a_name_is_not_kept_in_redis(live_redis, nora, client):
    client.post("/login", {"username": "my-password-by-mistake", "password": "x"})
    assert b"my-password-by-mistake" not in b"".join(live_redis.keys("*"))


def test_people_can_sign_in_when_redis_is_away(redis_away, nora, client):
    assert sign_in(client, "wrong").status_code == 422
    assert sign_in(client).status_code == 302


def test_signing_out_takes_a_post_and_ends_the_session(otto_client):
    assert otto_client.get("/logout").status_code == 405
    assert otto_client.post("/logout").headers["Location"] == "/login"
    assert otto_client.get("/policies/").status_code == 302


def test_a_signed_in_person_is_sent_on_from_the_sign_in_page(otto_client):
    assert otto_client.get("/login").headers["Location"] == "/live"


def test_a_post_without_a_csrf_token_gets_a_page_that_says_what_to_do(nora):
    answer = Client(enforce_csrf_checks=True).post("/login", {"username": "nora", "password": PASSWORD})
    assert answer.status_code == 403
    assert b"Go back, reload the page" in answer.content
