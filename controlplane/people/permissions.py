"""Permissions: roles of users, scopes of tokens, and predicates over both."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Literal

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from controlplane.base.process.roles import ROLES as ROLES
from controlplane.base.process.roles import Role as Role

ROLE_SUMMARY: dict[str, str] = {
    "viewer": "sees everything, changes nothing",
    "operator": "also edits and publishes policies, applies fleets and starts experiments",
    "admin": "also manages users, tokens, shares, API keys, freezes and notices",
}

_READ = frozenset(
    {"fleet:read", "policy:read", "experiments:read", "live:read", "receipts:read", "audit:read"},
)
_OPERATE = frozenset(
    {
        *("keys:read", "use:read", "policy:write", "policy:publish", "policy:approve", "policy:abort"),
        *("experiments:write", "fleet:write", "notes:write"),
    }
)
_ADMIN = frozenset({"keys:write", "freeze:write", "admin"})
ROLE_SCOPES: dict[str, frozenset[str]] = {
    "viewer": _READ,
    "operator": _READ | _OPERATE,
    "admin": _READ | _OPERATE | _ADMIN,
}
SCOPES: dict[str, str] = {
    "live:read": "live state and metrics",
    "fleet:read": "pools, instances and their logs",
    "fleet:write": "apply a fleet, drain, restart and stop instances",
    "policy:read": "policies, versions and drafts",
    "policy:write": "create policies, edit drafts",
    "policy:publish": "publish, deliver and roll back",
    "policy:approve": "approve and reject deliveries of others",
    "policy:abort": "pause and abort deliveries, nothing else: for alert managers",
    "freeze:write": "add, change and remove freezes, and set the delivery rules of policies",
    "experiments:read": "experiments, traces and results",
    "experiments:write": "upload traces, start and cancel experiments",
    "receipts:read": "routing receipts of single requests",
    "audit:read": "the audit log",
    "keys:read": "API keys of the routers' clients, without the secrets",
    "keys:write": "make, change and revoke API keys, say where one is required",
    "use:read": "what each API key used and cost",
    "notes:write": "put notes on the charts of a pool",
    "admin": "users, tokens, shares and channels of notices",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of an API request: a user's session or a token."""

    kind: Literal["user", "token"]
    name: str  # name of the user, or of the token with its owner: "ci (ada)"
    role: str  # role of the user behind it
    scopes: frozenset[str]  # effective scopes: the token's, limited to the role's
    user_id: int
    owner: str = ""  # a token's user
    token_id: int = 0  # 0 for the session of a user
    is_authenticated: bool = True


def role_of(user: Any) -> str:
    """Return the highest role of an active user; empty without one."""
    if not getattr(user, "is_authenticated", False) or not getattr(user, "is_active", True):
        return ""
    if isinstance(user, Principal):
        return user.role
    cached: str | None = getattr(user, "_weir_role", None)
    if cached is None:
        cached = "admin" if user.is_superuser else highest(set(user.groups.values_list("name", flat=True)))
        user._weir_role = cached
    return cached


def highest(names: Set[str]) -> Role | Literal[""]:
    """Return the highest role among the names; empty without one."""
    return next((role for role in reversed(ROLES) if role in names), "")


def scopes_of(who: Any) -> frozenset[str]:
    if isinstance(who, Principal):
        return who.scopes
    return ROLE_SCOPES.get(role_of(who), frozenset())


def has_scope(who: Any, scope: str) -> bool:
    return scope in scopes_of(who)


def can_view(who: Any) -> bool:
    return role_of(who) in ROLES


def can_operate(who: Any) -> bool:
    return role_of(who) in ("operator", "admin")


def can_administer(who: Any) -> bool:
    return role_of(who) == "admin"


def who_can(role: str) -> list[str]:
    """Return up to 8 active users with `role` or a higher one, whom a refused user can ask."""
    from django.db.models import Q

    roles = ROLES[ROLES.index(role) :]
    users = get_user_model().objects.filter(Q(groups__name__in=roles) | Q(is_superuser=True), is_active=True)
    return list(users.order_by("username").values_list("username", flat=True).distinct()[:8])


def operator_controls(request: HttpRequest) -> dict[str, object]:
    """Return the template context: whether the user can operate, and whom to ask if not."""
    user = getattr(request, "user", None)  # an error page may have none
    return {"may_edit": can_operate(user), "ask": SimpleLazyObject(lambda: who_can("operator"))}
