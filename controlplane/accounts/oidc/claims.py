"""The role that claims grant. Pure."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from controlplane.permissions import Role, highest
from controlplane.process.oidc_settings import OidcConfig


def granted(claims: Mapping[str, Any], config: OidcConfig) -> Role | Literal[""] | None:
    """The highest role whose pattern a value of the role claim matches.

    Empty: the claim is there and matches nothing, so the person has no access. None: the claim is absent, so the role
    is unknown (a provider leaves it out of long tokens, as Entra ID does with `_claim_names`).
    """
    values = _values(claims, config.role_claim)
    if values is None:
        return None
    return highest({role for role, pattern in config.roles for value in values if fnmatchcase(value, pattern)})


def _values(claims: Mapping[str, Any], path: tuple[str, ...]) -> list[str] | None:
    found: Any = claims
    for part in path:
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    if isinstance(found, str):
        return [found]
    return [value for value in found if isinstance(value, str)] if isinstance(found, list) else None
