"""Creates, finds and revokes shares. Each change writes an audit entry."""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.pages.shares.models import Share
from controlplane.people.accounts.models import can_expire_at, digest
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from fleet.models import Pool
from router.contract.values.problem import invalid


@transaction.atomic
def create_share(name: str, pool: str, actor: Actor, expires_at: datetime | None = None) -> tuple[Share, str]:
    """Create a share; return the row and the token, which is not stored and cannot be shown again. Raises
    InvalidInput."""
    known = sorted(Pool.objects.values_list("name", flat=True))
    if pool and pool not in known:
        raise invalid("pool", pool, "no such pool", ", ".join(known) or "none, for all pools")
    if expires_at is not None and not can_expire_at(expires_at):
        allowed = "a time in the future, with its time zone"
        raise invalid("expires_at", expires_at.isoformat(), "not a usable time", allowed)
    row, token = Share.issue(name=name, pool=pool, created_by=actor.name, expires_at=expires_at)
    after = {"pool": pool or "all pools", "expires_at": expires_at.isoformat() if expires_at else None}
    audit.record(actor, "share.create", f"share {name}", "", None, after)
    return row, token


def revoke_share(row: Share, actor: Actor, *, if_match: str | None = None) -> bool:
    """Revoke the share; its walls close within 5 s. Return False if it was already revoked. Raise ChangedMeanwhile."""
    with held(Share.objects.filter(pk=row.pk), f"share {row.name}", if_match) as row:
        if not row.revoke():
            return False
        audit.record(actor, "share.revoke", f"share {row.name}")
    return True


def share_of(token: str) -> Share | None:
    """Return the share of a token; None if the token is unknown, revoked or expired."""
    if not token.startswith(f"{Share.mark}_"):
        return None
    row = Share.objects.filter(sha256=digest(token)).first()
    return row if row is not None and row.is_usable(timezone.now()) else None
