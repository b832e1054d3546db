"""What the control plane publishes for routers: policies and fleets. Pure."""

from typing import Any, Literal

from msgspec import Struct, field

from router.contract.redis.codec import RedisValue

InstanceRole = Literal["prefill", "decode", "both"]


class PolicyValue(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:policy:<pool>, written by web and Celery: the published version of the pool's policy.

    Unreadable unless `sha256` is that of the document (router/policy/schema/document.py).
    """

    pool: str = ""
    policy: str  # its name
    version: int
    sha256: str
    document: dict[str, Any]
    rollout: dict[str, str] = field(default_factory=lambda: {"mode": "full"})
    published_at: float | None = None  # Unix s


class PolicyAck(RedisValue, tag=1, frozen=True, kw_only=True):
    """Channel weir:acks, sent by a router once for each policy version that it puts into force."""

    router: str
    pool: str
    version: int
    at: float | None  # Unix s


class PublishedInstance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One instance as routers get it. The last five depend on its kind."""

    id: str
    epoch: int  # of its process: another start has another one
    url: str  # empty: it has none yet
    state: str
    routable: bool
    reason: str = ""  # of its state
    kind: str = ""
    node: str = ""
    block_size: int | None = None  # tokens
    kv_blocks: int | None = None
    matches: bool | None = None  # the declared configuration; None: not known
    role: InstanceRole = "both"  # "prefill" never decodes, "decode" computes no long prompt
    connector: str = ""  # that moves KV blocks: nixl, mooncake_store, mooncake_p2p, neuron; empty: none
    kv: dict[str, Any] = {}  # what the connector's flow needs (router/flows); bytes_per_token where it is known
    events: str = ""  # base URL that serves GET /kv_event_sources
    tokenizer: str = ""  # folder of the served model, or "sim"


class FleetValue(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:fleet:<pool>, written by Celery: the pool's instances."""

    pool: str = ""
    model: str = ""
    policy: str = ""  # as declared
    at: float  # Unix s
    halted: str = ""  # why a change of its configuration stopped
    instances: tuple[PublishedInstance, ...]
