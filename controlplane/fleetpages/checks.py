"""What starting the pools of a document would run, and whether this host has what it takes."""

from collections.abc import Iterable
from dataclasses import dataclass

from fleet import prerequisites
from fleet.kinds import KINDS
from fleet.models import Port
from fleet.prepare import Prepared, preview, shell_line
from fleet.prerequisites import Finding
from fleet.spec import FleetSpec, PoolSpec

HERE = "local"


@dataclass(frozen=True, slots=True)
class Start:
    pool: str
    command: str  # one line for a shell, the environment in front, secrets hidden; empty: it is not started by us
    files: dict[str, str]  # path → text that is written beforehand
    findings: tuple[Finding, ...]
    elsewhere: str = ""  # the node to look at instead of this host

    @property
    def missing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.good)


def start_of(pool: PoolSpec) -> Start:
    """Of its first instance; the others differ in ports, GPUs and folder."""
    made = preview(pool)
    return Start(pool.name, shell_line(made), made.files, ())


def starts(spec: FleetSpec, pools: Iterable[str]) -> list[Start]:
    wanted = set(pools)
    return [start_of(pool) for pool in spec.pools if pool.name in wanted]


def check(pool: PoolSpec) -> Start:
    made = preview(pool)
    elsewhere = pool.node if pool.node not in ("", HERE) else ""
    found = () if elsewhere or not KINDS[pool.kind].launched else tuple(_look(pool, made))
    return Start(pool.name, shell_line(made), made.files, found, elsewhere)


def _look(pool: PoolSpec, made: Prepared) -> list[Finding]:
    held = Port.objects.filter(instance__name=f"{pool.name}-0")
    ports = {port.use: port.number for port in held.filter(instance__pid=None)}
    return prerequisites.check(made.requires, ports)


def check_all(spec: FleetSpec) -> list[Start]:
    return [check(pool) for pool in spec.pools]
