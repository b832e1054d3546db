"""The `external` kind: an engine started by another system. Weir watches it and routes to it, and never starts or stops
it. Its engines are listed as URLs, or by a source that is polled (fleet/discovery).
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from fleet.kinds import servers
from fleet.kinds.kind import Kind, Launch
from fleet.kinds.kv_size import is_moe, sizes_of
from fleet.kinds.options.common_options import (
    data_parallel_size_option,
    engine_key_option,
    prefill_instances_option,
    tls_option,
)
from fleet.kinds.options.option import mapping_option, option
from fleet.kinds.serving import BOTH, ROLES, own_role
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.wire import DataParallel, KvFacts, KvWire
from router.contract.connectors import CONNECTOR_CHOICES, CONNECTORS, NIXL, NONE
from router.contract.metrics.engine_metrics import VLLM_SCRAPE
from router.contract.net.addresses import ENGINES, is_base_path, literal, refusal

METADATA_NAMES = ("metadata.google.internal", "metadata", "instance-data")
ROLE_LABEL = "llm-d.ai/role"
SOURCES = ("kubernetes", "dns", "file")
HOST = "{host}"
SECURE = "https://"
_LEGACY_IPV4 = re.compile(r"[0-9a-fx.]*[0-9a-f]")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SELECTOR = re.compile(r"[A-Za-z0-9 ,=!()._/-]{1,500}")
_DNS = re.compile(r"([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.?")
_EVENTS = re.compile(r"tcp://(\{host\}|[\w.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):([0-9]{1,5})", re.ASCII)
_MOST_PORTS = 64  # ports per address, for one engine per data-parallel rank


@dataclass(frozen=True)
class ExternalSpec:
    urls: tuple[str, ...] = option(
        (), "URLs", "One per instance, for example http://10.0.0.7:8000. One of urls, kubernetes, dns, file."
    )
    kubernetes: Mapping[str, str] = mapping_option(
        title="Kubernetes",
        help="Pods with these labels: {namespace: llm, selector: app=vllm, port: 8000}, perhaps a context.",
    )
    dns: str | None = option(
        None, "DNS name", "name:port (A and AAAA records), or _service._tcp.name (SRV records).", kind="text"
    )
    file: str | None = option(
        None, "File", "Prometheus' file_sd: a list of {targets, labels}, as JSON or YAML.", kind="text"
    )
    labels: Mapping[str, str] = mapping_option(
        title="Labels",
        help=f"Which label gives the role ({ROLE_LABEL}, unless given) and the pool: {{role: …, pool: …}}.",
    )
    roles: Mapping[str, str] = mapping_option(
        title="Roles by label", help="Values of the role's label besides prefill, decode and both: {context: prefill}."
    )
    role: str = option(BOTH, "Role", "Role of every instance.", choices=ROLES)
    prefill_instances: int = prefill_instances_option()
    connector: str = option(NONE, "Connector", "How KV blocks move between the engines.", choices=CONNECTOR_CHOICES)
    bootstraps: tuple[str, ...] = option(
        (),
        "Bootstrap URLs",
        "With the connector mooncake_p2p or sglang: one per URL, in order; or one for all, with {host} in it.",
    )
    takes_lent: bool = option(
        False,
        "Lent blocks",
        "Prefill instances take the blocks that decoders lend: vLLM with bidirectional_kv_xfer. With nixl.",
    )
    data_parallel_size: int = data_parallel_size_option(
        "Ranks behind each URL; routers choose the rank of each request."
    )
    server: str = option(
        servers.AUTO,
        "Engine",
        "vllm, sglang, trtllm, or openai: only /v1/models and latency; auto: by what it answers.",
        choices=servers.CHOICES,
    )
    kv_events: bool | None = option(
        None,
        "KV events",
        "Follow which blocks are cached; left out: where the engine says that it publishes them.",
        kind="bool",
    )
    kv_endpoint: str | None = option(
        None,
        "KV event endpoint",
        "ZMQ, where the engine does not name it: tcp://{host}:5557; {host} is the engine's.",
        kind="text",
    )
    kv_replay: str | None = option(None, "KV replay endpoint", "Replays missed events: tcp://{host}:5558.", kind="text")
    lmcache: str | None = option(
        None,
        "LMCache server",
        "If the engines share LMCache in a separate process, its HTTP address, whose figures are shown with "
        "each engine's: http://{host}:8080; {host} is the engine's.",
        kind="text",
    )
    tokenizer: str | None = option(None, "Tokenizer", "Folder of the model; for the exact prefix index.", kind="text")
    engine_key: str | None = engine_key_option(
        "Where the key is that the engines ask for: env:NAME or file:/PATH, on the host of each process that asks them."
    )
    tls: Mapping[str, str] = tls_option()


def scheme(spec: ExternalSpec) -> str:
    """Return the scheme of addresses for which a source gives none."""
    return SECURE if spec.tls else "http://"


def has_source(spec: ExternalSpec) -> bool:
    return bool(spec.kubernetes or spec.dns or spec.file)


def url(spec: ExternalSpec, launch: Launch) -> str:
    if launch.listed is not None:
        return launch.listed.url
    # A pool has no instance before its source has answered.
    return "" if has_source(spec) else spec.urls[launch.ordinal].rstrip("/")


def wire(spec: ExternalSpec, launch: Launch) -> KvWire:
    listed_role = launch.listed.role if launch.listed is not None else None
    return KvWire(
        role=listed_role or own_role(spec, launch),
        connector=spec.connector if spec.connector != NONE else "",
        kv=KvFacts(bootstrap=_bootstrap(spec, launch), takes_lent=spec.takes_lent),
        events=_events(spec, launch),
        tokenizer=launch.path(spec.tokenizer) if spec.tokenizer else "",
        dp=DataParallel(spec.data_parallel_size, together=launch.instance if _is_moe(spec, launch) else ""),
        server="" if spec.server == servers.AUTO else spec.server,
    )


def _is_moe(spec: ExternalSpec, launch: Launch) -> bool:
    return spec.data_parallel_size > 1 and is_moe(launch.path(spec.tokenizer or launch.model))


def _bootstrap(spec: ExternalSpec, launch: Launch) -> str:
    if not spec.bootstraps:
        return ""
    given = spec.bootstraps[0 if len(spec.bootstraps) == 1 else launch.ordinal]
    return given.replace(HOST, host_of(url(spec, launch)))


def _events(spec: ExternalSpec, launch: Launch) -> str:
    where = url(spec, launch)
    if spec.kv_endpoint is None or spec.kv_events is False:
        return where if spec.kv_events else ""
    return event_address(spec.kv_endpoint, spec.kv_replay, host_of(where))


def event_address(endpoint: str, replay: str | None, host: str, topic: str = "") -> str:
    """Return the event address of an engine that cannot report it, in the form that routers read
    (router/kv_events/sources.py)."""
    more = {"replay": replay.replace(HOST, host) if replay else "", "topic": topic}
    query = urlencode({name: value for name, value in more.items() if value})
    return endpoint.replace(HOST, host) + (query and f"?{query}")


def host_of(where: str) -> str:
    host = urlsplit(where).hostname or ""
    return f"[{host}]" if ":" in host else host


def refuse(spec: ExternalSpec) -> dict[str, str]:
    if spec.takes_lent and spec.connector != NIXL:
        return {"takes_lent": f"must be false unless connector is {NIXL}"}
    return _refuse_source(spec) | _refuse_events(spec) | _refuse_labels(spec) | _refuse_tls(spec) | _refuse_cache(spec)


def _refuse_cache(spec: ExternalSpec) -> dict[str, str]:
    if not spec.lmcache or is_engine_url(spec.lmcache.replace(HOST, "engine")):
        return {}
    return {"lmcache": "must be http://HOST:PORT or https://HOST:PORT; {host} stands for the engine's host"}


def cache_page(spec: Mapping[str, object], where: str) -> str:
    """Return the metrics page of the LMCache server beside an engine at this URL; empty without one."""
    given = spec.get("lmcache")
    return f"{given.replace(HOST, host_of(where)).rstrip('/')}/metrics" if isinstance(given, str) and given else ""


def _refuse_tls(spec: ExternalSpec) -> dict[str, str]:
    plain = [given for given in spec.urls if spec.tls and not given.startswith(SECURE)]
    return {"urls": f"must begin with {SECURE}, as tls is given; {plain[0][:200]} does not"} if plain else {}


def _refuse_source(spec: ExternalSpec) -> dict[str, str]:
    given = [name for name in ("urls", *SOURCES) if getattr(spec, name)]
    if len(given) > 1:
        return {given[1]: f"cannot be combined with {given[0]}; allowed: one of urls, {', '.join(SOURCES)}"}
    if has_source(spec) and spec.prefill_instances:
        return {"prefill_instances": "needs a fixed list of urls; with a source, labels tell the role"}
    if spec.kubernetes:
        return _refuse_kubernetes(spec.kubernetes)
    if spec.dns:
        return _refuse_dns(spec.dns)
    return _refuse_bootstraps(spec, 1) if spec.file else _refuse_urls(spec)


def _refuse_urls(spec: ExternalSpec) -> dict[str, str]:
    wrong = [given for given in (*spec.urls, *spec.bootstraps) if not is_engine_url(given.replace(HOST, "engine"))]
    if wrong or not spec.urls:
        rule = (
            "must be http://host:port or https://host:port, one per instance, without user info, query or "
            "link-local address; a path may follow, but not /v1"
        )
        return {"urls": f"{rule}{f'; {wrong[0][:200]} is not' if wrong else ''}"}
    return _refuse_bootstraps(spec, len(spec.urls))


def _refuse_bootstraps(spec: ExternalSpec, most: int) -> dict[str, str]:
    needed = spec.connector != NONE and CONNECTORS[spec.connector].needs_bootstrap
    one_for_all = len(spec.bootstraps) == 1 and HOST in spec.bootstraps[0]
    if needed and not one_for_all and (has_source(spec) or len(spec.bootstraps) != most):
        allowed = "one with {host} in it" if has_source(spec) else f"{most}"
        return {"bootstraps": f"must have one URL per instance with {spec.connector}; allowed: {allowed}"}
    return {}


def _refuse_kubernetes(given: Mapping[str, str]) -> dict[str, str]:
    known = ("namespace", "selector", "port", "context")
    unknown = [name for name in given if name not in known]
    if unknown:
        return {"kubernetes": f"unknown key {unknown[0][:80]}; known are {', '.join(known)}"}
    if not _NAMESPACE.fullmatch(given.get("namespace", "")):
        return {"kubernetes": "namespace must be the name of a namespace"}
    if not _SELECTOR.fullmatch(given.get("selector", "")):
        return {"kubernetes": "selector must be a label selector, for example app=vllm: without one every Pod would do"}
    if not ports_of(given.get("port", "8000")):
        return {"kubernetes": f"port must be a number from 1 to 65535, or up to {_MOST_PORTS} of them: 8000,8001"}
    return {}


def _refuse_dns(given: str) -> dict[str, str]:
    name, _, port = given.rpartition(":") if ":" in given else (given, "", "")
    if len(name) > 253 or not _DNS.fullmatch(name) or literal(name) is not None or _is_metadata(name):
        return {"dns": "must be name:port, for example engines.llm.svc:8000, or the name of SRV records"}
    if given.startswith("_") == bool(port) or (port and len(ports_of(port)) != 1):
        return {"dns": "needs a port after the name, unless the name begins with _: SRV records have the port"}
    return {}


def ports_of(text: str) -> tuple[int, ...]:
    """Return the ports of "8000" or "8000,8001"; empty if not allowed."""
    words = [word.strip() for word in text.split(",")]
    if len(words) > _MOST_PORTS or not all(word.isascii() and word.isdecimal() and len(word) <= 5 for word in words):
        return ()
    ports = tuple(dict.fromkeys(int(word) for word in words))
    return ports if all(1 <= port <= 65535 for port in ports) else ()


def _refuse_events(spec: ExternalSpec) -> dict[str, str]:
    if spec.kv_replay and not spec.kv_endpoint:
        return {"kv_replay": "needs kv_endpoint"}
    for name in ("kv_endpoint", "kv_replay"):
        given = getattr(spec, name)
        if given and not is_event_endpoint(given):
            return {name: "must be tcp://HOST:PORT; {host} stands for the engine's host"}
    return {}


def is_event_endpoint(given: str) -> bool:
    found = _EVENTS.fullmatch(given)
    return found is not None and bool(ports_of(found[2])) and not _is_metadata(found[1].strip("[]"))


def _refuse_labels(spec: ExternalSpec) -> dict[str, str]:
    unknown = [name for name in spec.labels if name not in ("role", "pool")]
    if unknown:
        return {"labels": f"unknown key {unknown[0][:80]}; known are role, pool"}
    wrong = [role for role in spec.roles.values() if role not in ROLES]
    return {"roles": f"{wrong[0][:80]} is no role; allowed: {', '.join(ROLES)}"} if wrong else {}


def is_engine_url(given: str) -> bool:
    try:
        parts = urlsplit(given)
        plain = (
            parts.scheme in ("http", "https") and parts.port != 0 and is_base_path(parts.path) and given.isprintable()
        )
    except ValueError:
        return False
    bare = "@" not in parts.netloc and "?" not in given and "#" not in given and " " not in given
    return plain and bare and bool(parts.hostname) and not _is_metadata(parts.hostname or "")


def _is_metadata(host: str) -> bool:
    """Return whether requests would be sent to metadata services of the host or its cloud. A name may resolve to them,
    so each connection is checked again (router/contract/net/outgoing.py)."""
    name = host.rstrip(".").lower()
    try:
        packed = socket.inet_aton(name) if _LEGACY_IPV4.fullmatch(name) else b""  # also written 0xa9.254.1, 2852039166
    except OSError:
        packed = b""
    address = ipaddress.IPv4Address(packed) if packed else literal(name)
    return name in METADATA_NAMES if address is None else bool(refusal(address, ENGINES))


EXTERNAL = Kind(
    name="external",
    title="Engine started elsewhere",
    spec=ExternalSpec,
    ports=(),
    command=lambda spec, launch: [],
    scrape=VLLM_SCRAPE,
    load_timeout_s=float("inf"),
    drain_timeout_s=600,
    grace_s=1,
    refuse=refuse,
    wire=wire,
    launched=False,
    url=url,
    has_source=has_source,
    connectors=tuple(CONNECTORS),
    twin_kv=lambda spec, launch: TwinKv(sizes_of(launch.path(spec.tokenizer or launch.model))),
    max_replicas=lambda spec: None if has_source(spec) else len(spec.urls),
    free_options=(*SOURCES, "labels", "roles", "engine_key", "tls", "lmcache"),
    later_options=("server", "kv_endpoint", "kv_replay", "data_parallel_size", "takes_lent"),
)
