"""Deliveries over REST, through the same services as the pages."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import check_emergency, needs
from controlplane.doors.api.etags import page
from controlplane.doors.api.openapi import IF_MATCH, IF_NONE_MATCH, Before, Number
from controlplane.doors.api.problems import errors
from controlplane.doors.api.routes.traffic.delivery_schemas import (
    ActReason,
    ApproveIn,
    DeliverDocumentIn,
    DeliverIn,
    DeliveryOut,
    DocumentDeliveryOut,
    ExtendIn,
    FreezeChange,
    FreezeIn,
    FreezeOut,
    LookOut,
    ProposedOut,
    RequiredReason,
    RulesIn,
    RulesOut,
)
from controlplane.doors.api.unread import Body
from controlplane.people.audit.services import actor_of
from controlplane.traffic.deliveries import repeatable, selectors, services
from controlplane.traffic.deliveries.models import Delivery, Freeze
from controlplane.traffic.deliveries.timing import freezing
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import NothingToPublish
from controlplane.traffic.policies.models import Policy
from router.contract.values.reading import read_value

router = Router(tags=["deliveries"])

WAIT_MAX_S = 60
WAIT_STEP_S = 0.5
WAITERS_MAX = 20  # each holds a thread and a database connection; further ones are answered at once
_waiters = threading.BoundedSemaphore(WAITERS_MAX)


@router.post(
    "/policies/{name}/draft/deliver",
    response={201: ProposedOut},
    openapi_extra=IF_MATCH,
    by_alias=True,
    auth=needs("policy:publish"),
)
def deliver_draft(request: HttpRequest, response: HttpResponse, name: str, payload: DeliverIn) -> Any:
    """Propose the draft as the candidate of a delivery"""
    check_emergency(request, payload.emergency)
    policy = policies.policy(name)
    made = services.propose(
        policy,
        repeatable.usual_plan(policy) if payload.plan is None else payload.plan,
        actor_of(request),
        payload.reason,
        if_match=etags.if_match(request),
        again=payload.again,
        emergency=payload.emergency,
    )
    return Status(201, etags.of(response, made))


@router.post(
    "/policies/{name}/deliveries",
    response={200: DocumentDeliveryOut, 201: DocumentDeliveryOut, **errors(409)},
    openapi_extra=IF_MATCH,
    by_alias=True,
    auth=needs("policy:write", "policy:publish"),
)
def deliver_document(request: HttpRequest, response: HttpResponse, name: str, payload: DeliverDocumentIn) -> Any:
    """Propose a document without a draft. 200 if it is live, was delivered or is already being delivered, and for a dry
    run
    """
    check_emergency(request, payload.emergency)
    policy, given = policies.policy(name), payload.dict(exclude={"plan", "pools", "start"})
    given["if_match"] = etags.if_match(request)
    try:
        made = repeatable.deliver_document(policy, plan=_plan(policy, payload), actor=actor_of(request), **given)
    except NothingToPublish:
        return Status(200, {"live": policies.live_version(policy).number})
    etags.put(response, made.delivery.etag)
    return Status(201 if made.is_new and not payload.dry_run else 200, {"delivery": made.delivery})


def _plan(policy: Policy, payload: DeliverDocumentIn) -> Any:
    """Return the requested plan, or the usual one without a request."""
    changes = payload.dict(include={"pools", "start"}, exclude_none=True)
    if payload.plan is None:
        return repeatable.usual_plan(policy, changes) if changes else None
    return {**payload.plan, **changes}


@router.get("/policies/{name}/deliveries", response=list[DeliveryOut], auth=needs("policy:read"))
def list_deliveries(
    request: HttpRequest, name: str, limit: int = Query(20, ge=1, le=100), before: Before = None
) -> Any:
    """Deliveries of a policy, newest first"""
    rows = selectors.deliveries(policies.policy(name)).prefetch_related("approvals")
    return page(rows, before, limit)


@router.get(
    "/deliveries/{delivery_id}",
    response={200: DeliveryOut, 304: None},
    openapi_extra=IF_NONE_MATCH,
    auth=needs("policy:read"),
)
def get_delivery(
    request: HttpRequest,
    response: HttpResponse,
    delivery_id: Number,
    wait: int = Query(0, ge=0, le=WAIT_MAX_S, description="Seconds to wait for another ETag; then 304"),
) -> Any:
    """One delivery; with If-None-Match and wait, as soon as it changes"""
    row, seen = selectors.delivery(delivery_id), etags.if_none_match(request)
    if row.etag == seen and _changes_within(row, wait):
        row = selectors.delivery(delivery_id)
    if row.etag == seen:
        etags.put(response, row.etag)
        return Status(304, None)
    return etags.of(response, row)


def _changes_within(row: Delivery, seconds: float) -> bool:
    if not seconds or not _waiters.acquire(blocking=False):
        return False
    try:
        end = time.monotonic() + seconds
        same = Delivery.objects.filter(pk=row.pk, revision=row.revision)
        while same.exists():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(WAIT_STEP_S, left))
        return True
    finally:
        _waiters.release()


@router.get("/deliveries/{delivery_id}/looks", response=list[LookOut], auth=needs("policy:read"))
def list_looks(
    request: HttpRequest, delivery_id: Number, limit: int = Query(50, ge=1, le=200), before: Before = None
) -> Any:
    """The judge's looks of the last 30 days, newest first"""
    return page(selectors.delivery(delivery_id).looks.all(), before, limit)


# Actions of people on a delivery

_act = partial(router.post, response=DeliveryOut, openapi_extra=IF_MATCH)


@_act("/deliveries/{delivery_id}/approve", auth=needs("policy:approve"))
def approve_delivery(
    request: HttpRequest, response: HttpResponse, delivery_id: Number, payload: ApproveIn | None = None
) -> Any:
    """Approve exactly this document, plan and base; not by who saved the draft or proposed it. With `emergency` an
    open delivery bypasses the rules"""
    row, seen = selectors.delivery(delivery_id), etags.if_match(request)
    if payload is not None and payload.emergency:
        check_emergency(request, payload.emergency)
        return etags.of(response, services.go_without(row, actor_of(request), payload.emergency, if_match=seen))
    comment = payload.comment if payload else ""
    return etags.of(response, services.approve(row, actor_of(request), comment, if_match=seen))


@_act("/deliveries/{delivery_id}/extend", auth=needs("policy:publish"))
def extend_delivery(request: HttpRequest, response: HttpResponse, delivery_id: Number, payload: ExtendIn) -> Any:
    """Add pairs of blocks to a switchback, which continues with them if it is paused; earlier counts are kept"""
    extend = partial(services.extend, pairs=payload.pairs)
    return _done(extend, request, response, delivery_id, payload.reason)


def _done(service: Any, request: HttpRequest, response: HttpResponse, delivery_id: int, reason: str) -> Any:
    row = selectors.delivery(delivery_id)
    return etags.of(response, service(row, actor_of(request), reason, if_match=etags.if_match(request)))


def _add_action(service: Callable[..., Delivery], scope: str, body: type[Body], summary: str) -> None:
    """Add an action that takes only a reason, named after its service."""
    usual: Any = ActReason.model_validate({}) if body is ActReason else ...

    def act(request: HttpRequest, response: HttpResponse, delivery_id: Number, payload: Any = usual) -> Any:
        return _done(service, request, response, delivery_id, payload.reason)

    act.__name__, act.__doc__ = f"{service.__name__}_delivery", summary
    act.__annotations__["payload"] = body
    _act(f"/deliveries/{{delivery_id}}/{service.__name__}", auth=needs(scope))(act)


WITHDRAW = "Turn the candidate of a delivery that has not started back into a draft; only for its proposer"
RESUME = "Restart the paused step with new counts; a switchback keeps its complete pairs of blocks"
ABORT = "Abort: live decides every request again within a second; after promotion the old version is live again"
_add_action(services.reject, "policy:approve", RequiredReason, "Reject a proposed delivery")
_add_action(services.withdraw, "policy:publish", ActReason, WITHDRAW)
_add_action(services.start, "policy:publish", ActReason, "Start a delivery that is ready")
_add_action(services.pause, "policy:abort", ActReason, "Let live decide every request until someone resumes")
_add_action(services.resume, "policy:publish", RequiredReason, RESUME)
_add_action(services.advance, "policy:publish", RequiredReason, "Advance to the next step, whatever the guards say")
_add_action(services.abort, "policy:abort", ActReason, ABORT)


# Rules and freezes


@router.get("/policies/{name}/delivery-rules", response=RulesOut, auth=needs("policy:read"))
def get_delivery_rules(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """Who may go live without a delivery, how many approvals a plan needs, and what it has to contain"""
    return etags.of(response, policies.policy(name))


@router.put("/policies/{name}/delivery-rules", response=RulesOut, openapi_extra=IF_MATCH, auth=needs("freeze:write"))
def set_delivery_rules(request: HttpRequest, response: HttpResponse, name: str, payload: RulesIn) -> Any:
    """Set the delivery rules of a policy"""
    given = payload.dict() | {"if_match": etags.if_match(request)}
    return etags.of(response, services.set_rules(policies.policy(name), actor_of(request), **given))


@router.get("/freezes", response=list[FreezeOut], auth=needs("policy:read"))
def list_freezes(request: HttpRequest) -> Any:
    """Times in which nothing starts, advances or goes live"""
    return Freeze.objects.filter(removed_at=None)


@router.post("/freezes", response={201: FreezeOut}, auth=needs("freeze:write"))
def add_freeze(request: HttpRequest, payload: FreezeIn) -> Any:
    """Add a freeze"""
    return Status(201, freezing.add_freeze(read_value(payload.dict(), FreezeRule), actor_of(request)))


@router.get("/freezes/{freeze_id}", response=FreezeOut, auth=needs("policy:read"))
def get_freeze(request: HttpRequest, response: HttpResponse, freeze_id: Number) -> Any:
    """One freeze"""
    return etags.of(response, freezing.freeze(freeze_id))


@router.patch("/freezes/{freeze_id}", response=FreezeOut, openapi_extra=IF_MATCH, auth=needs("freeze:write"))
def change_freeze(request: HttpRequest, response: HttpResponse, freeze_id: Number, payload: FreezeChange) -> Any:
    """Change the given fields of a freeze"""
    changes = {name: value for name, value in payload.dict(exclude_unset=True).items() if value is not None}
    row, seen = freezing.freeze(freeze_id), etags.if_match(request)
    return etags.of(response, freezing.change_freeze(row, changes, actor_of(request), if_match=seen))


@router.delete("/freezes/{freeze_id}", response={204: None}, openapi_extra=IF_MATCH, auth=needs("freeze:write"))
def remove_freeze(request: HttpRequest, freeze_id: Number) -> Any:
    """Remove a freeze"""
    freezing.remove_freeze(freezing.freeze(freeze_id), actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)
