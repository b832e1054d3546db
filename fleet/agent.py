"""What a node does for its instances: launch one process, signal one process. Short, and safe to repeat.

A task carries the epoch that it was made for. It acts only while the record still says so, and what it launched but
could not record is killed: there are never two processes for one instance.
"""

import datetime as dt
import signal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from fleet import events, fencing, launch, logs
from fleet.failure import failure_fields
from fleet.kinds import KINDS
from fleet.models import Instance, State
from fleet.ports import NoPort, ports_for
from fleet.prepare import NotReady, Prepared, folder_of, peers_of, prepare, write_files
from fleet.publishing import publish_fleet
from fleet.transitions import move


def start_instance(name: str, epoch: int) -> bool:
    """Launch it; False when the start has been overtaken or the launch failed (the record says why)."""
    instance = _claimed(name, epoch)
    if instance is None:
        return False
    started = fencing.claim(instance)
    if started is not None:
        return _refused(instance, started)
    for orphan in launch.find(fencing.markers(name, instance.node)):
        launch.stop(*orphan, grace_s=0)
    try:
        launched = _launch(instance)
    except (OSError, NoPort, NotReady, LookupError) as error:  # LookupError: scaled beyond what the options name
        reason = f"could not be launched: {error}"
        return _failed(instance, reason)
    return launched


def _refused(instance: Instance, started: int) -> bool:
    """An order that came twice is dropped; a database that is behind this node (restored?) catches up with it."""
    if started > instance.epoch:
        same = Instance.objects.filter(pk=instance.pk, epoch=instance.epoch, state=State.STARTING)
        reason = f"node {instance.node} has started epoch {started} of it already; the next start comes after that"
        if same.update(epoch=started, state=State.STOPPED, reason=reason, since=timezone.now()):
            events.record(instance, "refused", reason)
    return False


def _claimed(name: str, epoch: int) -> Instance | None:
    found = Instance.objects.select_related("pool").filter(name=name, epoch=epoch, state=State.STARTING, pid=None)
    return found.first()


def _launch(instance: Instance) -> bool:
    kind = KINDS[instance.config["kind"]]
    ports = ports_for(instance, kind.ports)
    made = prepare(instance.config, instance, ports, peers_of(instance.config))
    process = _start(instance, made) if kind.launched else {"pid": None, "pid_started": None}
    recorded = move(
        instance,
        State.LOADING,
        f"launched as process {process['pid']}" if kind.launched else f"started elsewhere, at {made.url}",
        **process,
        boot_id=launch.boot_id(),
        url=made.url,
        command=made.argv,
        wire=made.wire,
        started_at=timezone.now(),
        kv_blocks=None,
        block_size=None,
    )
    if not recorded:
        launch.stop(process["pid"], process["pid_started"], grace_s=0)
        return False
    publish_fleet(instance.pool.name)
    return True


def _start(instance: Instance, made: Prepared) -> dict[str, Any]:
    write_files(made, folder_of(instance.name))
    log = _open_log(instance, made.argv)
    markers = {**fencing.markers(instance.name, instance.node), "WEIR_EPOCH": str(instance.epoch)}
    env = launch.environment(settings.BASE_DIR, markers, made.environment)
    pid, pid_started = launch.start(made.argv, env, log)
    return {"pid": pid, "pid_started": pid_started}


def _open_log(instance: Instance, argv: list[str]) -> Path:
    log = logs.prepare(instance.name)
    with log.open("a") as file:
        file.write(logs.header(instance.epoch, timezone.now(), launch.command_line(argv)))
    return log


def _failed(instance: Instance, reason: str) -> bool:
    move(instance, State.FAILED, reason, **failure_fields(instance, timezone.now()))
    publish_fleet(instance.pool.name)
    return False


def signal_instance(name: str, epoch: int, kill: bool) -> bool:
    """SIGTERM, or SIGKILL; False when there is no such process any more."""
    instance = Instance.objects.filter(name=name, epoch=epoch, state=State.STOPPING).first()
    if instance is None or not is_running(instance):
        return False
    return launch.send(instance.pid, instance.pid_started, signal.SIGKILL if kill else signal.SIGTERM)


def is_running(instance: Instance) -> bool:
    """Whether the recorded process is there: same pid, same start time, same boot."""
    if not launched(instance):
        return instance.state != State.STOPPING  # whoever started it ends it; we only stop looking
    return instance.boot_id == launch.boot_id() and launch.is_alive(instance.pid, instance.pid_started)


def launched(instance: Instance) -> bool:
    """Whether its process is ours to start and to end."""
    kind = KINDS.get(instance.config.get("kind", instance.pool.kind))
    return kind is None or kind.launched


def in_seconds(now: dt.datetime, seconds: float) -> dt.datetime:
    return now + dt.timedelta(seconds=seconds)
