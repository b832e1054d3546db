"""Interprets claims: the role that they grant, and usable texts and times. Pure."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from controlplane.base.process.oidc_settings import OidcConfig
from controlplane.people.permissions import Role, highest

# Claims that may be unverified, each with the claim that says whether it is verified (OpenID Connect Core, 5.1)
VERIFIED = {"email": "email_verified", "phone_number": "phone_number_verified"}
TEXT_MAX = 255  # characters; also the longest subject (OpenID Connect Core, 2)
TIME_MAX = 2.0**53  # s


def granted(claims: Mapping[str, Any], config: OidcConfig) -> Role | Literal[""] | None:
    """Return the highest role whose pattern matches a value of the role claim. Empty: the claim exists but matches
    nothing, or is an unverified address, so the person has no access. None: the claim is absent, so the role is unknown
    (a provider omits it from long tokens, as Entra ID does with `_claim_names`).
    """
    values = _values(claims, config.role_claim)
    if values is None:
        return None
    if is_unverified(claims, config):
        return ""
    return highest({role for role, pattern in config.roles for value in values if fnmatchcase(value, pattern)})


def is_unverified(claims: Mapping[str, Any], config: OidcConfig) -> bool:
    """Return whether the role claim is an address that the provider does not mark as verified."""
    *place, last = config.role_claim
    beside = _at(claims, place)
    stated = isinstance(beside, Mapping) and last in beside and last in VERIFIED
    return stated and beside.get(VERIFIED[last]) is not True


def with_userinfo(claims: Mapping[str, Any], userinfo: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the ID token's claims with additional claims of userinfo, which verifies only its own address."""
    others = [flag for name, flag in VERIFIED.items() if name in claims and userinfo.get(name) != claims[name]]
    return {**{name: value for name, value in userinfo.items() if name not in others}, **claims}


def text_of(claims: Mapping[str, Any], name: str) -> str:
    """Return a text that can be stored and shown; empty if the claim is absent, empty or not a text."""
    value = claims.get(name)
    usable = isinstance(value, str) and len(value) <= TEXT_MAX and value.isprintable()
    return str(value) if usable else ""


def time_of(claims: Mapping[str, Any], name: str) -> float | None:
    """Return Unix s; None if the claim is absent or is not a time."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= TIME_MAX else None  # NaN fails every comparison


def _at(claims: Any, path: Sequence[str]) -> Any:
    """Return the value at a path; None if the path does not exist."""
    for part in path:
        if not isinstance(claims, Mapping) or part not in claims:
            return None
        claims = claims[part]
    return claims


def _values(claims: Mapping[str, Any], path: Sequence[str]) -> list[str] | None:
    found = _at(claims, path)
    if isinstance(found, str):
        return [found]
    return [value for value in found if isinstance(value, str)] if isinstance(found, list) else None
