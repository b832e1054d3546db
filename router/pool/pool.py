"""A pool: its policy, its instances, and what was learned about prompts and sessions."""

from collections.abc import Callable, Mapping, Sequence
from random import random

from router.contract.pools import is_ephemeral
from router.contract.redis.codec import Unreadable
from router.contract.redis.published import FleetValue, PolicyValue, PublishedInstance
from router.contract.redis.staleness import SAMPLE_OFFLINE_S
from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import CLASSES, UNKNOWN, Decision, Policy, RequestClass, RoutingRequest
from router.pool.admission_queue import AdmissionQueue
from router.pool.affinity import Affinity
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.pool.kv_event_state import KvEventState
from router.prefix.approximate import PrefixIndex
from router.prefix.chain import CHUNK_BYTES, PromptChains
from router.tokenize.ratio import TokenRatio


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.model = ""
        self.aliases: tuple[str, ...] = ()  # further models that every instance serves
        self.policy: Policy = document.parse(document.default())
        self.policy_name = ""
        self.version = 0  # 0: the built-in default
        self.acked_at: float | None = None  # s, Unix
        self.fleet_at: float | None = None  # s, Unix
        self.endpoints: dict[str, Endpoint] = {}
        self.published: Sequence[PublishedInstance] = ()
        self.amend: Callable[[Sequence[PublishedInstance]], Sequence[PublishedInstance]] | None = None  # router/workers
        self.trouble = ""  # of the worker registry that amends them
        self.fleet_view = FleetView()
        self.chains = PromptChains()
        self.index = PrefixIndex()
        self.kv_event_state = KvEventState()
        self.affinity = Affinity()
        self.queue = AdmissionQueue()
        self.queue.shares = _shares(self.policy)
        self.tokens = TokenRatio()
        self.rates = UNKNOWN  # measured (router/telemetry/rates.py)
        self.turn = 0

    @property
    def ready(self) -> int:
        return sum(endpoint.routable for endpoint in self.endpoints.values())

    def troubles(self, now: float) -> list[str]:
        """What keeps the pool from serving or its samples from being fresh; `now` is Unix time."""
        found = [] if self.ready else [f"pool {self.name}: none of {len(self.endpoints)} instances is ready"]
        if self.trouble:
            found.append(f"pool {self.name}: {self.trouble}")
        ages = [
            now - endpoint.sampled_at
            for endpoint in self.endpoints.values()
            if endpoint.routable and endpoint.sampled_at
        ]
        if ages and min(ages) > SAMPLE_OFFLINE_S:
            found.append(f"pool {self.name}: no instance was sampled for {min(ages):.0f} s, is its node's worker gone?")
        return found

    def take_policy(self, value: PolicyValue, now: float) -> bool:
        """Put the published version into force; False when it is already. Raises Unreadable and keeps the old one."""
        try:
            policy = document.parse(value.document)
        except document.InvalidDocument as error:
            raise Unreadable(f"version {value.version}: {error}") from None
        if document.sha256(value.document) != value.sha256:
            raise Unreadable(f"version {value.version}: the document does not match its sha256")
        if (value.policy, value.version, policy) == (self.policy_name, self.version, self.policy):
            return False
        self.policy, self.policy_name, self.version, self.acked_at = policy, value.policy, value.version, now
        self.queue.shares = _shares(policy)
        self.queue.wake_all()
        return True

    def take_fleet(self, value: FleetValue) -> None:
        """Replace the instances. Those that restarted or left lose their connections and index entries."""
        self.fleet_at, self.published, self.model = value.at, value.instances, value.model
        self.amend_again()

    def amend_again(self) -> None:
        """The published instances, as the worker registry amends them now."""
        instances = self.amend(self.published) if self.amend is not None else self.published
        self._replace({instance.id: self._endpoint(instance) for instance in instances})

    def _replace(self, endpoints: dict[str, Endpoint]) -> None:
        before, self.endpoints = self.endpoints, endpoints
        self.fleet_view.take(endpoints)
        for endpoint in before.values():
            now = endpoints.get(endpoint.id)
            if now is not endpoint:
                endpoint.upstream.close(running_too=now is not None and now.epoch != endpoint.epoch)
                self.index.purge(endpoint.id)
        self.limit_index()
        self.queue.wake_all()

    def _endpoint(self, instance: PublishedInstance) -> Endpoint:
        known = self.endpoints.get(instance.id)
        if known is not None and known.epoch == instance.epoch and known.upstream.url == instance.url:
            known.update(instance)
            return known
        return Endpoint(instance)

    def limit_index(self) -> None:
        """An instance holds no more chunks than its KV cache."""
        tokens_per_chunk = CHUNK_BYTES * self.tokens.per_byte
        for endpoint in self.endpoints.values():
            if endpoint.kv_tokens:
                self.index.limit(endpoint.id, max(1, _rounded(endpoint.kv_tokens / tokens_per_chunk)))

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.upstream.close()
        self.queue.wake_all()

    def decide(self, request: RoutingRequest, tried: Mapping[str, str], now: float) -> Decision:
        """`tried`: instances that failed this request, with the error; `now` is the loop's time."""
        fleet = self.fleet_view.fleet(tried, now, self.policy["failure.breaker_open_s"])
        return decide(request, fleet, self.policy, random())  # noqa: S311 - ties, no secret

    def able(self, tried: Mapping[str, str], now: float) -> bool:
        """An instance could take the request if it had capacity."""
        open_s = self.policy["failure.breaker_open_s"]
        return any(
            not tried.get(endpoint.id) and not endpoint.refusal(now, open_s) for endpoint in self.endpoints.values()
        )


def _shares(policy: Policy) -> dict[RequestClass, float]:
    return {name: policy[f"admission.share_{name}"] for name in CLASSES}


def _rounded(chunks: float) -> int:
    """To two digits: the learned token ratio would otherwise resize the index with every answer."""
    return int(float(f"{chunks:.1e}"))
