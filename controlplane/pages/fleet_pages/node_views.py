"""Pages of the nodes, and actions on them."""

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.base.schedule.workers import control_workers
from controlplane.common.as_seen import posted
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.node_rows import NodeRow, node_rows, simulated_use
from controlplane.pages.fleet_ops.rows import instance_rows
from controlplane.pages.fleet_pages.lifecycle_views import reason_of
from controlplane.pages.fleet_pages.views import InstanceAction, charts, render_part
from controlplane.people.accounts.decorators import operator_action
from controlplane.people.audit.services import actor_of
from fleet import selectors
from fleet.control import forget as forgetting
from fleet.models import Node
from fleet.services import NotPossible

EVENTS = 50

CORDON = InstanceAction("cordon", "Cordon", "Starts no new instances here; running ones stay.")
UNCORDON = InstanceAction("uncordon", "Open", "Allows new instances again.")
DRAIN = InstanceAction("drain", "Drain", "Moves instances to other nodes the pool allows.", danger=True)


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    return render_part(
        request,
        "nodes",
        rows=node_rows(Node.objects.all()),
        workers=control_workers(),
        events=selectors.events_of_nodes(EVENTS),
    )


@require_GET
def node_page(request: HttpRequest, name: str) -> HttpResponse:
    row = _find(name)
    instances = instance_rows(row.instances)
    return render_part(
        request,
        "node",
        charts=charts(request, "node", name, one_pool=len({one.pool_id for one in row.instances}) == 1),
        row=row,
        instances=instances,
        simulated_gpus=simulated_use(each.recent_sample for each in instances),
        verbs=_verbs(row.node),
        events=selectors.node_events(name, EVENTS),
        not_forgettable="" if row.reports else forgetting.why_not(row.node, timezone.now()),
    )


def _find(name: str) -> NodeRow:
    found = node_rows(Node.objects.filter(name=name))
    if not found:
        raise Http404(f"no node is named {name}")
    return found[0]


def _verbs(node: Node) -> tuple[InstanceAction, ...]:
    if node.draining:
        return (UNCORDON,)
    return (UNCORDON, DRAIN) if node.cordoned else (CORDON, DRAIN)


@operator_action
def act(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    if verb not in actions.NODE_VERBS:
        raise Http404(f"no such action: {verb}")
    _find(name)
    try:
        actions.act_on_node(verb, name, actor_of(request), reason_of(request), if_match=posted(request))
        messages.success(request, f"{verb.capitalize()} of {name} requested.")
    except NotPossible as error:
        messages.error(request, str(error))
    return redirect("fleet-node", name=name)


@operator_action
def forget(request: HttpRequest, name: str) -> HttpResponse:
    _find(name)
    if request.POST.get("confirm", "").strip() != name:
        messages.error(request, f"Nothing was done: type {name} to confirm.")
        return redirect("fleet-node", name=name)
    try:
        actions.forget_node(name, actor_of(request), reason_of(request), if_match=posted(request))
    except NotPossible as error:
        messages.error(request, str(error))
        return redirect("fleet-node", name=name)
    messages.success(request, f"Node {name} is forgotten. If it reports again, it is a new node.")
    return redirect("fleet-nodes")
