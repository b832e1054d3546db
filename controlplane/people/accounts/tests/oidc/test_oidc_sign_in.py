"""Sign-in with an identity provider: who gets in, with which role, and what is refused."""

import math
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from controlplane.live.dashboard import consumers
from controlplane.live.dashboard.consumers import LiveConsumer
from controlplane.people.accounts import services
from controlplane.people.accounts.models import ApiToken, OidcIdentity, OidcSession
from controlplane.people.accounts.oidc import provider as provider_module
from controlplane.people.accounts.oidc import views
from controlplane.people.accounts.tests.oidc.provider import rsa_key
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import SYSTEM
from controlplane.people.permissions import role_of
from controlplane.testing import api_caller

pytestmark = pytest.mark.django_db


def audited(action):
    return AuditEntry.objects.filter(action=action)


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["weir-admins", "ml-research"], "admin"),
        (["ml-research"], "operator"),
        (["everybody", "x"], "viewer"),
        ("everybody", "viewer"),
    ],
)
def test_the_highest_role_that_the_claim_grants_is_given(provider, browser, groups, role):
    provider.claims["groups"] = groups
    answer = browser.sign_in(provider, "/policies/")
    assert (answer.status_code, answer.url) == (302, "/policies/")
    assert role_of(User.objects.get(username="grace")) == role
    assert browser.get("/policies/").status_code == 200
    assert audited("user.sign_in").count() == 1


def test_the_role_follows_the_claim_at_the_next_sign_in(provider, browser):
    browser.sign_in(provider)
    provider.claims["groups"] = ["everybody"]
    browser.post("/logout")
    browser.sign_in(provider)
    assert role_of(User.objects.get()) == "viewer"
    change = audited("user.set_role").first()
    assert (change.actor_name, change.before, change.after) == (
        "identity provider",
        {"role": "operator"},
        {"role": "viewer"},
    )


def test_a_claim_without_a_match_ends_all_access(provider, browser):
    browser.sign_in(provider)
    grace = User.objects.get()
    _, token = ApiToken.issue(user=grace, name="ci", scopes=["policy:read"])
    provider.claims["groups"] = ["accounting"]
    elsewhere = type(browser)()
    answer = elsewhere.sign_in(provider)
    assert answer.status_code == 403
    assert b"no_role" in answer.content
    assert browser.get("/policies/").status_code == 302
    assert Session.objects.count() == 0
    headers = {"Authorization": f"Bearer {token}"}
    assert Client(headers=headers).get("/api/v1/policies").status_code == 403


def test_a_missing_claim_keeps_the_role_of_a_known_identity_and_is_shown(provider, browser, ada_client):
    browser.sign_in(provider)
    del provider.claims["groups"]
    browser.post("/logout")
    assert browser.sign_in(provider).status_code == 302
    assert role_of(User.objects.get(username="grace")) == "operator"
    assert audited("user.role_unknown").count() == 1
    assert b"unconfirmed since" in ada_client.get("/users/").content


def test_a_missing_claim_refuses_a_new_identity(provider, browser):
    del provider.claims["groups"]
    answer = browser.sign_in(provider)
    assert answer.status_code == 403
    assert b"role_unknown" in answer.content
    assert not User.objects.exists()


def test_a_claim_that_is_only_in_userinfo_counts(provider, browser):
    provider.userinfo = {"sub": "u-1", "groups": provider.claims.pop("groups")}
    assert browser.sign_in(provider).status_code == 302
    assert role_of(User.objects.get()) == "operator"


@pytest.fixture
def by_address(provider, settings):
    """Roles are granted by e-mail address, as for a whole domain."""
    settings.OIDC = replace(settings.OIDC, role_claim=("email",), roles=(("admin", "*@example.com"),))
    provider.claims["email"] = "grace@example.com"
    return provider


@pytest.mark.parametrize("flag", [{}, {"email_verified": False}, {"email_verified": "true"}, {"email_verified": None}])
def test_an_address_that_is_not_verified_grants_nothing(by_address, browser, flag):
    by_address.claims |= flag
    answer = browser.sign_in(by_address)
    assert answer.status_code == 403
    assert b">address_unverified<" in answer.content
    assert audited("user.sign_in_failed").get().after["reason"] == "address_unverified"
    assert not User.objects.exists()


def test_an_address_that_is_verified_grants_its_role(by_address, browser):
    by_address.claims["email_verified"] = True
    assert browser.sign_in(by_address).status_code == 302
    assert role_of(User.objects.get()) == "admin"


def test_an_address_that_is_no_longer_verified_ends_access(by_address, browser):
    by_address.claims["email_verified"] = True
    browser.sign_in(by_address)
    by_address.claims |= {"email": "boss@example.com", "email_verified": False}
    answer = type(browser)().sign_in(by_address)
    assert b">address_unverified<" in answer.content
    assert role_of(User.objects.get()) == ""
    assert browser.get("/policies/").status_code == 302


def test_an_identity_is_not_linked_by_an_unverified_address(by_address, browser, otto):
    browser.force_login(otto)
    page = browser.post("/oidc/link")
    answer = browser.get("/oidc/callback", by_address.consent(page.context["url"]))
    assert b">address_unverified<" in answer.content
    assert not OidcIdentity.objects.exists()


@pytest.mark.parametrize(("told", "status"), [("grace@example.com", 302), ("other@example.com", 403)])
def test_userinfo_verifies_its_own_address_only(by_address, browser, told, status):
    by_address.userinfo = {"sub": "u-1", "email": told, "email_verified": True}
    assert browser.sign_in(by_address).status_code == status


def test_userinfo_of_another_person_is_refused(provider, browser):
    provider.userinfo = {"sub": "u-2", "groups": ["weir-admins"]}
    del provider.claims["groups"]
    assert b'Reason: <span class="mono">subject' in browser.sign_in(provider).content


def test_an_identity_is_never_linked_by_its_name_or_address(provider, browser, otto):
    provider.claims |= {"preferred_username": otto.username, "email": "otto@example.com"}
    browser.sign_in(provider)
    identity = OidcIdentity.objects.get()
    assert identity.user != otto
    assert identity.user.username.startswith("otto~")


def test_nobody_at_the_provider_becomes_the_user_admin(provider, browser):
    provider.claims["preferred_username"] = "Admin"
    browser.sign_in(provider)
    assert OidcIdentity.objects.get().user.username.startswith("Admin~")


def test_the_same_person_stays_the_same_user_under_a_new_name(provider, browser):
    browser.sign_in(provider)
    provider.claims["preferred_username"] = "grace.hopper"
    browser.post("/logout")
    browser.sign_in(provider)
    assert [user.username for user in User.objects.all()] == ["grace"]


LATER = int(time.time()) + 3600


@pytest.mark.parametrize(
    ("lie", "header", "code"),
    [
        ({"iss": "https://evil.example"}, {}, "issuer"),
        ({"aud": "other"}, {}, "audience"),
        ({"aud": ["weir", "other"]}, {}, "authorized_party"),
        ({"azp": "other"}, {}, "authorized_party"),
        ({"exp": 1000}, {}, "expired"),
        ({"iat": LATER, "exp": LATER + 60}, {}, "issued_later"),
        ({"exp": None}, {}, "token_malformed"),
        *(({"exp": at}, {}, "token_malformed") for at in (math.nan, math.inf, 10**400, True, "2026")),
        ({"iat": math.nan}, {}, "token_malformed"),
        ({"iat": -math.inf}, {}, "token_malformed"),
        ({"nbf": math.nan}, {}, "token_malformed"),
        ({"nbf": LATER}, {}, "issued_later"),
        ({"sub": "u\x00-1"}, {}, "subject"),
        ({"sub": "u\n-1"}, {}, "subject"),
        ({"sub": ""}, {}, "subject"),
        ({"sub": 1}, {}, "subject"),
        ({"nonce": "another"}, {}, "nonce"),
        ({"sub": None}, {}, "subject"),
        ({"sub": "x" * 256}, {}, "subject"),
        ({}, {"alg": "none"}, "algorithm"),
        ({}, {"alg": "HS256"}, "algorithm"),
        ({}, {"kid": "unknown"}, "unknown_key"),
        ({}, {"kid": "unknown\x00"}, "unknown_key"),
    ],
)
def test_a_token_that_is_not_for_this_sign_in_is_refused_with_its_reason(provider, browser, lie, header, code):
    provider.lie = lie
    provider.header |= header
    answer = browser.sign_in(provider)
    assert answer.status_code == 403
    assert f">{code}<".encode() in answer.content
    failed = audited("user.sign_in_failed").get().after
    assert failed["reason"] == code
    assert failed["detail"].isprintable()
    assert not User.objects.exists()


def test_claims_that_cannot_be_stored_are_ignored(provider, browser):
    provider.claims |= {"preferred_username": "gr\x00ace", "email": "grace\x7f", "name": "Grace\nHopper"}
    provider.lie = {"sid": "s\x00"}
    assert browser.sign_in(provider).status_code == 302
    assert User.objects.get().username == "u-1"
    assert OidcSession.objects.get().sid == ""


def test_a_token_signed_with_another_key_of_the_same_name_is_refused(provider, browser):
    provider.key = rsa_key("one", 2)
    assert b">signature<" in browser.sign_in(provider).content


def test_a_new_key_of_the_provider_is_fetched_at_most_once_a_minute(provider, browser, monkeypatch):
    browser.sign_in(provider)
    browser.post("/logout")
    provider.key = rsa_key("two")
    provider.published.append(provider.key)
    provider.header["kid"] = "two"
    assert b">unknown_key<" in browser.sign_in(provider).content  # fetched a moment ago
    monkeypatch.setattr(provider_module, "KEYS_AGAIN_S", -1.0)
    assert browser.sign_in(provider).status_code == 302
    assert provider.asked.count("/jwks") == 2


def test_a_replayed_code_is_refused_and_does_not_fill_the_audit_log(provider, browser):
    there = browser.get("/oidc/login")
    back = provider.consent(there.url)
    provider.codes.clear()
    answer = browser.get("/oidc/callback", back)
    assert b">code_refused<" in answer.content
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("change", [{"state": "forged"}, {"state": ""}])
def test_a_redirect_back_that_did_not_begin_in_this_browser_is_refused(provider, browser, change):
    assert b">not_started_here<" in browser.sign_in(provider, **change).content
    assert b">not_started_here<" in Client().get("/oidc/callback", {"code": "x", "state": "y"}).content


def test_an_answer_of_another_provider_is_refused(provider, browser):
    assert b">issuer<" in browser.sign_in(provider, iss="https://evil.example").content


def test_a_refusal_by_the_provider_is_reported(provider, browser):
    answer = browser.sign_in(provider, error="access_denied", error_description="no")
    assert b">provider_refused<" in answer.content


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example/", "javascript:alert(1)"])
def test_after_a_sign_in_no_other_host_is_opened(provider, browser, wanted):
    assert browser.sign_in(provider, wanted).url == "/live"


def test_the_sign_in_page_reports_an_unreachable_provider_and_takes_passwords(provider, browser):
    provider.away = True
    answer = browser.get("/oidc/login")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "10"
    assert b"The identity provider does not answer" in answer.content
    assert b'name="password"' in answer.content


def test_a_provider_that_states_another_issuer_is_not_used(provider, browser, monkeypatch):
    monkeypatch.setattr(provider, "metadata", lambda: {"issuer": "https://evil.example"})
    assert browser.get("/oidc/login").status_code == 503


def test_a_deactivated_user_is_refused(provider, browser):
    browser.sign_in(provider)
    browser.post("/logout")
    services.set_active(User.objects.get(), False, SYSTEM)
    assert b">deactivated<" in browser.sign_in(provider).content


def test_the_role_of_an_identity_cannot_be_set_by_hand(provider, browser, ada_client):
    browser.sign_in(provider)
    grace = User.objects.get(username="grace")
    ada_client.post(f"/users/{grace.pk}", {"role": "admin"})
    assert role_of(User.objects.get(username="grace")) == "operator"
    answer = ada_client.post(f"/users/{grace.pk}", {"password": "reset"}, follow=True)
    assert b"has no password here" in answer.content


def test_the_provider_may_demote_the_last_administrator(provider, browser):
    provider.claims["groups"] = ["weir-admins"]
    browser.sign_in(provider)
    provider.claims["groups"] = ["everybody"]
    browser.post("/logout")
    browser.sign_in(provider)
    assert role_of(User.objects.get()) == "viewer"


# Linking


def test_a_signed_in_user_links_an_identity_and_is_that_user_from_then_on(provider, browser, otto):
    browser.force_login(otto)
    page = browser.post("/oidc/link")
    assert page.status_code == 200
    back = browser.get("/oidc/callback", provider.consent(page.context["url"]))
    assert back.url == "/password"
    assert OidcIdentity.objects.get().user == otto
    assert audited("user.link").get().actor_name == "otto"
    browser.logout()
    assert browser.sign_in(provider).status_code == 302
    assert User.objects.count() == 1


def test_an_identity_of_another_user_is_not_linked(provider, browser, otto):
    browser.sign_in(provider)
    other = Client()
    other.force_login(otto)
    page = other.post("/oidc/link")
    assert b">already_linked<" in other.get("/oidc/callback", provider.consent(page.context["url"])).content


def test_a_link_begun_in_another_session_is_refused(provider, browser, otto, vera):
    browser.force_login(otto)
    page = browser.post("/oidc/link")
    browser.force_login(vera)
    assert b">not_started_here<" in browser.get("/oidc/callback", provider.consent(page.context["url"])).content


def test_the_user_admin_is_not_linked(provider, browser, ada):
    User.objects.filter(pk=ada.pk).update(username="admin")
    browser.force_login(User.objects.get())
    page = browser.post("/oidc/link")
    assert b">stays_local<" in browser.get("/oidc/callback", provider.consent(page.context["url"])).content


# Sessions and tokens


def test_signing_out_ends_the_session_here_and_redirects_to_the_provider(provider, browser):
    browser.sign_in(provider)
    answer = browser.post("/logout")
    assert Session.objects.count() == 0
    assert f"{provider.issuer}/end?id_token_hint=" in answer.content.decode()


def test_signing_out_works_while_the_provider_is_unreachable(provider, browser):
    browser.sign_in(provider)
    views.provider_of.cache_clear()
    provider.away = True
    assert browser.post("/logout").url == "/login"
    assert Session.objects.count() == 0


@pytest.mark.parametrize("named", [{"sub": "u-1"}, {"sid": "s-1"}, {"sub": "u-1", "sid": "s-1"}])
def test_the_provider_ends_a_session(provider, browser, named):
    browser.sign_in(provider)
    answer = Client(enforce_csrf_checks=True).post(
        "/oidc/backchannel-logout", {"logout_token": provider.logout_token(**named)}
    )
    assert answer.status_code == 200
    assert browser.get("/policies/").status_code == 302
    assert Session.objects.count() == 0


@pytest.mark.django_db(transaction=True)  # each request of the page closes its connection
def test_the_provider_closes_an_open_live_page_within_5_s(provider, browser, monkeypatch):
    Group.objects.get_or_create(name="operator")  # an earlier test like this has emptied the database
    looked, closed = [], []

    async def looking(seconds):
        looked.append(seconds)
        if len(looked) == 3:
            await sync_to_async(browser.post)("/oidc/backchannel-logout", {"logout_token": token})

    async def close(code):
        closed.append(code)

    browser.sign_in(provider)
    token, page = provider.logout_token(sid="s-1"), LiveConsumer()
    page.scope, page.close = {"session": browser.session}, close
    monkeypatch.setattr(consumers.asyncio, "sleep", looking)
    async_to_sync(page._watch_session)()
    assert (looked, closed) == ([consumers.SIGNED_IN_CHECK_S] * 3, [4401])
    assert consumers.SIGNED_IN_CHECK_S < 5


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (lambda p: p.logout_token(sub="u-1", nonce="n"), "not_a_logout"),
        (lambda p: p.token(sub="u-1"), "not_a_logout"),
        (lambda p: p.logout_token(), "subject"),
        (lambda p: p.logout_token(sid=""), "subject"),
        (lambda p: p.logout_token(sid="s\x00"), "subject"),
        (lambda p: p.logout_token(sid=["s-1"]), "subject"),
        (lambda p: p.logout_token(sub=""), "subject"),
        (lambda p: p.logout_token(sub="", sid=""), "subject"),
        (lambda p: p.logout_token(sub="u-1", exp=math.nan), "token_malformed"),
        (lambda p: "rubbish", "token_malformed"),
    ],
)
def test_anything_but_a_valid_logout_token_ends_nothing(provider, browser, token, said):
    browser.sign_in(provider)
    answer = browser.post("/oidc/backchannel-logout", {"logout_token": token(provider)})
    assert answer.status_code == 400
    assert said in answer.json()["error_description"]
    assert browser.get("/policies/").status_code == 200


def test_the_session_ends_after_the_configured_hours(provider, browser):
    browser.sign_in(provider)
    left = Session.objects.get().expire_date - timezone.now()
    assert timedelta(hours=11.9) < left <= timedelta(hours=12)


def test_api_tokens_are_suspended_if_their_owner_has_not_signed_in_for_long(provider, browser):
    browser.sign_in(provider)
    ci = api_caller(User.objects.get())
    assert ci.get("/policies").status_code == 200
    OidcIdentity.objects.update(signed_in_at=timezone.now() - timedelta(days=31))
    assert ci.get("/policies").status_code == 401
    browser.post("/logout")
    browser.sign_in(provider)
    assert ci.get("/policies").status_code == 200


def test_without_a_provider_its_pages_do_not_exist(client):
    assert client.get("/oidc/login").status_code == 404
    assert client.post("/oidc/backchannel-logout").status_code == 404
    assert b"/oidc/login" not in client.get("/login").content


def test_passwords_can_be_disabled_everywhere(provider, settings, client, otto):
    settings.LOCAL_SIGN_IN = False
    otto.set_password("correct horse battery")
    otto.save()
    page = client.get("/login")
    assert b'name="password"' not in page.content
    answer = client.post("/login", {"username": "otto", "password": "correct horse battery"})
    assert answer.status_code == 403
    assert client.get("/policies/").status_code == 302
