"""Operations on a pool over REST: scale, roll back, resume a halted rollout."""

from typing import Any

from django.http import HttpRequest
from ninja import Router
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.openapi import IF_MATCH
from controlplane.doors.api.routes.fleet.fleet import EVENTS_MAX, PoolName, pool_out, sees_secrets
from controlplane.doors.api.routes.fleet.fleet_schemas import (
    NO_REASON,
    EventOut,
    PoolOut,
    PoolRollbackIn,
    PoolVersionOut,
    ReasonIn,
    ScaleIn,
)
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.rows import find_pool, pool_rows
from controlplane.people.audit.services import actor_of
from fleet import selectors
from fleet.spec import masking, versions
from fleet.spec.fleet_spec import OBSERVE, SERVE

router = Router(tags=["fleet"])
AS_USUAL = PoolRollbackIn.model_validate({})


def _shown(name: str) -> PoolOut:
    return pool_out(pool_rows([find_pool(name)])[0], secrets=True)  # all of these need fleet:write


@router.post("/pools/{name}/scale", response=PoolOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def scale_pool(request: HttpRequest, name: PoolName, payload: ScaleIn) -> Any:
    """Set the number of replicas"""
    actions.scale(name, payload.replicas, actor_of(request), payload.reason, if_match=etags.if_match(request))
    return _shown(name)


@router.post("/pools/{name}/serve", response=PoolOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def serve_pool(request: HttpRequest, name: PoolName, payload: ReasonIn = NO_REASON) -> Any:
    """Let routers send requests to a pool that was observed only"""
    return _in_mode(request, name, SERVE, payload)


@router.post("/pools/{name}/observe", response=PoolOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def observe_pool(request: HttpRequest, name: PoolName, payload: ReasonIn = NO_REASON) -> Any:
    """Only observe a pool whose engines another system started; routers send it no requests"""
    return _in_mode(request, name, OBSERVE, payload)


def _in_mode(request: HttpRequest, name: str, mode: str, payload: ReasonIn) -> PoolOut:
    actions.set_mode(name, mode, actor_of(request), payload.reason, if_match=etags.if_match(request))
    return _shown(name)


@router.post("/pools/{name}/rollback", response=PoolOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def rollback_pool(request: HttpRequest, name: PoolName, payload: PoolRollbackIn = AS_USUAL) -> Any:
    """Roll the engines back to an earlier configuration"""
    seen = etags.if_match(request)
    actions.roll_back(name, actor_of(request), payload.reason, payload.version, if_match=seen)
    return _shown(name)


@router.post("/pools/{name}/resume", response=PoolOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def resume_pool(request: HttpRequest, name: PoolName, payload: ReasonIn = NO_REASON) -> Any:
    """Resume a halted rollout"""
    actions.resume(name, actor_of(request), payload.reason, if_match=etags.if_match(request))
    return _shown(name)


@router.get("/pools/{name}/versions", response=list[PoolVersionOut], auth=needs("fleet:read"))
def list_pool_versions(request: HttpRequest, name: PoolName, limit: int = Query(20, ge=1, le=versions.KEPT)) -> Any:
    """Versions of the engines' configuration, newest first, with their changes"""
    secrets = sees_secrets(request)
    fields = ("number", "at", "actor", "reason", "proven_at", "failed")
    return [
        {field: getattr(shown.version, field) for field in fields}
        | {"config": shown.version.config if secrets else masking.shown(shown.version.config)}
        | {"present": shown.current, "changes": shown.changes}
        for shown in versions.history(find_pool(name), limit)
    ]


@router.get("/pools/{name}/events", response=list[EventOut], auth=needs("fleet:read"))
def list_pool_events(request: HttpRequest, name: PoolName, limit: int = Query(50, ge=1, le=EVENTS_MAX)) -> Any:
    """Events of the pool and its instances, newest first"""
    return list(selectors.pool_events(find_pool(name).name, limit))
