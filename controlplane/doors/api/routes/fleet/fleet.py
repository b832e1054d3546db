"""The fleet over REST: the document, pools, instances and operations on them."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from msgspec import to_builtins
from ninja import Path, Router
from ninja.params.functions import Query

from controlplane.common.as_seen import etag
from controlplane.doors.api import etags
from controlplane.doors.api.auth import caller, check_emergency, needs
from controlplane.doors.api.openapi import IF_MATCH, YAML, answers
from controlplane.doors.api.problems import ApiProblem
from controlplane.doors.api.routes.fleet.fleet_schemas import (
    ActIn,
    AdviceOut,
    AppliedOut,
    EventOut,
    FleetOut,
    InstanceOut,
    LogOut,
    PoolOut,
)
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.rows import InstanceRow, PoolRow, find_instance, find_pool, instance_rows, pool_rows
from controlplane.people.audit.services import actor_of
from fleet import selectors, services
from fleet.models import Instance
from fleet.spec import document as documents
from fleet.spec import masking
from router.contract.values.secret_text import masked_words

router = Router(tags=["fleet"])

_YAML_TYPES = (YAML, "application/x-yaml", "text/yaml")
AS_USUAL = ActIn.model_validate({})
LOG_LINES_MAX = 1_000
EVENTS_MAX = 500
_NAME = "^[a-z0-9-]+$"
TEXT = r"^[^\x00]*$"  # PostgreSQL takes no NUL
InstanceName = Annotated[str, Path(max_length=80, pattern=_NAME, description="For example demo-0")]
PoolName = Annotated[str, Path(max_length=63, pattern=_NAME)]
_EXAMPLE = {
    "apiVersion": "weir/v1",
    "kind": "Fleet",
    "metadata": {"name": "demo"},
    "spec": {
        "pools": [
            {"name": "demo", "model": "llama-3.1-8b", "kind": "sim", "replicas": 8, "engine": {"gpu": "h100_sxm"}}
        ]
    },
}
DOCUMENT_BODY = {
    "required": True,
    "content": {kind: {"schema": {"type": "object"}, "example": _EXAMPLE} for kind in ("application/json", YAML)},
}


_POOL_FIELDS = (
    "name", "model", "policy", "kind", "replicas", "node", "engine", "update", "placement", "schedule", "autoscale",
    "slo", "access", "mode",
    "halted", "ephemeral_owner",
)  # fmt: skip


def pool_out(row: PoolRow, secrets: bool) -> PoolOut:
    """Return the pool's representation. With `secrets`, it includes the values of environment variables."""
    pool = {name: getattr(row.pool, name) for name in _POOL_FIELDS}
    return PoolOut(
        etag=etag(row.pool),
        **(pool if secrets else masking.shown(pool)),
        replicas_now=row.desired.replicas,
        because=row.desired.because,
        source=row.source,
        changing=not row.desired.proven,
        waits=row.waits_for_pools or row.unplaceable,
        at_zero=row.at_zero,
        advice=AdviceOut.from_orm(row.advice) if row.advice else None,
        ready=row.ready,
        wanted=row.desired_count,
        counts=dict(row.counts),
        matches_desired=not row.differences,
        differences=list(row.differences),
    )


_INSTANCE_FIELDS = (
    "ordinal", "desired", "state", "since", "epoch", "node", "pid", "pod", "url", "restarts",
    "gpus", "retired", "asleep", "failures", "next_start_at", "started_at", "listed",
)  # fmt: skip


def instance_out(row: InstanceRow) -> InstanceOut:
    instance = row.instance
    return InstanceOut(
        **{name: getattr(instance, name) for name in _INSTANCE_FIELDS},
        id=instance.name,
        etag=etag(instance),
        pool=instance.pool.name,
        command=masked_words(instance.command),
        routable=row.routable,
        server=instance.facts.server,
        version=instance.facts.version,
        status=row.status,
        reason=row.reason,
        ports={port.use: port.number for port in instance.ports.all()},
        sample=None if row.sample is None else to_builtins(row.sample),
    )


def sees_secrets(request: HttpRequest) -> bool:
    """Return whether the caller also sees the values of environment variables."""
    return "fleet:write" in caller(request).scopes


@router.get("/fleet", response=FleetOut, openapi_extra=answers(YAML), auth=needs("fleet:read"))
def get_fleet(request: HttpRequest, response: HttpResponse) -> Any:
    """The fleet document, as YAML with Accept: application/yaml; secrets are hidden without fleet:write"""
    secrets = sees_secrets(request)
    etags.put(response, services.digest())
    if not wants_yaml(request):
        return services.export(secrets)
    answer = HttpResponse(services.export_yaml(secrets), content_type=f"{YAML}; charset=utf-8")
    answer.headers["ETag"] = response.headers["ETag"]
    return answer


def wants_yaml(request: HttpRequest) -> bool:
    accept = request.headers.get("Accept", "")
    return any(kind in accept for kind in _YAML_TYPES) and "application/json" not in accept


@router.put(
    "/fleet", response=AppliedOut, openapi_extra={"requestBody": DOCUMENT_BODY, **IF_MATCH}, auth=needs("fleet:write")
)
def put_fleet(
    request: HttpRequest,
    response: HttpResponse,
    dry_run: bool = False,
    prune: bool = Query(False, description="Remove pools that the document does not name"),
    reason: str = Query("", max_length=300, pattern=TEXT, description="Reason, kept in the audit log"),
    emergency: str = Query(
        "", max_length=300, pattern=TEXT, description="Why the rules of policies are bypassed; requires the scope admin"
    ),
) -> Any:
    """Apply a fleet document (YAML or JSON); with dry_run only return the changes"""
    check_emergency(request, emergency)
    document, seen = read_document(request), etags.if_match(request)
    wanted: dict[str, Any] = {
        "reason": reason,
        "dry_run": dry_run,
        "prune": prune,
        "expected": seen,
        "emergency": emergency,
    }
    applied = actions.apply(document, actor_of(request), **wanted)
    etags.put(response, services.digest())
    return applied


def read_document(request: HttpRequest) -> Any:
    kind = (request.content_type or "").lower()
    try:
        text = request.body.decode()
    except UnicodeDecodeError as error:
        raise documents.UnreadableDocument(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if kind in _YAML_TYPES:
        return documents.load(text)
    if kind == "application/json" or kind.endswith("+json"):
        return documents.load_json(text)
    raise ApiProblem(415, detail=f"send {YAML} or application/json, not {kind or 'a body without Content-Type'}")


@router.get("/pools", response=list[PoolOut], auth=needs("fleet:read"))
def list_pools(
    request: HttpRequest, ephemeral: bool = Query(False, description="Include the pools of experiments")
) -> Any:
    """Every pool"""
    secrets = sees_secrets(request)
    return [pool_out(row, secrets) for row in pool_rows(selectors.pools(include_ephemeral=ephemeral))]


@router.get("/pools/{name}", response=PoolOut, auth=needs("fleet:read"))
def get_pool(request: HttpRequest, response: HttpResponse, name: PoolName) -> Any:
    """One pool"""
    secrets = sees_secrets(request)
    return pool_out(pool_rows([etags.of(response, find_pool(name))])[0], secrets)


@router.get("/instances", response=list[InstanceOut], auth=needs("fleet:read"))
def list_instances(
    request: HttpRequest,
    pool: str = Query("", max_length=63, pattern="^[a-z0-9-]*$", description="Filter by pool"),
) -> Any:
    """Instances with their latest samples"""
    found = Instance.objects.filter(pool__name=pool) if pool else selectors.instances()
    rows = found.select_related("pool").prefetch_related("ports").order_by("pool__name", "ordinal")
    return [instance_out(row) for row in instance_rows(rows)]


@router.get("/instances/{name}", response=InstanceOut, auth=needs("fleet:read"))
def get_instance(request: HttpRequest, response: HttpResponse, name: InstanceName) -> Any:
    """One instance"""
    return instance_out(instance_rows([etags.of(response, find_instance(name))])[0])


@router.get("/instances/{name}/logs", response=LogOut, auth=needs("fleet:read"))
def get_instance_logs(request: HttpRequest, name: InstanceName, lines: int = Query(100, ge=1, le=LOG_LINES_MAX)) -> Any:
    """The last lines of the engine's log"""
    return {"instance": name, "lines": selectors.last_log_lines(find_instance(name), lines)}


@router.get("/instances/{name}/events", response=list[EventOut], auth=needs("fleet:read"))
def list_instance_events(request: HttpRequest, name: InstanceName, limit: int = Query(50, ge=1, le=EVENTS_MAX)) -> Any:
    """Events of the instance, newest first"""
    return list(selectors.events(find_instance(name).name, limit))


@router.post("/instances/{name}/{verb}", response=InstanceOut, openapi_extra=IF_MATCH, auth=needs("fleet:write"))
def act_on_instance(
    request: HttpRequest,
    name: InstanceName,
    verb: Literal["drain", "undrain", "restart", "stop", "start", "sleep", "wake"],
    payload: ActIn = AS_USUAL,
) -> Any:
    """Drain, undrain, restart, stop or start an instance, put it to sleep or wake it"""
    more = {"level": payload.level} if verb == "sleep" else {}
    seen = etags.if_match(request)
    actions.act(verb, name, actor_of(request), payload.reason, if_match=seen, group=payload.group, **more)
    return instance_out(instance_rows([find_instance(name)])[0])
