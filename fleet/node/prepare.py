"""What starting one instance consists of: its command line, environment and files, as the kind makes them.

The same for a start and for showing it beforehand; then ports that nobody holds yet are named instead of numbered.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from django.conf import settings

from fleet.kinds import KINDS
from fleet.kinds.kind import Launch, Requirement
from fleet.kinds.option import build
from fleet.models import Instance, Port, State
from fleet.node.ports import in_pod
from fleet.spec.fleet_spec import PoolSpec, config
from fleet.spec.masking import masked


class DependencyNotReady(Exception):
    """A pool that this one needs has no instance ready; the message names it."""


@dataclass(frozen=True, slots=True)
class PreparedStart:
    argv: list[str]
    environment: dict[str, str]  # what the kind sets, without what the process inherits
    files: dict[str, str]  # path → text
    url: str
    wire: dict[str, Any]
    requires: tuple[Requirement, ...]
    volume: str = ""  # folder of its KV tier on disk


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """What a command line takes from the place where it will run."""

    host: str  # address that the engine listens on
    python: str  # interpreter with Weir's own modules
    base: str  # Weir's folder there
    folder: str  # the instance's own there
    gpus: tuple[str, ...] = ()  # to be told to the engine; empty: it has those that it sees


def this_host(instance: Instance) -> LaunchSite:
    gpus = tuple(str(gpu) for gpu in instance.gpus)
    folder = str(folder_of(instance.name))
    return LaunchSite(settings.NODE_ADDRESS, sys.executable, str(settings.BASE_DIR), folder, gpus)


def folder_of(instance_name: str) -> Path:
    """The instance's own: its configuration files, and what it writes when the document names no other folder."""
    return Path(settings.DATA_DIR) / "instances" / instance_name


def prepare(
    given: Mapping[str, Any],
    instance: Instance,
    ports: Mapping[str, int],
    peers: Mapping[str, str],
    where: LaunchSite | None = None,
) -> PreparedStart:
    """Of a kind, a model and options (`fleet.spec.config`), to run on this host or elsewhere."""
    kind = KINDS[given["kind"]]
    options = build(kind.spec, given["engine"])
    wanted = _launch(given["model"], instance, ports, peers, where or this_host(instance))
    url = f"http://{wanted.host}:{ports['http']}" if kind.launched else kind.url(options, wanted)
    return PreparedStart(
        argv=kind.command(options, wanted),
        environment=kind.environment(options, wanted),
        files={f"{wanted.folder}/{file}": text for file, text in kind.files(options, wanted).items()},
        url=url,
        wire=kind.wire(options, wanted),
        requires=kind.requires(options, wanted),
        volume=kind.volume(options, wanted),
    )


def _launch(
    model: str, instance: Instance, ports: Mapping[str, int], peers: Mapping[str, str], where: LaunchSite
) -> Launch:
    return Launch(
        instance=instance.name,
        model=model,
        host=where.host,
        ports=ports,
        python=where.python,
        ordinal=instance.ordinal,
        folder=where.folder,
        base=where.base,
        peers=peers,
        gpus=where.gpus,
    )


def volume_of(instance: Instance) -> str:
    """The folder of its KV tier on disk, on this host; empty when it has none."""
    if instance.pod:
        return ""  # its disk is elsewhere
    kind = KINDS.get(instance.config.get("kind", ""))
    if kind is None:
        return ""  # started by a version that kept no configuration, or knew another kind
    anywhere = dict.fromkeys(kind.ports, 0)  # ports have no say in it
    return kind.volume(
        build(kind.spec, instance.config["engine"]), _launch("", instance, anywhere, {}, this_host(instance))
    )


def peers_of(given: Mapping[str, Any]) -> dict[str, str]:
    """Pool that it needs → address of that pool's service. NotReady when there is none yet."""
    kind = KINDS[given["kind"]]
    return {pool: _service(pool) for pool in kind.needs(build(kind.spec, given["engine"]))}


def _service(pool: str) -> str:
    rows = Instance.objects.filter(pool__name=pool, state=State.READY).select_related("pool").order_by("ordinal")
    for row in rows:
        port = _service_port(row)
        if port is not None:
            return f"{address_of(row)}:{port}"
    raise DependencyNotReady(f"pool {pool}, which it needs, has no instance ready")


def _service_port(row: Instance) -> int | None:
    kind = KINDS[row.pool.kind]
    if row.pod:
        return in_pod(kind.ports).get(kind.service)
    return row.ports.filter(use=kind.service).values_list("number", flat=True).first()


def address_of(row: Instance) -> str:
    """The host under which its node is reached, as its URL has it."""
    return urlsplit(row.url).hostname or settings.NODE_ADDRESS


def write_files(prepared: PreparedStart, folder: Path) -> None:
    """Into the instance's folder, for our own eyes; the folder of its KV tier must be there as well."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if prepared.volume:
        Path(prepared.volume).mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, text in prepared.files.items():
        file = Path(path)
        file.write_text(text)
        file.chmod(0o600)


def known_peers(given: Mapping[str, Any]) -> dict[str, str]:
    """As `peers_of`, to show: what has no address yet is named in angle brackets."""
    kind = KINDS[given["kind"]]
    return {pool: _known(pool) for pool in kind.needs(build(kind.spec, given["engine"]))}


def preview(pool: PoolSpec, ordinal: int = 0) -> PreparedStart:
    """The next start of that instance, secrets hidden; what is only known then is named in angle brackets."""
    kind, name = KINDS[pool.kind], f"{pool.name}-{ordinal}"
    instance = Instance.objects.filter(name=name).first() or Instance(name=name, ordinal=ordinal)
    held = dict(Port.objects.filter(instance__name=name).values_list("use", "number"))
    ports = {use: held.get(use, f"<{use} port>") for use in kind.ports}
    made = prepare(config(pool), instance, cast("dict[str, int]", ports), known_peers(config(pool)))
    return replace(made, environment=masked(made.environment))


def _known(pool: str) -> str:
    try:
        return _service(pool)
    except DependencyNotReady:
        return f"<address of {pool}>"


def shell_line(prepared: PreparedStart) -> str:
    """To be read, and to be pasted: the environment in front of the command line."""
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(prepared.environment.items())]
    return " ".join([*env, shlex.join(prepared.argv)]) if prepared.argv else ""
