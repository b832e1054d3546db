"""Shares of live state over REST, for administrators."""

from datetime import datetime
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Field, Router, Status

from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import Versioned, row_of
from controlplane.doors.api.openapi import IF_MATCH, Number
from controlplane.doors.api.unread import Body
from controlplane.pages.shares import services
from controlplane.pages.shares.models import Share
from controlplane.people.audit.services import actor_of

router = Router(tags=["shares"])
_row = partial(row_of, Share, "share")


class ShareOut(Versioned):
    id: int
    name: str
    prefix: str
    pool: str = Field(description="Empty: all pools")
    status: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class IssuedShareOut(ShareOut):
    token: str = Field(description="Shown once")
    wall: str = Field(description="Path of the shared wall")


class ShareIn(Body):
    name: str = Field(min_length=1, max_length=80, pattern=r"\S")
    pool: str = Field("", max_length=63, description="Empty: all pools")
    expires_at: datetime | None = None


@router.get("", response=list[ShareOut], auth=needs("admin"))
def list_shares(request: HttpRequest) -> Any:
    """Every share of live state"""
    return Share.objects.all()


@router.post("", response={201: IssuedShareOut}, auth=needs("admin"))
def create_share(request: HttpRequest, response: HttpResponse, payload: ShareIn) -> Any:
    """Share the wall and the badges of a pool, or of all pools"""
    row, token = services.create_share(payload.name, payload.pool, actor_of(request), payload.expires_at)
    response.headers["Cache-Control"] = "no-store"
    wall = reverse("shared-wall", args=[token])
    return Status(201, IssuedShareOut.model_construct(**dict(ShareOut.from_orm(row)), token=token, wall=wall))


@router.get("/{share_id}", response=ShareOut, auth=needs("admin"))
def get_share(request: HttpRequest, response: HttpResponse, share_id: Number) -> Any:
    """One share of live state"""
    return etags.of(response, _row(share_id))


@router.delete("/{share_id}", response={204: None}, openapi_extra=IF_MATCH, auth=needs("admin"))
def revoke_share(request: HttpRequest, share_id: Number) -> Any:
    """Revoke a share; idempotent. Its walls close within 5 s"""
    services.revoke_share(_row(share_id), actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)
