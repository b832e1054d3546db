"""Converts claims to a signed-in user: identities, their roles, their sessions. Each change writes an audit entry."""

import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import IntegrityError, transaction
from django.http import HttpRequest
from django.utils import timezone

from controlplane.base.process.oidc_settings import OidcConfig
from controlplane.people.accounts import services
from controlplane.people.accounts.models import OidcIdentity, OidcSession
from controlplane.people.accounts.oidc.claims import granted, is_unverified, text_of
from controlplane.people.accounts.oidc.errors import SignInRefused
from controlplane.people.accounts.sessions import hashed
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.people.permissions import role_of

PROVIDER = Actor("system", "identity provider")
Claims = Mapping[str, Any]
NAME_CLAIMS = ("preferred_username", "email", "name", "sub")
NOT_IN_NAMES = re.compile(r"[^\w.@+-]+", re.ASCII)
NAME_MAX = 100


def sign_in(claims: Claims, config: OidcConfig) -> OidcIdentity:
    """Return the identity with its user, after setting the role that the claims grant. Raise Refused if the person has
    no access."""
    role = granted(claims, config)
    identity = _known(claims, config)
    if identity is None:
        _check_role(role, claims, config)
        identity = _new(claims, config)
    elif not identity.user.is_active:
        raise SignInRefused("deactivated")
    _take_role(identity, role)
    if not role_of(get_user_model().objects.get(pk=identity.user_id)):
        raise _without_access(role, claims, config)
    return identity


def link(user: User, claims: Claims, config: OidcConfig, actor: Actor) -> OidcIdentity:
    """Link the identity to a signed-in user. From then on, the provider sets the user's role."""
    if user.username == services.ADMIN:
        raise SignInRefused("stays_local")
    known = _known(claims, config)
    if known is not None and known.user_id != user.pk:
        raise SignInRefused("already_linked")
    if known is None:
        _check_role(granted(claims, config), claims, config)
        known = _made(user, claims, config)
        audit.record(actor, "user.link", f"user {user.username}", after={"subject": known.subject})
    return known


def _check_role(role: str | None, claims: Claims, config: OidcConfig) -> None:
    if not role:
        raise _without_access(role, claims, config)


def _without_access(role: str | None, claims: Claims, config: OidcConfig) -> SignInRefused:
    if role is None:
        return SignInRefused("role_unknown")
    return SignInRefused("address_unverified" if is_unverified(claims, config) else "no_role")


def _known(claims: Claims, config: OidcConfig) -> OidcIdentity | None:
    rows = OidcIdentity.objects.select_related("user")
    return rows.filter(issuer=config.issuer, subject=claims["sub"]).first()


def _made(user: User, claims: Claims, config: OidcConfig) -> OidcIdentity:
    return OidcIdentity.objects.create(issuer=config.issuer, subject=claims["sub"], user=user)


def _new(claims: Claims, config: OidcConfig) -> OidcIdentity:
    """Create a user without a password. Of two concurrent first sign-ins, the second finds the identity that the
    first created."""
    try:
        with transaction.atomic():
            user = get_user_model().objects.create_user(username=_free_name(claims, config))
            user.set_unusable_password()
            user.save(update_fields=["password"])
            identity = _made(user, claims, config)
            audit.record(PROVIDER, "user.create", f"user {user.username}", "", None, {"subject": identity.subject})
            return identity
    except IntegrityError:
        known = _known(claims, config)
        if known is None:
            raise
        return known


def _free_name(claims: Claims, config: OidcConfig) -> str:
    """Return a name from the claims; if another user has it, six digits of the identity's hash are appended."""
    claimed = next((found for name in NAME_CLAIMS if (found := text_of(claims, name)).strip()), "")
    name = NOT_IN_NAMES.sub("-", claimed).strip("-")[:NAME_MAX] or "user"
    if name.lower() != services.ADMIN and not get_user_model().objects.filter(username__iexact=name).exists():
        return name
    digits = hashlib.sha256(f"{config.issuer} {claims['sub']}".encode()).hexdigest()[:6]
    return f"{name}~{digits}"  # names chosen by people have no tilde


@transaction.atomic
def _take_role(identity: OidcIdentity, role: str | None) -> None:
    """Set the role that the claims grant, even for the last administrator; without a role claim, nothing changes."""
    now, user = timezone.now(), identity.user
    unknown_since = None if role is not None else identity.role_unknown_since or now
    rows = OidcIdentity.objects.filter(pk=identity.pk)
    rows.update(signed_in_at=now, role_unknown_since=unknown_since)
    if role is None:
        if identity.role_unknown_since is None:
            audit.record(PROVIDER, "user.role_unknown", f"user {user.username}", after={"role": role_of(user)})
        return
    if role != role_of(user):
        services.give_role(user, role, PROVIDER)
    if not role:
        end_sessions(identity)


# Sessions


def opened(request: HttpRequest, identity: OidcIdentity, config: OidcConfig, claims: Claims, id_token: str) -> None:
    """Link the new session to the identity. It ends after WEIR_OIDC_SESSION_HOURS, or when the provider logs the person
    out."""
    request.session.set_expiry(config.session_hours * 3600)
    request.session["oidc_id_token"] = id_token  # hint for the provider's sign-out
    request.session.save()
    gone = OidcSession.objects.filter(identity=identity).exclude(session_key__in=Session.objects.values("session_key"))
    gone.delete()
    key = hashed(request.session.session_key) or ""
    OidcSession.objects.create(identity=identity, session_key=key, sid=text_of(claims, "sid"))


def end_sessions(identity: OidcIdentity, sid: str = "") -> int:
    """End the identity's sessions, or only the session `sid`, and return their number; their WebSockets close within
    seconds."""
    rows = OidcSession.objects.filter(identity=identity)
    keys = list((rows.filter(sid=sid) if sid else rows).values_list("session_key", flat=True))
    ended, _ = Session.objects.filter(session_key__in=keys).delete()
    rows.filter(session_key__in=keys).delete()
    return ended


def log_out(claims: Claims, config: OidcConfig) -> int:
    """Execute a logout token: end the session `sid`, or else all sessions of `sub`. Return their number."""
    sid, subject = text_of(claims, "sid"), text_of(claims, "sub")
    if not sid and not subject:
        return 0
    rows = OidcIdentity.objects.filter(issuer=config.issuer)
    rows = rows.filter(subject=subject) if subject else rows.filter(sessions__sid=sid).distinct()
    return sum(end_sessions(identity, sid) for identity in rows)


def tokens_stopped(user_id: int) -> bool:
    """Return whether a user's API tokens are suspended, because the last sign-in with the provider was more than
    WEIR_OIDC_TOKEN_DAYS ago."""
    last = OidcIdentity.objects.filter(user_id=user_id).values_list("signed_in_at", flat=True).order_by("-signed_in_at")
    newest = last.first()
    config: OidcConfig | None = settings.OIDC
    days = config.token_days if config else 30
    return newest is not None and newest < timezone.now() - timedelta(days=days)
