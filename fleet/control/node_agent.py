"""What a node does for its instances: launch one, end one. Short, and safe to repeat.

A task carries the epoch that it was made for. It acts only while the record still says so, and what it launched but
could not record is ended: there are never two processes for one instance.
"""

import datetime as dt

from django.utils import timezone

from fleet import events
from fleet.control.launchers import current
from fleet.control.publish import publish_fleet
from fleet.kinds import KINDS
from fleet.models import Instance, State
from fleet.node import process
from fleet.node.launcher import Launcher, ProcessStatus, StartDeferred, StartedInstance
from fleet.node.ports import NoPort
from fleet.node.prepare import DependencyNotReady, peers_of, prepare
from fleet.plan.failure import failure_fields
from fleet.transitions import move


def start_instance(name: str, epoch: int) -> bool:
    """Launch it; False when the start has been overtaken or the launch failed (the record says why)."""
    instance = _claimed(name, epoch)
    if instance is None:
        return False
    launcher = current()
    try:
        started = launcher.claim(instance)
        return _refused(instance, started) if started is not None else _launch(instance, launcher)
    except StartDeferred as waits:
        return _waits(instance, str(waits))
    except (
        OSError,
        NoPort,
        DependencyNotReady,
        LookupError,
    ) as error:  # LookupError: scaled beyond what the options name
        return _failed(instance, f"could not be launched: {error}")


def _refused(instance: Instance, started: int) -> bool:
    """An order that came twice is dropped; a database that is behind this node (restored?) catches up with it."""
    if started > instance.epoch:
        same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.STARTING)
        reason = f"node {instance.node} has started epoch {started} of it already; the next start comes after that"
        if same.update(epoch=started, state=State.STOPPED, reason=reason, since=timezone.now()):
            events.record(instance, "refused", reason)
    return False


def _claimed(name: str, epoch: int) -> Instance | None:
    found = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.STARTING)
    return found.filter(pid=None, pod="").first()


def _launch(instance: Instance, launcher: Launcher) -> bool:
    started = launcher.start(instance) if launched(instance) else _elsewhere(instance)
    recorded = move(
        instance,
        State.LOADING,
        started.words,
        **{"pid": None, "pid_started": None, **started.fields},
        boot_id=process.boot_id(),
        url=started.made.url,
        command=started.made.argv,
        wire=started.made.wire,
        started_at=timezone.now(),
        kv_blocks=None,
        block_size=None,
    )
    if recorded:
        publish_fleet(instance.pool.name)
    elif started.fields:
        launcher.revoke(started)
    return recorded


def _elsewhere(instance: Instance) -> StartedInstance:
    """Somebody else has started it, and ends it."""
    made = prepare(instance.config, instance, {}, peers_of(instance.config))
    return StartedInstance(made, f"started elsewhere, at {made.url}")


def _waits(instance: Instance, reason: str) -> bool:
    same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.STARTING)
    same.update(reason=reason)
    return False


def _failed(instance: Instance, reason: str) -> bool:
    move(instance, State.FAILED, reason, **failure_fields(instance, timezone.now()))
    publish_fleet(instance.pool.name)
    return False


def signal_instance(name: str, epoch: int, kill: bool) -> bool:
    """Ask it to end, or end it; False when it is not there any more."""
    instance = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.STOPPING).first()
    if instance is None or not launched(instance):
        return False
    return current().signal(instance, kill)


def status_of(instance: Instance, launcher: Launcher) -> ProcessStatus:
    if not launched(instance):
        return ProcessStatus(instance.state != State.STOPPING)  # whoever started it ends it; we only stop looking
    return launcher.status(instance)


def launched(instance: Instance) -> bool:
    """Whether it is ours to start and to end."""
    kind = KINDS.get(instance.config.get("kind", instance.pool.kind))
    return kind is None or kind.launched


def in_seconds(now: dt.datetime, seconds: float) -> dt.datetime:
    return now + dt.timedelta(seconds=seconds)
