"""The audit log over REST."""

from datetime import date, datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.params.functions import Query

from controlplane.doors.api.auth import needs
from controlplane.doors.api.openapi import Before
from controlplane.people.audit.selectors import AuditFilters, page

router = Router(tags=["audit"])


class AuditEntryOut(Schema):
    id: int
    at: datetime
    actor_kind: str
    actor_name: str
    action: str
    subject: str
    reason: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str


class AuditPageOut(Schema):
    entries: list[AuditEntryOut]
    next: int | None = Field(description="Send it as `before` for older entries; null at the end")


@router.get("", response=AuditPageOut, auth=needs("audit:read"))
def list_audit(
    request: HttpRequest,
    actor: str = Query("", max_length=200),
    action: str = Query("", max_length=60),
    subject: str = Query("", max_length=200, description="A part of the subject"),
    before: Before = None,
    since: Annotated[date | None, Query(description="First day, in UTC")] = None,
    until: Annotated[date | None, Query(description="Last day, in UTC")] = None,
    limit: int = Query(50, ge=1, le=200),
) -> Any:
    """Who changed what and why, newest first"""
    rows, older = page(AuditFilters(actor, action, subject, before, since, until), limit)
    return {"entries": rows, "next": older}
