"""Writes the audit log."""

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import structlog
from django.http import HttpRequest

from controlplane.people.audit.models import AuditEntry
from controlplane.people.permissions import Principal, can_administer
from fleet.spec import masking

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor, with a name that stays readable after the account is deleted."""

    kind: Literal["user", "token", "system"]
    name: str
    owner: str = ""  # the user for whom a token acts
    is_admin: bool = False

    @property
    def person(self) -> str:
        """Return the user behind the actor."""
        return self.owner or self.name


SYSTEM = Actor("system", "weir")


def on_host(command: str = "manage.py") -> Actor:
    """Return the actor of a command on the host: an OS user who can read the data folder, and is therefore an
    administrator."""
    return Actor("system", f"{getpass.getuser()} ({command})", is_admin=True)


def actor_of(request: HttpRequest) -> Actor:
    """Return the user or token of a page request or an API request."""
    principal = getattr(request, "auth", None)
    if isinstance(principal, Principal):
        return Actor(principal.kind, principal.name, principal.owner, can_administer(principal))
    if request.user.is_authenticated:
        return Actor("user", request.user.get_username(), is_admin=can_administer(request.user))
    return Actor("user", "nobody signed in")


def record(
    actor: Actor,
    action: str,
    subject: str,
    reason: str = "",
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    request_id: str = "",
) -> AuditEntry:
    """Add one entry inside the caller's transaction, so that no change commits without its entry.
    Secrets of engines are hidden before the entry is stored.
    """
    request_id = request_id or structlog.contextvars.get_contextvars().get("request_id", "")
    log.info(action, subject=subject, actor=actor.name, reason=reason)
    return AuditEntry.objects.create(
        actor_kind=actor.kind,
        actor_name=actor.name[:200],
        action=action,
        subject=subject[:200],
        reason=masking.shown(reason),
        before=masking.shown(before),
        after=masking.shown(after),
        request_id=request_id[:64],
    )
