"""The `external` kind: an engine started elsewhere. Weir watches it and routes to it, and never starts or stops it."""

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleet.kinds.common_options import data_parallel_size_option, prefill_instances_option
from fleet.kinds.kind import Kind, Launch
from fleet.kinds.kv_size import is_moe, sizes_of
from fleet.kinds.option import option
from fleet.kinds.serving import BOTH, ROLES, role_of
from fleet.kinds.twin_kv import TwinKv
from fleet.kinds.wire import DataParallel, KvFacts, Wire
from router.contract.connectors import CONNECTOR_CHOICES, CONNECTORS, NONE
from router.contract.engine_metrics import VLLM_SCRAPE
from router.contract.net.addresses import ENGINES, literal, refusal

METADATA_NAMES = ("metadata.google.internal", "metadata", "instance-data")
_LEGACY_IPV4 = re.compile(r"[0-9a-fx.]*[0-9a-f]")


@dataclass(frozen=True)
class ExternalSpec:
    urls: tuple[str, ...] = option(
        (), title="URLs", help="One per instance, for example http://10.0.0.7:8000; required."
    )
    role: str = option(BOTH, title="Role", choices=ROLES, help="Role of every instance.")
    prefill_instances: int = prefill_instances_option()
    connector: str = option(
        NONE, title="Connector", choices=CONNECTOR_CHOICES, help="How KV blocks move between the engines."
    )
    bootstraps: tuple[str, ...] = option(
        (), title="Bootstrap URLs", help="With the connector mooncake_p2p: one per URL, in the same order."
    )
    data_parallel_size: int = data_parallel_size_option(
        "Ranks behind each URL; routers choose the rank of each request."
    )
    kv_events: bool = option(
        False, title="KV events", help="The engines publish KV events and answer GET /kv_event_sources."
    )
    tokenizer: str | None = option(
        None, title="Tokenizer", kind="text", help="Folder of the model; for the exact prefix index."
    )


def url(spec: ExternalSpec, launch: Launch) -> str:
    return spec.urls[launch.ordinal].rstrip("/")


def wire(spec: ExternalSpec, launch: Launch) -> Wire:
    return Wire(
        role=role_of(spec.role, spec.prefill_instances, launch.ordinal),
        connector=spec.connector if spec.connector != NONE else "",
        kv=KvFacts(bootstrap=spec.bootstraps[launch.ordinal] if spec.bootstraps else ""),
        events=url(spec, launch) if spec.kv_events else "",
        tokenizer=launch.path(spec.tokenizer) if spec.tokenizer else "",
        dp=DataParallel(spec.data_parallel_size, together=launch.instance if _is_moe(spec, launch) else ""),
    )


def _is_moe(spec: ExternalSpec, launch: Launch) -> bool:
    return spec.data_parallel_size > 1 and is_moe(launch.path(spec.tokenizer or launch.model))


def refuse(spec: ExternalSpec) -> dict[str, str]:
    wrong = [given for given in (*spec.urls, *spec.bootstraps) if not _is_url(given)]
    if wrong or not spec.urls:
        rule = "must be http://host:port, one per instance, without user info, query or link-local address"
        return {"urls": f"{rule}{f'; {wrong[0][:200]} is not' if wrong else ''}"}
    needs_bootstrap = spec.connector != NONE and CONNECTORS[spec.connector].needs_bootstrap
    if needs_bootstrap and len(spec.bootstraps) != len(spec.urls):
        return {"bootstraps": f"must have one URL per instance with {spec.connector}; allowed: {len(spec.urls)}"}
    return {}


def _is_url(given: str) -> bool:
    try:
        parts = urlsplit(given)
        plain = parts.scheme == "http" and parts.port != 0 and parts.path in {"", "/"} and given.isprintable()
    except ValueError:
        return False
    bare = "@" not in parts.netloc and "?" not in given and "#" not in given and " " not in given
    return plain and bare and bool(parts.hostname) and not _is_metadata(parts.hostname or "")


def _is_metadata(host: str) -> bool:
    """Whether requests would go to the services of the host or its cloud. A name may resolve to them: each connection
    is checked again (router/contract/net/outgoing.py)."""
    name = host.rstrip(".").lower()
    try:
        packed = socket.inet_aton(name) if _LEGACY_IPV4.fullmatch(name) else b""  # also 0xa9.254.1 and 2852039166
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
    connectors=tuple(CONNECTORS),
    twin_kv=lambda spec, launch: TwinKv(sizes_of(launch.path(spec.tokenizer or launch.model))),
    max_replicas=lambda spec: len(spec.urls),
)
