"""API keys of the data plane over REST."""

from datetime import datetime
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Status

from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import Versioned, row_of
from controlplane.doors.api.openapi import IF_MATCH, Number
from controlplane.doors.api.problems import errors
from controlplane.doors.api.unread import Body
from controlplane.people.audit.services import actor_of
from controlplane.traffic.keys import services
from controlplane.traffic.keys.models import ApiKey
from router.contract.redis.api_keys import BAND_MAX
from router.contract.values.problem import invalid

router = Router(tags=["keys"])
_row = partial(row_of, ApiKey, "API key")


class KeyOut(Versioned):
    id: int
    name: str
    prefix: str
    pools: list[str] = Field(description="Empty: every pool")
    models: list[str] = Field(description="Model names that its requests may use. Empty: all")
    requests_per_min: int | None = Field(description="null: no limit")
    tokens_per_min: int | None = Field(description="null: no limit")
    priority: int = Field(description="Default band of its requests; higher bands are admitted earlier")
    priority_max: int = Field(description="Highest band that its requests may ask for")
    status: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class IssuedKeyOut(KeyOut):
    key: str = Field(description="Shown once")


class KeyIn(Body):
    name: str = Field(min_length=1, max_length=80, pattern=r"\S")
    pools: list[str] = Field([], max_length=1000, description="Empty: every pool")
    models: list[str] = Field([], max_length=1000, description="Model names that its requests may use. Empty: all")
    requests_per_min: int | None = Field(None, ge=1, le=services.LIMIT_MAX)
    tokens_per_min: int | None = Field(None, ge=1, le=services.LIMIT_MAX)
    priority: int = Field(0, ge=-BAND_MAX, le=BAND_MAX, description="Default band of its requests")
    priority_max: int | None = Field(
        None, ge=-BAND_MAX, le=BAND_MAX, description="Highest band they may ask for. null: 0, or priority if higher"
    )
    expires_at: datetime | None = None


class KeyChange(Body):
    name: str | None = Field(None, min_length=1, max_length=80, pattern=r"\S")
    pools: list[str] | None = Field(None, max_length=1000)
    models: list[str] | None = Field(None, max_length=1000)
    requests_per_min: int | None = Field(None, ge=1, le=services.LIMIT_MAX, description="null: no limit")
    tokens_per_min: int | None = Field(None, ge=1, le=services.LIMIT_MAX, description="null: no limit")
    priority: int | None = Field(None, ge=-BAND_MAX, le=BAND_MAX)
    priority_max: int | None = Field(None, ge=-BAND_MAX, le=BAND_MAX, description="null: 0, or priority if higher")
    expires_at: datetime | None = Field(None, description="null: never")


class RequiredPools(Body):
    pools: list[str] = Field(max_length=1000, description='Pools that require a key; "*" for every pool')


class RequiredOut(RequiredPools, Versioned):
    pass


@router.get("", response=list[KeyOut], auth=needs("keys:read"))
def list_keys(request: HttpRequest) -> Any:
    """Every API key"""
    return ApiKey.objects.all()


@router.post("", response={201: IssuedKeyOut}, auth=needs("keys:write"))
def create_key(request: HttpRequest, response: HttpResponse, payload: KeyIn) -> Any:
    """Create an API key for clients of the routers"""
    values = payload.dict(exclude={"name"})
    terms = services.KeyTerms(**{**values, "pools": tuple(payload.pools), "models": tuple(payload.models)})
    row, secret = services.create_key(payload.name, terms, actor_of(request))
    response.headers["Cache-Control"] = "no-store"
    return Status(201, IssuedKeyOut.model_construct(**dict(KeyOut.from_orm(row)), key=secret))


@router.get("/required", response=RequiredOut, auth=needs("keys:read"))
def required_keys(request: HttpRequest, response: HttpResponse) -> Any:
    """Pools that require a key"""
    return _required(response)


@router.put("/required", response=RequiredOut, openapi_extra=IF_MATCH, auth=needs("keys:write"))
def require_keys(request: HttpRequest, response: HttpResponse, payload: RequiredPools) -> Any:
    """Set which pools require a key"""
    services.require_keys(payload.pools, actor_of(request), if_match=etags.if_match(request))
    return _required(response)


def _required(response: HttpResponse) -> dict[str, Any]:
    etag = services.required_etag()
    etags.put(response, etag)
    return {"pools": services.required_pools(), "etag": etag}


@router.get("/{key_id}", response=KeyOut, auth=needs("keys:read"))
def get_key(request: HttpRequest, response: HttpResponse, key_id: Number) -> Any:
    """One API key"""
    return etags.of(response, _row(key_id))


@router.patch("/{key_id}", response=KeyOut, openapi_extra=IF_MATCH, auth=needs("keys:write"))
def change_key(request: HttpRequest, response: HttpResponse, key_id: Number, payload: KeyChange) -> Any:
    """Change the given fields; a revoked key cannot be changed"""
    changes = payload.dict(exclude_unset=True)
    for field in ("name", "pools", "models", "priority"):
        if changes.get(field, "") is None:
            raise invalid(field, None, "must not be null")
    seen = etags.if_match(request)
    return etags.of(response, services.change_key(_row(key_id), changes, actor_of(request), if_match=seen))


@router.post(
    "/{key_id}/revoke", response={200: KeyOut, **errors(415)}, openapi_extra=IF_MATCH, auth=needs("keys:write")
)
def revoke_key(request: HttpRequest, response: HttpResponse, key_id: Number) -> Any:
    """Revoke a key; idempotent"""
    services.revoke_key(_row(key_id), actor_of(request), if_match=etags.if_match(request))
    return etags.of(response, _row(key_id))
