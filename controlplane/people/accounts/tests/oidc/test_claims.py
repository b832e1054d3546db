"""The usable claims of an identity provider."""

import math
from typing import Any

import pytest

from controlplane.base.process.oidc_settings import OidcConfig
from controlplane.people.accounts.oidc.claims import granted, text_of, time_of, with_userinfo


def config(*path: str) -> OidcConfig:
    return OidcConfig("https://id.example.com", "weir", "", "openid", path, (("admin", "boss*"),), 12, 30)


@pytest.mark.parametrize(
    ("path", "claims", "role"),
    [
        (("email",), {"email": "boss@example.com"}, ""),
        (("email",), {"email": "boss@example.com", "email_verified": True}, "admin"),
        (("email",), {"email": "boss@example.com", "email_verified": 1}, ""),
        (("email",), {"email_verified": True}, None),
        (("phone_number",), {"phone_number": "boss", "phone_number_verified": False}, ""),
        (("phone_number",), {"phone_number": "boss", "phone_number_verified": True}, "admin"),
        (("profile", "email"), {"profile": {"email": "boss@example.com"}, "email_verified": True}, ""),
        (("profile", "email"), {"profile": {"email": "boss@example.com", "email_verified": True}}, "admin"),
        (("groups",), {"groups": ["boss"], "email_verified": False}, "admin"),
    ],
)
def test_an_address_grants_a_role_once_it_is_verified(
    path: tuple[str, ...], claims: dict[str, Any], role: str | None
) -> None:
    assert granted(claims, config(*path)) == role


@pytest.mark.parametrize("value", [None, 1, True, "", "\x00", "a\n", "\ud800", "\u202e", "x" * 256, ["a"], {"a": 1}])
def test_a_text_that_cannot_be_stored_is_treated_as_missing(value: Any) -> None:
    assert text_of({"sub": value}, "sub") == ""
    assert text_of({}, "sub") == ""


@pytest.mark.parametrize("value", ["u-1", "Grace Hopper", "Ünal", "x" * 255])
def test_a_printable_text_is_kept_as_it_is(value: str) -> None:
    assert text_of({"sub": value}, "sub") == value


@pytest.mark.parametrize("value", [None, True, "1", math.nan, math.inf, -math.inf, 10**400, 1e300, [1]])
def test_a_time_must_be_a_finite_number(value: Any) -> None:
    assert time_of({"exp": value}, "exp") is None


def test_a_time_may_have_a_fraction() -> None:
    assert time_of({"exp": 1.5}, "exp") == 1.5


def test_claims_of_the_id_token_take_precedence_over_userinfo() -> None:
    told = {"sub": "u-1", "email": "new@example.com", "email_verified": True, "groups": ["boss"]}
    known = {"email": "old@example.com"}
    assert with_userinfo(known, told) == {"sub": "u-1", "email": "old@example.com", "groups": ["boss"]}
    assert with_userinfo({}, told) == told
