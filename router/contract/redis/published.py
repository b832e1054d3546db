"""Values that the control plane publishes for routers: policies, fleets and the document Models. Pure."""

import hashlib
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from router.contract.net.engine_tls import PLAIN, EngineTls
from router.contract.redis.codec import OrderedValue, RedisValue

MOST_RANKS = 512
InstanceRole = Literal["prefill", "decode", "both"]
# Bounds for numbers, which JSON does not limit; pages could not show larger ones.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Dollars = Annotated[float, Meta(ge=0, le=1e9)]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]  # s
# How a router serves the split of a delivery. "": no split is published. "off": not started until weir:watch is read.
# "unwatched", "tripped", "unreadable": the live version serves all requests until a new generation.
Split = Literal["", "on", "off", "unwatched", "tripped", "unreadable"]


class StoredResponse(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:response:<name>, expires; written by routers. An instance's stored responses end with its process."""

    pool: str
    instance: str
    epoch: int
    model: str = ""  # the client's name of the model, if the engine uses another


def name_of(key_id: str, response_id: str) -> str:
    """Return the name of a response in Redis, which depends on its API key; `key_id` is empty without one."""
    return hashlib.blake2b(f"{key_id}\0{response_id}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class FullRollout(Struct, tag_field="mode", tag="full", frozen=True, kw_only=True, omit_defaults=True):
    """The live version serves all requests."""

    generation: int = 0


class CandidateVersion(Struct, frozen=True, kw_only=True):
    """Unreadable unless `sha256` is that of the document, like PolicyValue."""

    version: Count
    sha256: str
    document: dict[str, Any]


class SplitRollout(Struct, tag_field="mode", tag="split", frozen=True, kw_only=True):
    """A delivery is in progress: the candidate serves a share of the requests (router/pool/rollout.py)."""

    delivery: int
    generation: int  # raised by each change
    salt: str  # salt of the assignment, constant for the whole delivery
    share: float  # 0–1, share of the requests that the candidate decides
    shadow: float = 0.0  # 0–1, share of the requests that are decided again by the candidate
    warmup_s: float = 0.0  # requests that arrive within this time of the generation's start are not counted
    # By class: a, b, tau; a request slower than exp(a + b ln L + tau) ms is slow
    slow: dict[str, tuple[float, float, float]] = {}
    candidate: CandidateVersion


Rollout = FullRollout | SplitRollout


class PolicyValue(OrderedValue, tag=1, frozen=True, kw_only=True):
    """weir:policy:<pool>, written by web and Celery: the published version of the pool's policy.

    Unreadable unless `sha256` is that of the document (router/policy/schema/document.py).
    """

    TIME: ClassVar[str] = "published_at"

    pool: str = ""
    policy: str  # its name
    version: Count
    sha256: str
    document: dict[str, Any]
    rollout: Rollout = FullRollout()
    published_at: UnixTime | None = None


class ModelsValue(OrderedValue, tag=1, frozen=True, kw_only=True):
    """weir:models, written by web and Celery: the published version of the document Models.

    Unreadable unless `sha256` is that of the document (router/contract/models.py).
    """

    TIME: ClassVar[str] = "published_at"

    version: Count
    sha256: str
    document: dict[str, Any]
    published_at: UnixTime | None = None


class PolicyAck(RedisValue, tag=1, frozen=True, kw_only=True):
    """Channel weir:acks, sent by a router once for each version and generation that it applies. Without a pool, it is
    about the document Models."""

    router: str
    pool: str
    version: int
    at: float | None  # Unix s
    generation: int = 0  # generation of the rollout
    split: Split = ""


AS_SGLANG = "sglang:"  # prefix of a tokenizer whose prompts are rendered as SGLang does


def is_sglang(kind: str, tokenizer: str) -> bool:
    """Return whether SGLang serves the instance; an address that names no kind may name it with its tokenizer."""
    return kind == "sglang" or tokenizer.startswith(AS_SGLANG)


class KvFacts(Struct, frozen=True, omit_defaults=True):
    """The facts that the flow for an instance's connector needs (router/flows)."""

    bootstrap: str = ""  # URL of its bootstrap server
    bytes_per_token: int | float | None = None
    etcd: str = ""  # etcd address at which the worker registers
    pair: str = ""  # the only prefill instance from which a decoder pulls
    peer: str = ""  # address of that prefill instance if no fleet declares it
    shares_store: bool = False  # True: it also reads blocks that other instances write to a store
    takes_lent: bool = False  # True: its prefills can take blocks that decoders lend; other engines would wait forever


class DataParallel(Struct, frozen=True, omit_defaults=True):
    """The data-parallel ranks behind one address, each with its own KV cache."""

    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)] = 1
    first: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0  # number of the first rank; 0 unless instances share a group
    together: str = ""  # group whose ranks wait for the slowest in each step (MoE); empty: none


class PublishedInstance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance as routers see it. The fields after `matches` depend on its kind."""

    id: str
    epoch: Count  # epoch of its process, increases with each start
    url: str  # empty until the URL is known
    state: str
    routable: bool
    reason: str = ""  # reason for the state
    asleep: bool = False  # True while it sleeps: its cache is empty when it wakes
    kind: str = ""
    node: str = ""
    block_size: Count | None = None  # tokens
    kv_blocks: Count | None = None  # blocks of one rank
    matches: bool | None = None  # whether it has the declared configuration; None if unknown
    role: InstanceRole = "both"  # "prefill" never decodes, "decode" computes no long prompt
    connector: str = ""  # connector that moves KV blocks: nixl, sglang, …; empty: none
    kv: KvFacts = KvFacts()
    dp: DataParallel = DataParallel()
    events: str = ""  # base URL that serves GET /kv_event_sources, or tcp://… of an engine without it
    tokenizer: str = ""  # folder of the served model, prefixed with AS_SGLANG if SGLang serves it; or "sim"
    engine_key: str = ""  # reference of its key, never the key (router/contract/net/engine_key.py)
    tls: EngineTls = PLAIN  # used with an https:// URL
    adapters: tuple[str, ...] = ()  # LoRA adapters that the engine lists
    speed: str = ""  # instances of the same kind, GPU, parallelism and role share a speed group
    gpus: Count = 0  # GPUs that it uses or simulates
    dollars_per_hour: Dollars | None = None  # price of GPUs and KV memory; None without a GPU


# States on the way to or from zero instances
ON_THE_WAY = frozenset(("stopped", "starting", "loading", "draining", "stopping"))


class WakeRule(Struct, frozen=True, kw_only=True):
    """The pool may have no instance. Requests that arrive then wait, and wake the pool."""

    max_held: int  # requests that wait in each router
    max_wait_s: float


class FleetValue(OrderedValue, tag=1, frozen=True, kw_only=True):
    """weir:fleet:<pool>, written by Celery: the pool's instances."""

    pool: str = ""
    model: str = ""
    policy: str = ""  # policy that the fleet document declares
    at: UnixTime
    halted: str = ""  # why a configuration change was stopped
    observed: bool = False  # True if the pool is shown but gets no requests
    wake: WakeRule | None = None  # None if nothing wakes it
    slo: dict[str, float] = {}  # TTFT p90 in ms, by class
    trusted_keys: frozenset[str] = frozenset()  # names of API keys whose requests may have engine_fields.FIELDS
    salt_by_key: bool = False  # the engines cache separately for each API key
    removes_billing_line: bool = False  # True to remove Claude Code's billing line from bodies
    context_cost: float = 0.0  # see Rates (router/policy/types.py); 0 if the law is unknown
    equal_cost_tokens: float = 0.0  # see Rates; 0 if the law is unknown
    instances: tuple[PublishedInstance, ...]

    @property
    def at_zero(self) -> bool:
        """Return whether the pool wakes on demand and all its instances, if any, are on the way to or from zero."""
        return self.wake is not None and all(one.state in ON_THE_WAY for one in self.instances)
