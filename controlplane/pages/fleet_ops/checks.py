"""Previews the start of instances, and checks this host for it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fleet.kinds import KINDS
from fleet.kubernetes.preview import PodPreview, preview_pod
from fleet.models import Port
from fleet.node import prerequisites
from fleet.node.prepare import PreparedStart, preview, shell_line
from fleet.node.prerequisites import Prerequisite
from fleet.spec.fleet_spec import PoolSpec
from router.contract.net import engine_key

HERE = "local"


@dataclass(frozen=True, slots=True)
class StartPreview:
    pool: str
    command: str = ""  # shell command without secrets; empty if Weir does not start the instance
    files: dict[str, str] = field(default_factory=dict)  # path → text
    findings: tuple[Prerequisite, ...] = ()
    elsewhere: str = ""  # name of the node, if not this host
    pod: PodPreview | None = None  # set on Kubernetes; `command` is then its container's

    @property
    def missing(self) -> tuple[Prerequisite, ...]:
        return tuple(finding for finding in self.findings if not finding.good)


def start_of(pool: PoolSpec) -> StartPreview:
    """Preview the start of the first instance; other instances differ only in ports, GPUs and folder."""
    return _as_pod(pool) or _as_process(pool, preview(pool))


def check(pool: PoolSpec) -> StartPreview:
    pod = _as_pod(pool)
    if pod is not None:
        return pod
    prepared = preview(pool)
    elsewhere = pool.node if pool.node not in ("", HERE) else ""
    found = () if elsewhere or not KINDS[pool.kind].launched else tuple(_look(pool, prepared))
    return replace(_as_process(pool, prepared), findings=found, elsewhere=elsewhere)


def _as_process(pool: PoolSpec, prepared: PreparedStart) -> StartPreview:
    return StartPreview(pool.name, shell_line(prepared), prepared.files)


def _as_pod(pool: PoolSpec) -> StartPreview | None:
    pod = preview_pod(pool) if KINDS[pool.kind].launched else None
    return None if pod is None else StartPreview(pool.name, pod.command, elsewhere=pod.node, pod=pod)


def _look(pool: PoolSpec, prepared: PreparedStart) -> list[Prerequisite]:
    held = Port.objects.filter(instance__name=f"{pool.name}-0")
    ports = {port.use: port.number for port in held.filter(instance__pid=None)}
    return [*prerequisites.check(prepared.requires, ports), *_key(pool)]


def _key(pool: PoolSpec) -> Iterator[Prerequisite]:
    """Check the key with which the pool's engines are started, without showing the key."""
    if reference := str(pool.engine.get(engine_key.OPTION) or ""):
        why = engine_key.trouble(reference)
        advice = "set the variable, or write the file, on each host that asks the engine"
        yield Prerequisite(f"engine key {reference}", not why, why or "can be read", advice)
