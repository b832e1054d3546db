"""Pages of the fleet, a pool and an instance. A request by htmx receives the live part of the page."""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.common.as_seen import posted
from controlplane.common.figures import seconds
from controlplane.evidence.twin import expected_error
from controlplane.evidence.twin.pool_model import NotModelled, twin_of
from controlplane.live.dashboard.frame.tiers import tier_rows
from controlplane.live.dashboard.page import CONSTANTS
from controlplane.live.dashboard.views import asked_range, ranges
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.checks import start_of
from controlplane.pages.fleet_ops.indexes import indexes_of, live_statuses, refused_answers
from controlplane.pages.fleet_ops.node_rows import gpu_use_of, node_rows
from controlplane.pages.fleet_ops.pool_state import fleet_state, with_frame
from controlplane.pages.fleet_ops.rows import InstanceRow, find_instance, instance_rows, pool_rows
from controlplane.pages.fleet_ops.tier_saving import tier_saving
from controlplane.pages.fleet_ops.topology import rank_rows, topology
from controlplane.pages.fleet_pages.calibrations import can_be_measured, shown
from controlplane.pages.fleet_pages.lifecycle_views import reason_of
from controlplane.pages.fleet_pages.section_rows import section_rows
from controlplane.pages.fleet_pages.templatetags.instance_list import is_long
from controlplane.people.accounts.decorators import operator_action
from controlplane.people.audit.services import actor_of
from fleet import selectors, services
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch
from fleet.kinds.options.option import options_of
from fleet.kinds.options.option_field import shown as as_typed
from fleet.models import DesiredState, Instance, Node, Pool, State
from fleet.plan.state import REPLACE_AFTER_S
from fleet.snapshot import pool_spec
from fleet.spec import versions
from fleet.spec.masking import option_shown
from fleet.spec.sections import MAX_REPLICAS, update_of
from router.contract.values.fields import Field
from router.contract.values.secret_text import masked_words

LOG_LINES = 60
FIND_MAX = 80  # characters
EVENTS = 30
POOL_EVENTS = 12
VERSIONS = 8
CHARTS = {
    "kv": "KV usage",
    "running": "Running requests",
    "waiting": "Waiting requests",
    "hits": "Cache hit rate",
    "ttft": "TTFT p90",
}
WHY = {
    "profile": "its model, GPU and layout have one",
    "transferred": "nothing was fitted to or measured of its model in this layout",
    "calibrated": "a measurement of its engines comes first",
}


@dataclass(frozen=True, slots=True)
class TwinSource:
    about: str  # empty if the twin cannot compute the pool
    why: str
    expected: str = ""
    cautions: tuple[str, ...] = ()


def twin_source(pool: Pool) -> TwinSource | None:
    """Return the source; None for a pool that serves no requests."""
    kind = KINDS.get(pool.kind)
    if kind is None or not kind.serves:
        return None
    try:
        found = twin_of(pool)
    except NotModelled as error:
        return TwinSource("", str(error))
    return TwinSource(found.about, WHY[found.basis], expected_error.described(found.expected), found.cautions)


def render_part(
    request: HttpRequest, page: str, *, instances: Sequence[InstanceRow] = (), **context: object
) -> HttpResponse:
    """Render the whole page, or its live part for htmx. `instances` are all instances; ?find= narrows a long list."""
    moving = bool(request.headers.get("HX-Request"))
    template = f"fleet/_{page}.html" if moving else f"fleet/{page}.html"
    find = request.GET.get("find", "").strip()[:FIND_MAX]
    listing = {
        "moving": moving,
        "instances": instances,
        "find": find,
        "many": bool(find) or is_long(instances),
        "query": f"?{urlencode({'find': find})}" if find else "",
    }
    return render(request, template, {**context, **listing, "settings": CONSTANTS, "checked_at": timezone.now()})


def charts(request: HttpRequest, of: str, name: str, *, one_pool: bool = True) -> dict[str, object]:
    """Return the data for static/js/fleet_series.js about an instance, a pool or a node; the TTFT is that of a
    single pool."""
    return {
        "of": of,
        "name": name,
        "href": reverse("load-series"),
        "seconds": asked_range(request),
        "ranges": ranges(request),
        "titles": {key: title for key, title in CHARTS.items() if one_pool or key != "ttft"},
    }


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    pools = with_frame(pool_rows(selectors.pools()))
    return render_part(
        request,
        "fleet",
        state=fleet_state(pools),
        instances=[one for row in pools for one in row.instances],
        pools=pools,
        topology=topology(pools),
        nodes=node_rows(Node.objects.all()),
        leaving=Pool.objects.filter(removed=True),
    )


@require_GET
def pool_page(request: HttpRequest, name: str) -> HttpResponse:
    pool = Pool.objects.filter(name=name).first()
    if pool is None:
        raise Http404(f"no pool is named {name}")
    (row,) = with_frame(pool_rows([pool]))
    tiers = tier_rows(one.sample for one in row.instances)
    shown_options = options(pool)
    return render_part(
        request,
        "pool",
        charts=charts(request, "pool", name),
        instances=row.instances,
        row=row,
        max_replicas=MAX_REPLICAS,
        may_observe=pool.kind in KINDS and not KINDS[pool.kind].launched,
        tiers=tiers,
        tier_saving=tier_saving(pool, tiers),
        twin=twin_source(pool),
        replaced_after=silence_limit(pool) if pool.kind in KINDS and KINDS[pool.kind].launched else "",
        given=[one for one in shown_options if one.given],
        defaults=[one for one in shown_options if not one.given],
        start=start_of(pool_spec(pool)) if pool.kind in KINDS else None,
        sections=[one for one in section_rows(pool) if one.title != "SLO"],  # the SLO has a separate table
        versions=versions.history(pool, VERSIONS),
        events=selectors.pool_events(name, POOL_EVENTS),
    )


def silence_limit(pool: Pool) -> str:
    """Describe the time after which an instance that does not answer is killed and started again."""
    return seconds(update_of(pool.update).replace_after_s or REPLACE_AFTER_S)


@dataclass(frozen=True, slots=True)
class ShownOption:
    option: Field
    value: Any
    given: bool  # True if the document sets it


def options(pool: Pool) -> list[ShownOption]:
    if pool.kind not in KINDS:
        return []
    known = options_of(KINDS[pool.kind].spec)
    return [ShownOption(one, _shown(one, pool), one.name in pool.engine) for one in known]


def _shown(option: Field, pool: Pool) -> Any:
    value = pool.engine.get(option.name, option.default)
    return as_typed(option_shown(option.name, value)) if option.kind in {"list", "map"} and value else value


@require_GET
def instance_page(request: HttpRequest, name: str) -> HttpResponse:
    instance = find_instance(name)
    (row,) = instance_rows([instance])
    indexes = indexes_of(instance.name)
    group = selectors.group(instance)
    return render_part(
        request,
        "instance",
        charts=charts(request, "instance", name),
        row=row,
        group=group,
        instance=instance,
        command=subprocess.list2cmdline(masked_words(instance.command)),
        ports=instance.ports.order_by("number"),
        events=selectors.events(instance.name, EVENTS),
        indexes=indexes,
        ranks=rank_rows(instance.name, instance.facts.dp, row.sample, live_statuses().values()),
        tiers=tier_rows([row.sample]),
        refused=refused_answers(instance.node, row.sample, indexes),
        calibration=shown(instance),
        lines=selectors.last_log_lines(instance, LOG_LINES),
        verbs=group_verbs(row, group),
        facts=_facts(instance),
        gpu_use=gpu_use_of(instance, row.recent_sample),
        elsewhere=_runs_elsewhere(instance),
    )


def _runs_elsewhere(instance: Instance) -> bool:
    """Return whether another system has started it, in which case its process, ports and log are not Weir's."""
    kind = instance.started_from.known_kind
    return kind is not None and not kind.launched


def _facts(instance: Instance) -> tuple[tuple[str, str], ...]:
    """Return the facts that the instance's kind reports, given the options with which the instance was started."""
    given = instance.started_from
    if given.known_kind is None:
        return ()
    return given.known_kind.facts(
        given.options(), Launch(instance.name, instance.pool.model, "", {}, "", instance.ordinal)
    )


@dataclass(frozen=True, slots=True)
class InstanceAction:
    name: str
    label: str
    effect: str
    danger: bool = False


DRAIN = InstanceAction("drain", "Drain", "Stops new requests; running ones finish. The process stays.")
UNDRAIN = InstanceAction("undrain", "Undrain", "Takes requests again.")
RESTART = InstanceAction("restart", "Restart", "Drains and restarts the process; its KV cache is lost.", danger=True)
STOP = InstanceAction(
    "stop", "Stop", "Drains, then stops the process; it stays stopped. Its KV cache is lost.", danger=True
)
RESTART_ELSEWHERE = replace(RESTART, effect="Drains it, then checks it again. Its process stays: Weir does not run it.")
STOP_ELSEWHERE = replace(
    STOP, effect="Drains it and sends it nothing until it is started here. Its process stays: Weir does not run it."
)
SLEEP = InstanceAction(
    "sleep", "Sleep", "Drains, then frees the GPU's memory; the process and its weights in host memory stay."
)
WAKE = InstanceAction("wake", "Wake", "Reloads the GPU's memory, then takes requests.")
CALIBRATE = InstanceAction(
    "calibrate",
    "Calibrate",
    "Measures the engine for the twin with generated requests, for up to two minutes; others are slower meanwhile.",
)
CALIBRATE_FROM_TRAFFIC = InstanceAction(
    "calibrate-from-traffic",
    "Calibrate from traffic",
    "Fits the twin to at least 150 streamed requests that routers recorded; sends none.",
)
START = InstanceAction("start", "Start", "Starts it now, without waiting for a back-off.")


def group_verbs(row: InstanceRow, group: Iterable[Instance]) -> tuple[InstanceAction, ...]:
    """Return the actions of an instance in a group: each applies to the whole group."""
    names = ", ".join(one.name for one in group)
    if not names:
        return verbs(row)
    return tuple(
        replace(one, label=f"{one.label} group", effect=f"{names}: {one.effect}") if one.name in actions.VERBS else one
        for one in verbs(row)
    )


def verbs(row: InstanceRow) -> tuple[InstanceAction, ...]:
    """Return the actions that the instance's state allows."""
    if row.instance.desired == DesiredState.STOPPED:
        return (START,)
    restart, stop = (RESTART_ELSEWHERE, STOP_ELSEWHERE) if _runs_elsewhere(row.instance) else (RESTART, STOP)
    if row.instance.state in (State.FAILED, State.STOPPED):
        return START, stop
    if row.instance.desired == DesiredState.ASLEEP:
        return WAKE, restart, stop
    sleep = (SLEEP,) if services.can_sleep(row.instance) else ()
    measure = (CALIBRATE, CALIBRATE_FROM_TRAFFIC) if can_be_measured(row.instance) else ()
    return (UNDRAIN if row.instance.desired == DesiredState.DRAINED else DRAIN), *sleep, *measure, restart, stop


@operator_action
def act(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    if verb not in actions.VERBS:
        raise Http404(f"no such action: {verb}")
    instance = find_instance(name)
    try:
        more: dict[str, Any] = {"if_match": posted(request), "group": "group" in request.POST}
        done = actions.act(verb, instance.name, actor_of(request), reason_of(request), **more)
    except services.NotPossible as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{verb.capitalize()} of {', '.join(one.name for one in done)} requested.")
    return redirect("fleet-instance", name=name)
