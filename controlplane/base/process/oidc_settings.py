"""The settings of sign-in through the company's identity provider, read once at start-up (docs/settings.md)."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import NoReturn
from urllib.parse import urlsplit

from controlplane.base.process import env
from controlplane.base.process.env import BadSetting
from controlplane.base.process.roles import ROLES, Role

WITH = "needed with WEIR_OIDC_ISSUER"
PART = re.compile(r'"([^"]+)"|([^."]+)')


@dataclass(frozen=True, slots=True)
class OidcConfig:
    issuer: str  # URL as stated by the provider
    client_id: str
    client_secret: str  # empty for a public client
    scopes: str
    role_claim: tuple[str, ...]  # path into the claims
    roles: tuple[tuple[Role, str], ...]  # roles, each with a pattern that must match a whole value of the claim
    session_hours: int
    token_days: int  # days without a sign-in after which the owner's API tokens stop working

    @property
    def name(self) -> str:
        """Return the provider's name for pages, which is its host."""
        return urlsplit(self.issuer).netloc


def read() -> OidcConfig | None:
    """Read the settings; None if people sign in with passwords only. Raise BadSetting for a wrong or missing
    variable."""
    issuer = env.text("WEIR_OIDC_ISSUER")
    local = env.flag("WEIR_LOCAL_SIGN_IN", True)
    if not issuer:
        if not local:
            raise BadSetting("WEIR_LOCAL_SIGN_IN=0: nobody could sign in; set WEIR_OIDC_ISSUER first")
        return None
    _check_url(issuer)
    if find_spec("joserfc") is None:
        raise BadSetting(f"WEIR_OIDC_ISSUER={issuer}: needs a package: pip install -r requirements-oidc.txt")
    env.needed("WEIR_OIDC_ROLES", f"{WITH}; for example admin=weir-admins,operator=ml-*")
    return OidcConfig(
        issuer,
        env.needed("WEIR_OIDC_CLIENT_ID", WITH),
        env.text("WEIR_OIDC_CLIENT_SECRET"),
        _scopes(env.text("WEIR_OIDC_SCOPES", "openid profile email")),
        _path(env.needed("WEIR_OIDC_ROLE_CLAIM", WITH)),
        _roles(env.pairs("WEIR_OIDC_ROLES")),
        env.seconds("WEIR_OIDC_SESSION_HOURS", 12) or _wrong("WEIR_OIDC_SESSION_HOURS", "allowed are 1 or more hours"),
        env.seconds("WEIR_OIDC_TOKEN_DAYS", 30) or _wrong("WEIR_OIDC_TOKEN_DAYS", "allowed are 1 or more days"),
    )


def is_safe_url(url: str) -> bool:
    """Return whether the URL is https, or http on this machine."""
    parts = urlsplit(url)
    if not parts.hostname or parts.username or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_url(issuer: str) -> None:
    if not is_safe_url(issuer) or urlsplit(issuer).query:
        _wrong(
            "WEIR_OIDC_ISSUER",
            "allowed is an https URL without query and fragment (http on this machine)",
        )


def _wrong(name: str, why: str) -> NoReturn:
    raise BadSetting(f"{name}={env.text(name)}: {why}")


def _scopes(text: str) -> str:
    if "openid" not in text.split():
        raise BadSetting(f"WEIR_OIDC_SCOPES={text}: must name the scope openid")
    return text


def _path(text: str) -> tuple[str, ...]:
    """Split a path such as `realm_access.roles`; a name that contains dots is quoted."""
    parts = tuple(quoted or plain for quoted, plain in PART.findall(text))
    if ".".join(f'"{part}"' if f'"{part}"' in text else part for part in parts) != text:
        _wrong("WEIR_OIDC_ROLE_CLAIM", 'allowed are names with dots between them; a name with dots as "name.with.dots"')
    return parts


def _roles(pairs: list[tuple[str, str]]) -> tuple[tuple[Role, str], ...]:
    known: dict[str, Role] = {role: role for role in ROLES}
    unknown = sorted({role for role, _ in pairs} - set(known))
    if unknown:
        _wrong("WEIR_OIDC_ROLES", f"{', '.join(unknown)}: allowed roles are {', '.join(ROLES)}")
    return tuple((known[role], pattern) for role, pattern in pairs)
