"""Authenticates API calls: a bearer token, or the session of a signed-in user (with CSRF)."""

from datetime import timedelta

import structlog
from django.db import DatabaseError
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from controlplane.doors.api.problems import ApiProblem
from controlplane.people.accounts.models import TOKEN_MARK, ApiToken, digest
from controlplane.people.accounts.oidc.identities import tokens_stopped
from controlplane.people.permissions import ROLE_SCOPES, Principal, role_of, scopes_of, who_can

log = structlog.get_logger(__name__)
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
NAME_MAX = 200  # characters of an actor's name in the database
LAST_USED_STEP = timedelta(minutes=1)  # The last use of a busy token is written once a minute.


def principal_of(request: HttpRequest) -> Principal | None:
    """Return the caller, or None without credentials. Looked up once per request."""
    if not hasattr(request, "_weir_principal"):
        header = request.headers.get("Authorization")
        found = principal_by_token(header) if header is not None else _by_session(request)
        request._weir_principal = found  # type: ignore[attr-defined]
    principal: Principal | None = request._weir_principal  # type: ignore[attr-defined]
    return principal


def principal_by_token(header: str) -> Principal | None:
    """Return the caller named by an Authorization header; None without a usable token."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(f"{TOKEN_MARK}_"):
        return None
    row = ApiToken.objects.select_related("user").filter(sha256=digest(token.strip())).first()
    if row is None or not row.is_usable(timezone.now()) or not row.user.is_active or tokens_stopped(row.user_id):
        return None
    _touch(row)
    allowed = ROLE_SCOPES.get(role_of(row.user), frozenset())
    owner = row.user.get_username()
    scopes = frozenset(row.scopes) & allowed
    # A long name is truncated, but never its owner's part, because jobs take turns by owner (fleet/jobs).
    name = f"{row.name[: NAME_MAX - len(owner) - 3]} ({owner})"
    return Principal("token", name, role_of(row.user), scopes, row.user.pk, owner, token_id=row.pk)


def _touch(row: ApiToken) -> None:
    now = timezone.now()
    if row.last_used_at is not None and row.last_used_at > now - LAST_USED_STEP:
        return
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - LAST_USED_STEP)
    try:
        ApiToken.objects.filter(stale, pk=row.pk).update(last_used_at=now)
    except DatabaseError as error:  # The API stays usable with a read-only database.
        log.warning("token.last_used_lost", token=row.prefix, error=str(error))


def _by_session(request: HttpRequest) -> Principal | None:
    user = request.user
    if not role_of(user):
        return None
    return Principal("user", user.get_username(), role_of(user), scopes_of(user), int(user.pk or 0))


class TokenOrSession(AuthBase):
    """Admits callers that hold every scope; the OpenAPI document lists the scopes of each operation."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, *scopes: str) -> None:
        self.scopes = scopes
        super().__init__()

    def __call__(self, request: HttpRequest) -> Principal | None:
        principal = principal_of(request)
        if principal is not None and principal.kind == "user" and request.method not in SAFE and check_csrf(request):
            raise ApiProblem(403, detail="the CSRF token is missing or wrong: reload the page, or use an API token")
        if principal is not None:
            for scope in self.scopes:
                check(principal, scope)
        return principal


needs = TokenOrSession  # used as `auth=needs("policy:read")` beside a route


def check(principal: Principal, scope: str) -> None:
    """Raise ApiProblem 403 with the missing scope and the remedy: another token, or a user who can help."""
    if scope in principal.scopes:
        return
    if scope in ROLE_SCOPES.get(principal.role, frozenset()):
        raise ApiProblem(403, detail=f"the token {principal.name} lacks the scope {scope}: create one that has it")
    role = next(role for role, scopes in ROLE_SCOPES.items() if scope in scopes)
    detail = f"{principal.name} lacks the scope {scope}, which requires the role {role}"
    helpers = ", ".join(who_can("admin"))
    raise ApiProblem(403, detail=f"{detail}; ask {helpers}" if helpers else detail)


def caller(request: HttpRequest) -> Principal:
    """Return the authenticated caller of a route."""
    principal = principal_of(request)
    if principal is None:
        raise ApiProblem(401)
    return principal


def check_emergency(request: HttpRequest, emergency: str) -> None:
    """Require the scope admin to bypass the rules: a narrow token of an administrator is not enough."""
    if emergency:
        check(caller(request), "admin")
