"""The command line, environment and files of one start, as its kind creates them.
Starts and previews share this; a preview shows names instead of ports that are not allocated yet.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from django.conf import settings

from fleet.kinds import KINDS
from fleet.kinds.engine_config import EngineConfig
from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.wire import KvWire
from fleet.models import Instance, Port, State
from fleet.node import engine_user
from fleet.node.engine_user import EngineUser
from fleet.node.ports import in_pod
from fleet.spec.fleet_spec import PoolSpec, config
from fleet.spec.masking import pool_shown
from router.contract.net import engine_key


class DependencyNotReady(Exception):
    """A needed pool has no ready instance."""


class PairNotStarted(Exception):
    """The other instance of the pair has never started, but its address is needed."""


@dataclass(frozen=True, slots=True)
class PreparedStart:
    argv: list[str]
    environment: dict[str, str]  # variables set by the kind, without inherited ones
    files: dict[str, str]  # path → text
    url: str
    wire: KvWire
    requires: tuple[Requirement, ...]
    volume: str = ""  # folder of its KV tier on disk
    metrics_folder: str = ""  # folder emptied at each start


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """The values of a command line that depend on where the engine runs."""

    host: str  # address to listen on
    python: str  # interpreter with Weir's modules
    base: str  # Weir's folder
    folder: str  # folder of the instance
    gpus: tuple[str, ...] = ()  # GPUs of the engine; empty: all visible ones


def this_host(instance: Instance) -> LaunchSite:
    gpus = tuple(str(gpu) for gpu in instance.gpus)
    folder = str(folder_of(instance.name))
    return LaunchSite(settings.NODE_ADDRESS, sys.executable, str(settings.BASE_DIR), folder, gpus)


def folder_of(instance_name: str) -> Path:
    """Return the folder for the instance's configuration files, and for its output unless the document names another
    folder.
    """
    return (engine_user.base() if settings.ENGINE_USER else Path(settings.DATA_DIR) / "instances") / instance_name


def prepare(
    given: EngineConfig,
    instance: Instance,
    ports: Mapping[str, int],
    peers: Mapping[str, str],
    where: LaunchSite | None = None,
) -> PreparedStart:
    kind, options = KINDS[given.kind], given.options()
    wanted = _launch(given.model, instance, ports, peers, where or this_host(instance))
    url = f"http://{wanted.host}:{ports['http']}" if kind.launched else kind.url(options, wanted)
    return PreparedStart(
        argv=kind.command(options, wanted),
        environment=kind.environment(options, wanted),
        files={f"{wanted.folder}/{file}": text for file, text in kind.files(options, wanted).items()},
        url=url,
        wire=kind.wire(options, wanted),
        requires=kind.requires(options, wanted),
        volume=kind.volume(options, wanted),
        metrics_folder=kind.metrics_folder(options, wanted),
    )


def with_key(prepared: PreparedStart, given: EngineConfig) -> PreparedStart:
    """Add the engine's own key to its environment rather than to its command line, which others can read. The result is
    used only for the start; it is neither stored nor shown. Raise EngineKeyMissing.
    """
    reference = str(given.engine.get(engine_key.OPTION) or "")
    if not reference:
        return prepared
    found = {KINDS[given.kind].key_variable: engine_key.text(reference)}
    return replace(prepared, environment=found | prepared.environment)


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
        listed=instance.listing,
    )


def volume_of(instance: Instance) -> str:
    """Return the folder of the instance's KV tier on this host's disk; empty if it has none."""
    if instance.pod:
        return ""  # not on this host
    given = instance.started_from
    if given.known_kind is None:
        return ""
    anywhere = dict.fromkeys(given.known_kind.ports, 0)  # the folder does not depend on the ports
    return given.known_kind.volume(given.options(), _launch("", instance, anywhere, {}, this_host(instance)))


def peers_of(instance: Instance) -> dict[str, str]:
    """Return, by name, the addresses of the services of needed pools and of the paired instance. Raise
    DependencyNotReady if a pool has no address yet, PairNotStarted if the instance has none.
    """
    given = instance.started_from
    kind, spec = KINDS[given.kind], given.options()
    peers = {pool: _service(pool) for pool in kind.needs(spec)}
    other = kind.pair(spec, instance.ordinal)
    if other is not None:
        name = f"{instance.pool.name}-{other}"
        peers[name] = _address(name, kind)
    return peers


def _address(name: str, kind: Kind) -> str:
    """Return the address of a started instance, whether or not it is ready; the instance keeps its ports."""
    row = Instance.objects.filter(name=name).exclude(url="").select_related("pool").first()
    port = _port(row, kind.pair_port) if row is not None else None
    if row is None or port is None:
        raise PairNotStarted(f"waits for {name}, the other instance of its pair, to be started")
    return f"{address_of(row)}:{port}"


def _service(pool: str) -> str:
    rows = Instance.objects.filter(pool__name=pool, state=State.READY).select_related("pool").order_by("ordinal")
    for row in rows:
        port = _port(row, KINDS[row.pool.kind].service)
        if port is not None:
            return f"{address_of(row)}:{port}"
    raise DependencyNotReady(f"the pool {pool}, which it needs, has no ready instance")


def _port(row: Instance, use: str) -> int | None:
    if row.pod:
        kind = KINDS[row.pool.kind]
        return in_pod(kind.ports, kind.port_spans(row.started_from.options())).get(use)
    return row.ports.filter(use=use).values_list("number", flat=True).first()


def address_of(row: Instance) -> str:
    """Return the host of the instance's URL."""
    return urlsplit(row.url).hostname or settings.NODE_ADDRESS


def write_files(prepared: PreparedStart, folder: Path, user: EngineUser | None = None) -> None:
    """Write the files, readable only by the engine's user, and create the folders for the instance's KV tier and
    metrics.
    """
    if user is None:
        _write_files(prepared, folder)
        return
    engine_user.make_folder(user, folder)
    if prepared.volume:
        engine_user.make_volume(user, prepared.volume)
    if prepared.metrics_folder:
        engine_user.make_empty(user, prepared.metrics_folder)
    for path, text in prepared.files.items():
        engine_user.write(user, path, text)


def _write_files(prepared: PreparedStart, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if prepared.volume:
        Path(prepared.volume).mkdir(parents=True, exist_ok=True, mode=0o700)
    if prepared.metrics_folder:
        shutil.rmtree(prepared.metrics_folder, ignore_errors=True)
        Path(prepared.metrics_folder).mkdir(exist_ok=True, mode=0o700)
    for path, text in prepared.files.items():
        file = Path(path)
        file.write_text(text)
        file.chmod(0o600)


def known_peers(given: EngineConfig) -> dict[str, str]:
    """Return the addresses of `peers_of` for a preview; unknown addresses are names in angle brackets."""
    return {pool: _known(pool) for pool in KINDS[given.kind].needs(given.options())}


def preview(pool: PoolSpec, ordinal: int = 0) -> PreparedStart:
    """Preview the next start of that instance, without secrets; unknown values are names in angle brackets."""
    pool = pool_shown(pool)
    kind, name = KINDS[pool.kind], f"{pool.name}-{ordinal}"
    instance = Instance.objects.filter(name=name).first() or Instance(name=name, ordinal=ordinal)
    held = dict(Port.objects.filter(instance__name=name).values_list("use", "number"))
    ports = {use: held.get(use, f"<{use} port>") for use in kind.ports}
    return prepare(config(pool), instance, cast("dict[str, int]", ports), known_peers(config(pool)))


def _known(pool: str) -> str:
    try:
        return _service(pool)
    except DependencyNotReady:
        return f"<address of {pool}>"


def shell_line(prepared: PreparedStart) -> str:
    """Return a shell command: the environment, then the command line."""
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(prepared.environment.items())]
    return " ".join([*env, shlex.join(prepared.argv)]) if prepared.argv else ""
