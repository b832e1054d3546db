"""The checks of `manage.py doctor`: each returns one line, with advice if something is wrong."""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.base.process import private_files
from controlplane.base.schedule import reports
from controlplane.base.schedule.lease import lead
from controlplane.doors.up.plan import Options
from controlplane.doors.up.preflight import ROOM_MB
from controlplane.pages.fleet_ops import adoption
from controlplane.pages.fleet_ops.checks import StartPreview, check
from controlplane.pages.fleet_ops.indexes import live_statuses
from fleet import services
from fleet.discovery.answer import SourceAway
from fleet.kinds.external import EXTERNAL
from fleet.node import engine_user, prerequisites
from fleet.observe.lacking import CACHE_REPORT, PROMPT_DETAILS
from fleet.redis import connect
from fleet.spec import allow_lists
from fleet.spec.fleet_spec import PoolSpec
from router.contract import ranks
from router.contract.values import secret_text

FILES_WANTED = 4096  # sockets: one per open page and engine, two per request through a router
SECRET = ("KEY", "PASSWORD", "TOKEN", "SECRET")


@dataclass(frozen=True)
class DoctorFinding:
    subject: str
    good: bool
    text: str
    advice: str = ""  # set if the check fails


def masked(name: str, value: str) -> str:
    """Return the value of a setting without secrets and without passwords in URLs."""
    if any(word in name for word in SECRET):
        return "(set)" if value else ""
    return secret_text.masked(value)


def environment(documented: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that are set, masked; an undocumented one that starts with WEIR_ is marked."""
    known = {name for name in documented if name in os.environ}
    strange = {name for name in os.environ if name.startswith("WEIR_")} - set(documented)
    strange = {name for name in strange if name.removesuffix("_FILE") not in documented}
    shown = {name: masked(name, os.environ[name]) for name in sorted(known)}
    return shown | {name: "(no such setting; see docs/settings.md)" for name in sorted(strange)}


def data_folder() -> DoctorFinding:
    folder = Path(settings.DATA_DIR)
    if not os.access(folder, os.W_OK):
        return DoctorFinding(
            "data folder", False, f"{folder} cannot be written", "change its owner or set WEIR_DATA_DIR"
        )
    free = shutil.disk_usage(folder).free // 1_000_000
    text = f"{folder}, {free} MB free"
    return DoctorFinding("data folder", free >= ROOM_MB, text, f"free at least {ROOM_MB} MB")


def file_modes() -> DoctorFinding:
    opened = private_files.readable_by_others(Path(settings.DATA_DIR))
    text = f"other users may open {private_files.describe(opened)}" if opened else "for this user only"
    return DoctorFinding("file modes", not opened, text, f"chmod -R go= {settings.DATA_DIR}")


def database() -> DoctorFinding:
    engine = connection.vendor
    try:
        executor = MigrationExecutor(connection)
        behind = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        return DoctorFinding("database", False, f"{engine}: {error}", "check DATABASE_URL and that the server runs")
    text = f"{engine}, {len(behind)} migrations to run" if behind else f"{engine}, up to date"
    return DoctorFinding("database", not behind, text, "manage.py migrate (manage.py up does it)")


def redis_server() -> DoctorFinding:
    url = masked("REDIS_URL", settings.REDIS_URL)
    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=1)
        version = client.info("server").get("redis_version", "?")
    except (redis.RedisError, ValueError) as error:
        return DoctorFinding("Redis", False, f"{url}: {error}", "start `make run` (it starts one), or check REDIS_URL")
    return DoctorFinding("Redis", True, f"{url}, version {version}")


def control_workers() -> DoctorFinding:
    """Report which worker leads, which stand by, and which steps are late."""
    try:
        there, steps, held = reports.workers(), reports.read(connect()), lead()
    except (redis.RedisError, DatabaseError):
        return DoctorFinding("control", True, "not known: `database` and `Redis` say why")
    if not there:
        return DoctorFinding(
            "control", False, "no control worker runs: nothing is started or repaired", "manage.py serve control"
        )
    leader = held.holder if held is not None and held.holder in there else ""
    others = ", ".join(name for name in there if name != leader)
    text = f"{leader or 'nobody'} leads" + (f", {others} stands by" if others else "")
    late = [
        f"{step.what} is late{step.error and f' ({step.error})'}"
        for step in steps.values()
        if step.is_late(time.time())
    ]
    return DoctorFinding(
        "control", bool(leader) and not late, "; ".join((text, *late)), "see the log of the worker that leads"
    )


def ports() -> DoctorFinding:
    taken = [port for port in Options().listens if _answers(port)]
    text = f"in use: {', '.join(map(str, taken))}" if taken else "8000 and 8080 are free"
    return DoctorFinding(
        "ports", not taken, text, "unless Weir itself uses them: --web-port and --router-port of manage.py up"
    )


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def open_files() -> DoctorFinding:
    return DoctorFinding(**asdict(prerequisites.open_files(FILES_WANTED)))


def chromium() -> DoctorFinding:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )
    advice = "only for `make test-browser` and `make screenshots`: apt-get install chromium"
    return DoctorFinding("Chromium", bool(found), found or "not found", advice)


def kubernetes() -> list[DoctorFinding]:
    """Check a Kubernetes node: the API server answers and grants the rights that it needs."""
    namespace = settings.KUBERNETES_NAMESPACE
    if not namespace:
        return []
    from fleet.kubernetes.api import KubernetesApi, KubernetesError  # takes half a second to load

    try:
        api = KubernetesApi(namespace, settings.KUBERNETES_CONTEXT)
        version, missing = api.version(), api.missing_rights()
        api.close()
    except KubernetesError as error:
        return [
            DoctorFinding("Kubernetes", False, str(error), "check KUBECONFIG, and docs/kubernetes.md for the rights")
        ]
    text = f"{api.server}, {version}, namespace {namespace}"
    text += f", not allowed: {', '.join(missing)}" if missing else ""
    return [DoctorFinding("Kubernetes", not missing, text, "grant the role in docs/kubernetes.md")]


def operators() -> DoctorFinding:
    """Report what an operator can do on this host with a fleet document."""
    unset = [
        f"WEIR_ALLOWED_{name.upper()}" for name, listed in asdict(allow_lists.configured()).items() if listed is None
    ]
    if not unset:
        return DoctorFinding("operators", True, "programs, folders, variables and arguments of engines are listed")
    text = f"an operator can run programs of their choice on this host (not set: {', '.join(unset)})"
    return DoctorFinding("operators", True, text)


def engines_user() -> DoctorFinding:
    try:
        user = engine_user.current()
    except engine_user.UnusableUser as error:
        return DoctorFinding("engine user", False, str(error), "engines do not start; see docs/security.md")
    if user is None:
        return DoctorFinding("engine user", True, "engines run as this user and can read the data folder")
    return DoctorFinding("engine user", True, f"engines run as {user.name}, without access to the data folder")


def engines() -> list[DoctorFinding]:
    """Return the missing requirements of each pool on this host."""
    try:
        pools = services.current_spec().pools
        found = [check(pool) for pool in pools]
    except DatabaseError:
        return []  # `database` reports it.
    return [*map(_of_pool, found), *disks_without_master(pools), *without_exact_index(pools), *unconfirmed()]


def without_exact_index(pools: Iterable[PoolSpec]) -> list[DoctorFinding]:
    """Find adopted engines without the option that an exact index needs, in pools that name a tokenizer."""
    found = []
    for pool in pools:
        if pool.kind == EXTERNAL.name and pool.engine.get("tokenizer"):
            try:
                lacking = adoption.lacking(pool.engine, pool.name)
            except SourceAway:  # its pool reports it
                continue
            found += [_lacks(pool.name, flags, urls) for flags, urls in lacking.items()]
    return found


def unconfirmed() -> list[DoctorFinding]:
    """Find engines whose answers do not report cached tokens. vLLM does not announce whether it reports them, so
    routers learn it from the first answers."""
    named = {
        ranks.instance_of(endpoint)
        for router in live_statuses().values()
        for endpoint, known in router.indexes.items()
        if PROMPT_DETAILS in known.why
    }
    text = "no exact prefix index: its answers do not say what was cached"
    advice = f"start it with {PROMPT_DETAILS} (vLLM) or {CACHE_REPORT} (SGLang)"
    return [DoctorFinding(f"instance {name}", False, text, advice) for name in sorted(named)]


def _lacks(pool: str, flags: str, urls: Sequence[str]) -> DoctorFinding:
    more = f" and {len(urls) - 3} more" if len(urls) > 3 else ""
    text = f"no exact prefix index of {', '.join(urls[:3])}{more}"
    return DoctorFinding(f"pool {pool}", False, text, f"needed: {flags}")


def disks_without_master(pools: Iterable[PoolSpec]) -> list[DoctorFinding]:
    """Find disks of Mooncake stores that stay empty because their master offers no SSD tier to the clients."""
    named = {pool.name: pool for pool in pools}
    return [
        DoctorFinding(
            f"pool {pool.name}",
            False,
            f"its SSD tier stays empty: engine.ssd of the master's pool {master.name} is false",
            f"set engine.ssd of the pool {master.name} to true",
        )
        for pool in named.values()
        if pool.kind == "mooncake-client" and pool.engine.get("ssd")
        if (master := named.get(str(pool.engine.get("master")))) is not None and not master.engine.get("ssd")
    ]


def _of_pool(start: StartPreview) -> DoctorFinding:
    subject = f"pool {start.pool}"
    if start.elsewhere:
        return DoctorFinding(subject, True, f"runs on {start.elsewhere}: run doctor there")
    text = "; ".join(f"{one.subject}: {one.text}" for one in start.missing)
    advice = "; ".join(dict.fromkeys(one.advice for one in start.missing))
    return DoctorFinding(subject, not start.missing, text or "nothing is missing", advice)


CHECKS: tuple[Callable[[], DoctorFinding], ...] = (
    data_folder,
    file_modes,
    database,
    redis_server,
    control_workers,
    ports,
    open_files,
    operators,
    engines_user,
    chromium,
)
