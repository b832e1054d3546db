"""A pool: its policy, its instances, and what was learned about prompts and sessions."""

from collections.abc import Callable, Mapping
from random import random
from typing import Any

from router.contract.pools import is_ephemeral
from router.contract.staleness import SAMPLE_OFFLINE_S
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


class Unreadable(ValueError):
    """A value in Redis that cannot be used; the message says why."""


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
        self.published_entries: list[Mapping[str, Any]] = []  # fleet entries as published
        self.amend: Callable[[list[Mapping[str, Any]]], list[Mapping[str, Any]]] | None = None  # router/workers
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

    def take_policy(self, value: Mapping[str, Any], now: float) -> bool:
        """Put the published version into force; False when it is already. Raises Unreadable and keeps the old one."""
        version, name = value.get("version"), value.get("policy")
        if not isinstance(version, int) or isinstance(version, bool) or not isinstance(name, str):
            raise Unreadable(f"policy of pool {self.name}: version {version!r} or policy {name!r} is not usable")
        try:
            policy = document.parse(value.get("document"))
        except document.InvalidDocument as error:
            raise Unreadable(f"policy of pool {self.name}, version {version}: {error}") from None
        if document.sha256(value["document"]) != value.get("sha256"):
            raise Unreadable(f"policy of pool {self.name}, version {version}: the document does not match its sha256")
        if (name, version, policy) == (self.policy_name, self.version, self.policy):
            return False
        self.policy, self.policy_name, self.version, self.acked_at = policy, name, version, now
        self.queue.shares = _shares(policy)
        self.queue.wake_all()
        return True

    def take_fleet(self, value: Mapping[str, Any]) -> None:
        """Replace the instances. Those that restarted or left lose their connections and index entries."""
        try:
            published = list(value["instances"])
            entries = self.amend(published) if self.amend is not None else published
            endpoints = {entry["id"]: self._endpoint(entry) for entry in entries}
            self.fleet_at = float(value["at"])
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"fleet of pool {self.name}: {type(error).__name__} {error}") from None
        self.published_entries = published
        self.model = str(value.get("model") or "")
        self._replace(endpoints)

    def amend_again(self) -> None:
        """The worker registry changed: amend the published entries anew."""
        entries = self.amend(self.published_entries) if self.amend is not None else self.published_entries
        self._replace({entry["id"]: self._endpoint(entry) for entry in entries})

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

    def _endpoint(self, entry: Mapping[str, Any]) -> Endpoint:
        known = self.endpoints.get(entry["id"])
        if known is not None and known.epoch == entry["epoch"] and known.upstream.url == (entry["url"] or ""):
            known.update(entry)
            return known
        return Endpoint(entry)

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
