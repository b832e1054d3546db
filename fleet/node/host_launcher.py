"""Runs instances as processes of this host, each in its own session, so that they outlive their launcher."""

import signal

from django.conf import settings
from django.utils import timezone
from msgspec import structs

from fleet.kinds import KINDS
from fleet.kinds.resources import Inventory
from fleet.models import Instance
from fleet.node import engine_user, fencing, logs, process
from fleet.node.inventory import inventory, read_gpus
from fleet.node.launcher import ProcessStatus, ShutdownReport, StartedInstance
from fleet.node.ports import ports_for
from fleet.node.prepare import folder_of, peers_of, prepare, with_key, write_files
from fleet.plan.failure import failure_cause
from router.contract import installation
from router.contract.values.secret_text import masked_words


class Processes:
    def refresh(self, node: str) -> None:
        process.collect_ended()

    def fence(self, node: str) -> list[str]:
        return fencing.fence(node)

    def claim(self, instance: Instance) -> int | None:
        started = fencing.claim(instance)
        if started is None:
            for orphan in process.find(fencing.markers(instance.name, instance.node)):
                process.stop(*orphan, grace_s=0)
        return started

    def start(self, instance: Instance) -> StartedInstance:
        given = instance.started_from
        kind = KINDS[given.kind]
        ports = ports_for(instance, kind.ports, kind.port_spans(given.options()))
        prepared = with_key(prepare(given, instance, ports, peers_of(instance)), given)
        user = engine_user.current()
        write_files(prepared, folder_of(instance.name), user)
        log = logs.begin(instance.name, instance.epoch, timezone.now(), masked_words(prepared.argv))
        markers = {**fencing.markers(instance.name, instance.node), "WEIR_EPOCH": str(instance.epoch)}
        home = user.environment if user else {}
        env = process.environment(installation.CODE, markers, {**home, **prepared.environment})
        pid, pid_started = process.start(user.argv(prepared.argv) if user else prepared.argv, env, log)
        return StartedInstance(prepared, f"launched as process {pid}", pid, pid_started)

    def revoke(self, started: StartedInstance) -> None:
        process.stop(started.pid, started.pid_started, grace_s=0)

    def signal(self, instance: Instance, kill: bool) -> bool:
        if not runs(instance):
            return False
        return process.send(instance.pid, instance.pid_started, signal.SIGKILL if kill else signal.SIGTERM)

    def end_all(self, node: str, grace_s: float) -> ShutdownReport:
        rows = Instance.objects.filter(node=node)
        running = [row for row in rows.filter(pid__isnull=False) if runs(row)]
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
            for row in running:
                process.send(row.pid, row.pid_started, number)
            process.gone_within([(row.pid, row.pid_started) for row in running], limit_s)
        elsewhere = rows.exclude(pod="").values_list("name", "pod")
        why = "set WEIR_KUBERNETES_NAMESPACE to its namespace"
        left = {name: f"it is the Pod {pod}: {why}" for name, pod in elsewhere}
        return ShutdownReport(tuple(row.name for row in running), left)

    def status(self, instance: Instance) -> ProcessStatus:
        state = process.inspect(instance.pid) if instance.pid and instance.boot_id == process.boot_id() else None
        if state is None or state.letter in "ZX" or state.started != instance.pid_started:
            return ProcessStatus(False, end_text=process.how_ended(instance.pid))
        return ProcessStatus(True, "the process is suspended (SIGSTOP or a debugger)" if state.letter in "Tt" else "")

    def failure_cause(self, instance: Instance) -> str:
        return failure_cause(logs.of_latest_start(logs.tail(logs.path_of(instance.name), logs.TAIL)))

    def inventory(self) -> Inventory:
        return inventory(settings.DATA_DIR)

    def close(self) -> None:
        pass

    def live_inventory(self, known: Inventory) -> Inventory:
        """Return the inventory with the current use of the GPUs."""
        gpus, _ = read_gpus()
        return known if gpus is None else structs.replace(known, gpus=gpus)


PROCESSES = Processes()


def runs(instance: Instance) -> bool:
    """Return whether the recorded process runs: same pid, start time and boot."""
    return instance.boot_id == process.boot_id() and process.is_alive(instance.pid, instance.pid_started)
