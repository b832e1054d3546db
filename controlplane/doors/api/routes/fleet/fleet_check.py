"""Checks before a change: the starts of a fleet document, missing prerequisites, and engines that run elsewhere."""

from typing import Any

from django.http import HttpRequest
from ninja import Router

from controlplane.doors.api.auth import needs
from controlplane.doors.api.routes.fleet.fleet import DOCUMENT_BODY, read_document
from controlplane.doors.api.routes.fleet.fleet_schemas import LookIn, StartOut
from controlplane.pages.fleet_ops import adoption, checks
from controlplane.pages.fleet_ops.adoption import FoundFleet
from controlplane.people.audit.services import actor_of
from fleet import services

router = Router(tags=["fleet"])


@router.post(
    "/fleet/check", response=list[StartOut], openapi_extra={"requestBody": DOCUMENT_BODY}, auth=needs("fleet:write")
)
def check_fleet(request: HttpRequest) -> Any:
    """Check a fleet document: what its pools would start and what this host lacks; changes nothing"""
    return [checks.check(pool) for pool in services.read_fleet(read_document(request)).pools]


@router.post("/fleet/discover", response=FoundFleet, auth=needs("fleet:write"))
def discover_engines(request: HttpRequest, payload: LookIn) -> Any:
    """Inspect engines that another system runs, given options of the kind `external`; changes nothing"""
    return adoption.look(payload.engine, payload.pool, actor_of(request))
