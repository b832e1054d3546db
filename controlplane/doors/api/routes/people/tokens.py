"""API tokens over REST, for administrators."""

from datetime import datetime
from functools import partial
from typing import Any

from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Status

from controlplane.doors.api import etags
from controlplane.doors.api.auth import caller, needs
from controlplane.doors.api.etags import Versioned, row_of
from controlplane.doors.api.openapi import IF_MATCH, Number
from controlplane.doors.api.problems import ApiProblem
from controlplane.doors.api.unread import Body
from controlplane.people.accounts import services
from controlplane.people.accounts.models import ApiToken, can_expire_at
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import SCOPES
from router.contract.values.problem import Problem

router = Router(tags=["tokens"])
_row = partial(row_of, ApiToken.objects.select_related("user"), "token")


class TokenOut(Versioned):
    id: int
    name: str
    prefix: str
    user: str = Field(validation_alias="user.get_username")
    scopes: list[str]
    status: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class IssuedOut(TokenOut):
    token: str = Field(description="Shown once")


class TokenIn(Body):
    name: str = Field(min_length=1, max_length=80, pattern=r"\S")
    scopes: list[str] = Field(min_length=1, max_length=len(SCOPES), examples=[["policy:read"]])
    expires_at: datetime | None = None


@router.get("", response=list[TokenOut], auth=needs("admin"))
def list_tokens(request: HttpRequest) -> Any:
    """Every API token"""
    return ApiToken.objects.select_related("user")


@router.post("", response={201: IssuedOut}, auth=needs("admin"))
def create_token(request: HttpRequest, response: HttpResponse, payload: TokenIn) -> Any:
    """Create a token that acts for the caller"""
    principal = caller(request)
    _check(payload, principal.scopes)
    user = get_user_model().objects.get(pk=principal.user_id)
    row, token = services.create_token(user, payload.name, payload.scopes, actor_of(request), payload.expires_at)
    response.headers["Cache-Control"] = "no-store"
    return Status(201, IssuedOut.model_construct(**dict(TokenOut.from_orm(row)), token=token))


def _check(payload: TokenIn, allowed: frozenset[str]) -> None:
    found = [
        Problem(f"scopes.{i}", scope, "not a scope of yours", ", ".join(sorted(allowed)))
        for i, scope in enumerate(payload.scopes)
        if scope not in allowed
    ]
    if payload.expires_at is not None and not can_expire_at(payload.expires_at):
        allowed_times = "a time in the future, with its time zone"
        found.append(Problem("expires_at", payload.expires_at.isoformat(), "not a usable time", allowed_times))
    if found:
        raise ApiProblem(422, errors=found)


@router.get("/{token_id}", response=TokenOut, auth=needs("admin"))
def get_token(request: HttpRequest, response: HttpResponse, token_id: Number) -> Any:
    """One API token"""
    return etags.of(response, _row(token_id))


@router.delete("/{token_id}", response={204: None}, openapi_extra=IF_MATCH, auth=needs("admin"))
def revoke_token(request: HttpRequest, token_id: Number) -> Any:
    """Revoke a token; idempotent"""
    services.revoke_token(_row(token_id), actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)
