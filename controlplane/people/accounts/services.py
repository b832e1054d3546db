"""Creates and changes accounts and tokens. Each change writes an audit entry."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone

from controlplane.base.process import env
from controlplane.common import as_seen
from controlplane.common.as_seen import held
from controlplane.people.accounts.models import ApiToken, OidcIdentity, SignInLink, digest
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import SYSTEM, Actor
from controlplane.people.permissions import ROLES, SCOPES

log = structlog.get_logger(__name__)
ADMIN = "admin"
LINK_FOR = timedelta(minutes=5)
LOCAL_TOKEN = "local scripts"  # noqa: S105  (a name)


class NotChanged(Exception):
    """The account was not changed; the message gives the reason and a remedy."""


class LastAdmin(NotChanged):
    """The change would leave no administrator."""


class FromProvider(NotChanged):
    """The identity provider decides this."""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    username: str
    password: str | None  # set only if it was just generated, not taken from WEIR_ADMIN_PASSWORD
    token_path: Path  # API token for scripts on this machine, mode 0600


def ensure_admin() -> AdminAccess:
    """Create the user `admin` and the token file if they are missing. Safe to call at each start."""
    password = None
    user = get_user_model().objects.filter(username=ADMIN).first()
    if user is None:
        given = _first_password()
        password = None if given else secrets.token_urlsafe(12)
        user = create_user(ADMIN, given or password or "", "admin", SYSTEM)
    return AdminAccess(ADMIN, password, ensure_token_file(user))


def _first_password() -> str:
    """Return WEIR_ADMIN_PASSWORD; empty if it is not set. Raise BadSetting for a weak password, which prevents the
    start."""
    given = env.text("WEIR_ADMIN_PASSWORD")
    try:
        if given:
            validate_password(given, get_user_model()(username=ADMIN))
    except ValidationError as error:
        faults = " ".join(error.messages)
        raise env.BadSetting(f"WEIR_ADMIN_PASSWORD: {faults} Set another, or none: then one is made.") from None
    return given


def ensure_token_file(user: User) -> Path:
    """Write a usable token to `$WEIR_DATA_DIR/token`, unless the file already holds one."""
    path = Path(settings.DATA_DIR) / "token"
    if path.exists():
        held = ApiToken.objects.filter(sha256=digest(path.read_text().strip()), user=user).first()
        if held is not None and held.is_usable(timezone.now()):
            _widen(held)
            path.chmod(0o600)
            return path
    _, token = create_token(user, LOCAL_TOKEN, SCOPES, SYSTEM)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    made.replace(path)
    return path


def _widen(token: ApiToken) -> None:
    """Add the scopes introduced by a newer version of Weir to the token of this machine's scripts."""
    scopes = sorted(SCOPES)
    if token.scopes != scopes and ApiToken.objects.filter(pk=token.pk).update(scopes=scopes):
        before, after = {"scopes": token.scopes}, {"scopes": scopes}
        audit.record(SYSTEM, "token.widen", f"token {token.name} ({token.user.username})", "", before, after)


# Users


@transaction.atomic
def create_user(username: str, password: str, role: str, actor: Actor) -> User:
    user = get_user_model().objects.create_user(username=username, password=password)
    user.groups.set([Group.objects.get(name=role)])
    audit.record(actor, "user.create", f"user {username}", "", None, {"role": role})
    return user


def user_etag(user: User) -> str:
    """Return the ETag of the fields that administrators change on the page Users."""
    roles = sorted(group.name for group in user.groups.all())
    return as_seen.digest(user._meta.label, user.pk, user.is_active, user.password, roles)


@contextmanager
def _held(user: User, if_match: str | None) -> Iterator[None]:
    """Open a transaction during which no other administrator can change users. Raise ChangedMeanwhile. A second
    administrator waits for the group's row; if both only counted the administrators, each would see the other's row
    unchanged.
    """
    with transaction.atomic():
        Group.objects.filter(name=ADMIN).update(name=ADMIN)
        current = user_etag(get_user_model().objects.get(pk=user.pk))
        as_seen.check(f"the user {user.username}", current, if_match)
        yield


@contextmanager
def _keeping_an_admin(user: User, if_match: str | None) -> Iterator[None]:
    """Open a transaction that is rolled back, with LastAdmin, if it leaves no administrator. Raise ChangedMeanwhile.
    Changes of administrators are serialized: if two remove the role from each other, the second sees the first one's
    change.
    """
    with _held(user, if_match):
        had = _admins().exists()
        yield
        if had and not _admins().exists():
            raise LastAdmin(f"{user.username} is the last administrator. Make another user administrator first")


def _admins() -> QuerySet[User]:
    return get_user_model().objects.filter(Q(groups__name=ADMIN) | Q(is_superuser=True), is_active=True)


def set_role(user: User, role: str, actor: Actor, *, if_match: str | None = None) -> None:
    if OidcIdentity.objects.filter(user=user).exists():
        raise FromProvider(f"the role of {user.username} comes from the identity provider at each sign-in")
    with _keeping_an_admin(user, if_match):
        give_role(user, role, actor)


def give_role(user: User, role: str, actor: Actor) -> None:
    """Set the role, empty for none. No administrator may remain, because the identity provider decides."""
    before = sorted(set(user.groups.values_list("name", flat=True)) & set(ROLES))
    user.groups.remove(*Group.objects.filter(name__in=ROLES))
    if role:
        user.groups.add(Group.objects.get(name=role))
    audit.record(actor, "user.set_role", f"user {user.username}", "", {"role": ", ".join(before)}, {"role": role})


def set_active(user: User, active: bool, actor: Actor, *, if_match: str | None = None) -> None:
    """Activate or deactivate a user. Sessions and tokens of a deactivated user stop working immediately."""
    with _keeping_an_admin(user, if_match):
        get_user_model().objects.filter(pk=user.pk).update(is_active=active)
        action = "user.activate" if active else "user.deactivate"
        audit.record(actor, action, f"user {user.username}", "", {"active": not active}, {"active": active})
    user.is_active = active


def reset_password(user: User, actor: Actor, *, if_match: str | None = None) -> str:
    """Set a random password and return it, to be shown once. The user's sessions and API tokens end."""
    if OidcIdentity.objects.filter(user=user).exists() and not user.has_usable_password():
        raise FromProvider(f"{user.username} signs in with the identity provider and has no password here")
    password = secrets.token_urlsafe(12)
    with _held(user, if_match):
        user.set_password(password)
        user.save(update_fields=["password"])
        ended = ApiToken.objects.filter(user=user, revoked_at=None).update(revoked_at=timezone.now())
        audit.record(actor, "user.reset_password", f"user {user.username}", "", None, {"tokens_revoked": ended})
    return password


@transaction.atomic
def change_password(user: User, password: str, actor: Actor) -> None:
    """Change the user's own password; their other sessions end."""
    user.set_password(password)
    user.save(update_fields=["password"])
    audit.record(actor, "user.change_password", f"user {user.username}")


def record_sign_in(user: User, address: str) -> None:
    _record_attempt(Actor("user", user.username), "user.sign_in", f"user {user.username}", address)


def record_failed_sign_in(username: str, address: str) -> None:
    """Write an audit entry that names only known users, because people sometimes type their password into the name
    field."""
    known = get_user_model().objects.filter(username=username).exists()
    _record_attempt(SYSTEM, "user.sign_in_failed", f"user {username}" if known else "an unknown name", address)


def _record_attempt(actor: Actor, action: str, subject: str, address: str) -> None:
    try:
        audit.record(actor, action, subject, "by a password", after={"address": address[:64]})
    except DatabaseError as error:  # sign-in must work on a full disk, where the log cannot be written
        log.warning("signin.not_audited", error=str(error))


# Tokens


@transaction.atomic
def create_token(
    user: User, name: str, scopes: Iterable[str], actor: Actor, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """Create a token; return the row and the token, which is not stored and cannot be shown again."""
    row, token = ApiToken.issue(user=user, name=name, scopes=scopes, expires_at=expires_at)
    after = {"scopes": row.scopes, "expires_at": expires_at.isoformat() if expires_at else None}
    audit.record(actor, "token.create", f"token {name} ({user.username})", "", None, after)
    return row, token


def revoke_token(row: ApiToken, actor: Actor, *, if_match: str | None = None) -> bool:
    """Revoke a token; return False if it was already revoked. Raise ChangedMeanwhile."""
    with held(ApiToken.objects.filter(pk=row.pk), f"token {row.name}", if_match) as row:
        if not row.revoke():
            return False
        audit.record(actor, "token.revoke", f"token {row.name} ({row.user.username})")
    return True


# One-time sign-in links


@transaction.atomic
def make_sign_in_link(username: str, actor: Actor) -> str:
    """Return the path of a page that signs the user in once, for 5 minutes. Raise User.DoesNotExist if no active user
    has the name."""
    user = get_user_model().objects.get(username=username, is_active=True)
    token = secrets.token_urlsafe(32)
    SignInLink.objects.create(user=user, sha256=digest(token), expires_at=timezone.now() + LINK_FOR)
    audit.record(actor, "user.sign_in_link", f"user {username}")
    return reverse("sign-in-link", args=[token])


@transaction.atomic
def user_of_link(token: str, *, use: bool) -> User | None:
    """Return the user whom a link signs in; None if the link has expired or been used. With `use`, the link is
    consumed, and only one of two callers gets the user."""
    now = timezone.now()
    rows = SignInLink.objects.filter(sha256=digest(token), used_at=None, expires_at__gt=now, user__is_active=True)
    link = rows.select_related("user").first()
    if link is None or (use and not rows.update(used_at=now)):
        return None
    if use:
        audit.record(Actor("user", link.user.username), "user.sign_in", f"user {link.user.username}", "by a link")
    return link.user
