"""Carries out orders to a node: launches or ends an instance. Repeating an order is safe. An order is void unless its
epoch is current. If a launched process cannot be recorded, it is ended, so an instance never has two processes.
"""

import datetime as dt
import os

from django.utils import timezone

from fleet import events
from fleet.control.launchers import current
from fleet.control.publish import publish_fleet
from fleet.events import move
from fleet.kinds import KINDS
from fleet.models import Instance, State
from fleet.node import process
from fleet.node.launcher import Launcher, LaunchFailed, ProcessStatus, StartDeferred, StartedInstance
from fleet.node.ports import NoPort
from fleet.node.prepare import DependencyNotReady, PairNotStarted, peers_of, prepare
from fleet.plan.failure import failure_fields
from fleet.spec import allow_lists


def start_instance(name: str, epoch: int) -> bool:
    """Start the instance. Return False if the order is void or the launch failed; the record has the reason."""
    instance = _claimed(name, epoch)
    if instance is None:
        return False
    launcher = current()
    try:
        started = launcher.claim(instance)
        return _refused(instance, started) if started is not None else _launch(instance, launcher)
    except (StartDeferred, PairNotStarted) as deferred:
        return _deferred(instance, str(deferred))
    except (OSError, NoPort, DependencyNotReady, LookupError) as error:  # LookupError: more replicas than GPUs or URLs
        return _failed(instance, f"could not be launched: {error}")


def _refused(instance: Instance, started: int) -> bool:
    """Drop a repeated order. If the database is older than this node, as after a restore, adopt the node's epoch."""
    if started > instance.epoch:
        same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.STARTING)
        reason = f"node {instance.node} has already started epoch {started} of it; the next start continues from there"
        if same.update(epoch=started, state=State.STOPPED, reason=reason, since=timezone.now()):
            events.record(instance, "refused", reason)
    return False


def _claimed(name: str, epoch: int) -> Instance | None:
    found = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.STARTING)
    return found.filter(pid=None, pod="").first()


def _launch(instance: Instance, launcher: Launcher) -> bool:
    _check_allowed(instance)
    started = launcher.start(instance) if launched(instance) else _elsewhere(instance)
    try:
        recorded = move(
            instance,
            State.LOADING,
            started.text,
            pid=started.pid,
            pid_started=started.pid_started,
            pod=started.pod,
            boot_id=process.boot_id(),
            url=started.prepared.url,
            command=started.prepared.argv,
            wire=started.prepared.wire.stored(),
            started_at=timezone.now(),
            kv_blocks=None,
            block_size=None,
        )
    except BaseException:  # the database is unreachable or its disk is full
        _revoke(started, launcher)
        raise
    if recorded:
        publish_fleet(instance.pool.name)
    else:
        _revoke(started, launcher)
    return recorded


def _revoke(started: StartedInstance, launcher: Launcher) -> None:
    if started.pid is not None or started.pod:
        launcher.revoke(started)


def _check_allowed(instance: Instance) -> None:
    """Check this node's allow-lists, which may be narrower than those of the host that applied the document."""
    given, lists = instance.started_from, allow_lists.configured()
    found = allow_lists.refusals(
        lists, KINDS[given.kind], given.model, given.engine, instance.pool.name, os.path.realpath
    )
    if found:
        raise LaunchFailed("; ".join(map(str, found)))


def _elsewhere(instance: Instance) -> StartedInstance:
    """Return what `launcher.start` would return, for an instance that Weir neither starts nor stops."""
    prepared = prepare(instance.started_from, instance, {}, peers_of(instance))
    return StartedInstance(prepared, f"started elsewhere, at {prepared.url}")


def _deferred(instance: Instance, reason: str) -> bool:
    same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.STARTING)
    same.update(reason=reason)
    return False


def _failed(instance: Instance, reason: str) -> bool:
    move(instance, State.FAILED, reason, **failure_fields(instance, timezone.now()))
    publish_fleet(instance.pool.name)
    return False


def signal_instance(name: str, epoch: int, kill: bool) -> bool:
    """Send SIGTERM or SIGKILL. Return False if the process has already ended."""
    instance = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.STOPPING).first()
    if instance is None or not launched(instance):
        return False
    return current().signal(instance, kill)


def status_of(instance: Instance, launcher: Launcher) -> ProcessStatus:
    if not launched(instance):
        held = instance.listing.held if instance.listing is not None else ""
        # Weir does not end such an instance; it only stops probing it.
        return ProcessStatus(instance.state != State.STOPPING, suspended_why=held, waits_for=held)
    return launcher.status(instance)


def launched(instance: Instance) -> bool:
    """Return whether Weir starts and stops the instance."""
    kind = instance.started_from.known_kind
    return kind is None or kind.launched


def in_seconds(now: dt.datetime, seconds: float) -> dt.datetime:
    return now + dt.timedelta(seconds=seconds)
