"""Nodes over REST: inventory, instances, cordon and forget."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Path, Router, Status
from ninja.params.functions import Query

from controlplane.common.as_seen import etag
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import found
from controlplane.doors.api.openapi import IF_MATCH
from controlplane.doors.api.routes.fleet.fleet_schemas import NO_REASON, EventOut, NodeOut, ReasonIn
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.node_rows import NodeRow, node_rows
from controlplane.people.audit.services import actor_of
from fleet import selectors
from fleet.models import Node

EVENTS_MAX = 500
router = Router(tags=["fleet"])
NodeName = Annotated[str, Path(max_length=63, pattern="^[a-z0-9-]+$")]
_FIELDS = ("name", "hostname", "address", "last_seen", "cordoned", "draining", "because", "labels", "inventory")


def node_out(row: NodeRow) -> NodeOut:
    own = {name: getattr(row.node, name) for name in _FIELDS}
    names = [instance.name for instance in row.instances]
    return NodeOut(**own, age_s=row.age_s, etag=etag(row.node), reports=row.reports, instances=names)


def _find(name: str) -> NodeRow:
    return found(next(iter(node_rows(Node.objects.filter(name=name))), None), f"no node is named {name}")


@router.get("", response=list[NodeOut], auth=needs("fleet:read"))
def list_nodes(request: HttpRequest) -> Any:
    """Every node"""
    return [node_out(row) for row in node_rows(Node.objects.all())]


@router.get("/{name}", response=NodeOut, auth=needs("fleet:read"))
def get_node(request: HttpRequest, response: HttpResponse, name: NodeName) -> Any:
    """One node"""
    row = _find(name)
    etags.of(response, row.node)
    return node_out(row)


@router.get("/{name}/events", response=list[EventOut], auth=needs("fleet:read"))
def list_node_events(request: HttpRequest, name: NodeName, limit: int = Query(50, ge=1, le=EVENTS_MAX)) -> Any:
    """Events of the node, newest first; also of a forgotten node"""
    return list(selectors.node_events(name, limit))


@router.post("/{name}/forget", response={204: None}, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def forget_node(request: HttpRequest, name: NodeName, payload: ReasonIn = NO_REASON) -> Any:
    """Forget a node that is gone for good; refused while it reports or holds instances"""
    actions.forget_node(name, actor_of(request), payload.reason, if_match=etags.if_match(request))
    return Status(204, None)


@router.post("/{name}/{verb}", response=NodeOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def act_on_node(
    request: HttpRequest, name: NodeName, verb: Literal["cordon", "uncordon", "drain"], payload: ReasonIn = NO_REASON
) -> Any:
    """Cordon, drain or reopen the node"""
    actions.act_on_node(verb, name, actor_of(request), payload.reason, if_match=etags.if_match(request))
    return node_out(_find(name))
