"""Channels of notices and their logs, for administrators; people's notes, for operators."""

from datetime import datetime
from functools import partial
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import Versioned, found, row_of
from controlplane.doors.api.openapi import IF_MATCH, Before, Number
from controlplane.doors.api.problems import errors
from controlplane.doors.api.unread import Body
from controlplane.people.audit.services import actor_of
from controlplane.people.notices import selectors, services
from controlplane.people.notices.models import Channel
from fleet.models import Pool

router = Router(tags=["notices"])
_row = partial(row_of, Channel, "channel")

WORDS_HELP = "Whether its receivers may read what people wrote; else notices have events, names of things and numbers"
EVENTS_HELP = "Names of events, groups such as delivery.*, or *"


class ChannelOut(Versioned):
    id: int
    name: str
    kind: str
    url: str = Field(validation_alias="masked_url", description="Masked")
    events: list[str]
    enabled: bool
    words: bool = Field(description=WORDS_HELP)
    rotated_until: datetime | None = Field(description="Until then the secret before the last rotation signs too")
    created_by: str
    created_at: datetime


class IssuedChannelOut(ChannelOut):
    secret: str = Field(description="Of a webhook's signatures (Standard Webhooks); shown once, empty for Apprise")


class ChannelIn(Body):
    name: str = Field(min_length=1, max_length=services.NAME_MAX, pattern=r"\S")
    kind: Literal["webhook", "apprise"] = "webhook"
    url: str = Field(min_length=1, max_length=2000, examples=["https://hooks.example.com/weir"])
    events: list[str] = Field(["*"], min_length=1, max_length=100, description=EVENTS_HELP)
    enabled: bool = True
    words: bool = Field(True, description=WORDS_HELP)


class ChannelChange(Body):
    name: str | None = Field(None, min_length=1, max_length=services.NAME_MAX, pattern=r"\S")
    url: str | None = Field(None, min_length=1, max_length=2000)
    events: list[str] | None = Field(None, min_length=1, max_length=100, description=EVENTS_HELP)
    enabled: bool | None = Field(None, description="false also cancels waiting notices")
    words: bool | None = Field(None, description=WORDS_HELP)


class NoticeOut(Schema):
    id: int
    message_id: str = Field(description="webhook-id: the same in every attempt")
    event: str
    subject: str
    text: str
    facts: dict[str, Any]
    at: datetime
    status: str = Field(description="waiting, sent or abandoned")
    attempts: int
    due_at: datetime = Field(description="Time of the next attempt, while the notice waits")
    ended_at: datetime | None
    outcome: str = Field(description="Of the last attempt")


class NoteIn(Body):
    pool: str = Field(min_length=1, max_length=63)
    text: str = Field(min_length=1, max_length=services.NOTE_MAX, pattern=r"\S", examples=["Switch 3 is replaced"])


def _issued(row: Channel, secret: str) -> IssuedChannelOut:
    return IssuedChannelOut.model_construct(**dict(ChannelOut.from_orm(row)), secret=secret)


@router.get("/channels", response=list[ChannelOut], auth=needs("admin"))
def list_channels(request: HttpRequest) -> Any:
    """Every channel"""
    return Channel.objects.all()


@router.post("/channels", response={201: IssuedChannelOut}, auth=needs("admin"))
def create_channel(request: HttpRequest, response: HttpResponse, payload: ChannelIn) -> Any:
    """Create a channel for notices"""
    terms = services.ChannelTerms(**payload.dict(exclude={"kind"}))
    row, secret = services.create_channel(payload.kind, terms, actor_of(request))
    response.headers["Cache-Control"] = "no-store"
    return Status(201, _issued(row, secret))


@router.get("/channels/{channel_id}", response=ChannelOut, auth=needs("admin"))
def get_channel(request: HttpRequest, response: HttpResponse, channel_id: Number) -> Any:
    """One channel"""
    return etags.of(response, _row(channel_id))


@router.patch("/channels/{channel_id}", response=ChannelOut, openapi_extra=IF_MATCH, auth=needs("admin"))
def change_channel(request: HttpRequest, response: HttpResponse, channel_id: Number, payload: ChannelChange) -> Any:
    """Change the given fields of a channel"""
    changes = {name: value for name, value in payload.dict(exclude_unset=True).items() if value is not None}
    edit, seen = services.ChannelEdit(**changes), etags.if_match(request)
    return etags.of(response, services.change_channel(_row(channel_id), edit, actor_of(request), if_match=seen))


@router.delete("/channels/{channel_id}", response={204: None}, openapi_extra=IF_MATCH, auth=needs("admin"))
def delete_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Delete a channel with its log"""
    services.delete_channel(_row(channel_id), actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)


@router.post(
    "/channels/{channel_id}/rotate",
    response={200: IssuedChannelOut, **errors(415)},
    openapi_extra=IF_MATCH,
    auth=needs("admin"),
)
def rotate_channel(request: HttpRequest, response: HttpResponse, channel_id: Number) -> Any:
    """Make a new secret; for 24 hours, notices are also signed with the old one"""
    secret = services.rotate_secret(_row(channel_id), actor_of(request), if_match=etags.if_match(request))
    response.headers["Cache-Control"] = "no-store"
    return _issued(etags.of(response, _row(channel_id)), secret)


@router.post("/channels/{channel_id}/test", response={202: NoticeOut, **errors(415)}, auth=needs("admin"))
def test_channel(request: HttpRequest, channel_id: Number) -> Any:
    """Send a test notice, also to a disabled channel; its outcome is in the log within seconds"""
    return Status(202, services.test_channel(_row(channel_id), actor_of(request)))


@router.get("/channels/{channel_id}/notices", response=list[NoticeOut], auth=needs("admin"))
def list_notices(
    request: HttpRequest, channel_id: Number, limit: int = Query(50, ge=1, le=200), before: Before = None
) -> Any:
    """What a channel was sent in the last 30 days, newest first"""
    return selectors.log_of(_row(channel_id), limit, before)


@router.post("/notes", response={204: None, **errors(404)}, auth=needs("notes:write"))
def write_note(request: HttpRequest, payload: NoteIn) -> Any:
    """Put a note on the charts of a pool; channels may subscribe to notes"""
    pool = Pool.objects.filter(name=payload.pool, ephemeral_owner="").first()
    pool = found(pool, f"there is no pool {payload.pool}")
    services.write_note(pool, payload.text, actor_of(request))
    return Status(204, None)
