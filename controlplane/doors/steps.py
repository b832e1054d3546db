"""The steps of the control plane: their intervals, and their lanes (controlplane/base/schedule)."""

import functools
import time

from django.core.management import call_command
from django.utils import timezone

from controlplane.base.schedule.lanes import Step
from controlplane.doors.jobs import expire
from controlplane.evidence.previews import report as savings
from controlplane.live.dashboard import step as frames
from controlplane.pages.delivery_pages import report as delivery_lines
from controlplane.pages.fleet_ops import actions as pools
from controlplane.people.notices import step as notices
from controlplane.traffic.aliases import publication as aliases
from controlplane.traffic.aliases import selectors as models
from controlplane.traffic.batches import services as batches
from controlplane.traffic.deliveries.judge import step as judge
from controlplane.traffic.keys import publishing as keys
from controlplane.traffic.policies import services as policies
from controlplane.traffic.use import step as use
from fleet import tasks
from fleet.control.adapters import adapters_step
from fleet.control.autoscaler import scale_step, wake_step
from fleet.control.publish import publish_step
from fleet.control.reconciler import expire_step, reconcile_step
from fleet.discovery.sources import Sources
from fleet.discovery.step import discover_step
from fleet.observe.failover_probe import FailoverProbe
from fleet.observe.stalls import stall_step
from fleet.redis import connect


def reconcile() -> None:
    reconcile_step(timezone.now(), tasks.send, pools.roll_back_by_itself)


@functools.cache
def sources() -> Sources:
    """Return the sources; there is one set per process, used only by its lane."""
    return Sources()


def discover() -> None:
    """Discover engines and plan changes immediately; plan twice, because the first plan creates an instance and the
    second starts it."""
    if discover_step(sources(), timezone.now()):
        reconcile()
        reconcile()


def wake() -> None:
    """Wake pools, and plan twice like `discover`."""
    if wake_step(timezone.now()):
        reconcile()
        reconcile()


@functools.cache
def failover_probe() -> FailoverProbe:
    """Return the probe; there is one per process, as only its lane's thread enters its event loop."""
    return FailoverProbe()


def watch_silent() -> None:
    failover_probe().step(timezone.now())


def publish_fleet() -> None:
    try:
        publish_step()
    finally:
        expire_step(timezone.now())


def republish_keys() -> None:
    try:
        keys.republish()
    finally:
        keys.take_last_uses()


def place_adapters() -> None:
    adapters_step(timezone.now(), models.adapters(), tasks.send)


def build_frame() -> None:
    frames.step(connect(), time.time(), "worker")


def clean_up_api() -> None:
    """Delete expired idempotent answers and sessions."""
    # Imported here, because it loads the API framework, which a worker needs only once an hour.
    from controlplane.doors.api.idempotency import forget_old

    forget_old()
    call_command("clearsessions")


STEPS = {
    "fleet.reconcile": Step(reconcile, 1.0, "fleet", "starting, stopping and replacing instances"),
    "fleet.stalls": Step(lambda: stall_step(timezone.now()), 1.0, "stalls", "taking stalled instances out of routing"),
    "fleet.discover": Step(discover, 1.0, "sources", "noticing engines that others start or stop"),
    "fleet.watch_silent": Step(watch_silent, 1.0, "silent nodes", "probing the instances of silent nodes"),
    "fleet.publish": Step(publish_fleet, 2.0, "publication", "telling routers the instances"),
    "policies.republish": Step(policies.republish_missing, 2.0, "publication", "telling routers the policies"),
    "keys.republish": Step(republish_keys, 2.0, "publication", "telling routers the API keys"),
    "models.republish": Step(aliases.republish, 2.0, "publication", "telling routers the models"),
    "fleet.adapters": Step(place_adapters, 1.0, "adapters", "loading and unloading adapters"),
    "fleet.wake": Step(wake, 1.0, "autoscaling", "waking pools without instances"),
    "fleet.autoscale": Step(lambda: scale_step(timezone.now()), 5.0, "autoscaling", "autoscaling"),
    # Redis assigns each second to one builder, so that pages stay live even while no worker leads.
    "dashboard.frame": Step(build_frame, 1.0, "frames", "the figures of Live", by_leader=False),
    "deliveries.judge": Step(judge.step, 5.0, "deliveries", "judging deliveries"),
    "deliveries.report": Step(lambda: delivery_lines.report(timezone.now()), 2.0, "reports", "deliveries on Live"),
    "previews.report_savings": Step(savings.report, 10.0, "reports", "savings on Live"),
    "notices.send": Step(lambda: notices.step(timezone.now()), 2.0, "notices", "sending notices"),
    "use.gather": Step(lambda: use.step(timezone.now()), 10.0, "use", "counting what API keys use"),
    "jobs.expire": Step(expire.step, 5.0, "jobs", "ending lost jobs"),
    "notices.clean_up": Step(lambda: notices.forget_old(timezone.now()), 3600.0, "upkeep", "deleting old notices"),
    "use.clean_up": Step(use.clean_up, 3600.0, "upkeep", "summing old hours of use into days"),
    "batches.clean_up": Step(lambda: batches.forget_old(timezone.now()), 3600.0, "upkeep", "deleting old batches"),
    "api.clean_up": Step(clean_up_api, 3600.0, "upkeep", "deleting expired sessions"),
}
