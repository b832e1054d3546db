"""A pool: its policy, its instances, and the learned state of prompts and sessions."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import random
from time import perf_counter
from typing import Any

from router.contract import ranks
from router.contract.pools import is_ephemeral
from router.contract.redis.published import (
    FleetValue,
    FullRollout,
    PolicyValue,
    PublishedInstance,
    Rollout,
    is_sglang,
)
from router.contract.redis.staleness import is_recent
from router.contract.redis.use import pool_in_use
from router.policy.schema import document
from router.policy.serves import able
from router.policy.types import UNKNOWN, Decision, ParsedPolicy, Rates, RoutingRequest
from router.pool.affinity import Affinity
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.pool.health.key_troubles import KeyTroubles, refusals
from router.pool.health.stall_troubles import stall_troubles
from router.pool.kv_event_state import KvEventState
from router.pool.lease import NO_DOCUMENT, Lease
from router.pool.load.gpu_clock import GpuSpent
from router.pool.load.lent import Lendings
from router.pool.queue.admission_queue import AdmissionQueue
from router.pool.ranks import InstanceRanks, StepGroup
from router.pool.rollout import SplitState, read_candidate, read_version
from router.pool.wake import WakeHold, Wakes
from router.prefix.approximate import PrefixIndex
from router.prefix.chain import CHUNK_BYTES, PromptChains
from router.tokenize.ratio import TokenRatio

EXHAUSTED_S = 60.0  # how long /healthz reports that the router was unable to open a connection


class Pool:
    # Derived from its endpoints
    adapters: frozenset[str]  # adapters that an instance lists
    decode_connectors: tuple[str, ...] | None  # connectors of decoders; None: no instance only decodes
    is_mixed: bool  # whether it has several speed groups
    block_size: int  # tokens per KV block, if equal on all endpoints
    _by_instance: dict[str, list[Endpoint]]

    def __init__(self, name: str) -> None:
        self.name = name
        self.ephemeral, self.name_in_use = is_ephemeral(name), pool_in_use(name)
        self.model = self.policy_name = self._sha256 = ""  # `_sha256` is the digest of the policy document
        self._homes: dict[str, FleetView[Endpoint]] = {}  # by adapter
        self.observed = False  # True: the pool is shown but serves no requests here
        self.policy: ParsedPolicy = document.parse(document.default())
        self.version = self.generation = 0  # policy's version (0: the built-in default), and the rollout's generation
        self._rollout: Rollout = FullRollout()
        self.split: SplitState | None = None  # set during a delivery
        self._last_split: SplitState | None = None
        self.turn = self.trips = self.stalls = 0  # decisions, stopped candidates and stalled engines since the start
        self.on_trip: Callable[[Pool, str, str], None] | None = None  # (pool, why, request id)
        self.acked_at: float | None = None  # s, Unix
        self.fleet_at: float | None = None  # s, Unix
        self.endpoints: dict[str, Endpoint] = {}
        # Tenants whose failures alone shut out an instance and who have not been served since
        self.accused: set[str] = set()
        self.silent: list[Endpoint] = []  # endpoints that stall only for clients' requests
        self.published: Sequence[PublishedInstance] = ()
        self.amend: Callable[[Sequence[PublishedInstance]], Sequence[PublishedInstance]] | None = None  # router/workers
        self.trusted_keys: frozenset[str] = frozenset()  # names of API keys that may steer its engines
        self.salt_by_key = self.removes_billing_line = self.has_sglang = False  # as published
        self.trouble = ""  # fault in the worker registry that adjusts the instances
        self._key_troubles = KeyTroubles(name)
        self.exhaustion = (0.0, "")  # (s, Unix; why the router was unable to open a connection)
        self.fleet_view: FleetView[Endpoint] = FleetView()
        self.chains = PromptChains()
        self.index = PrefixIndex()
        self.kv_event_state = KvEventState()
        self.affinity = Affinity()
        self.lendings = Lendings()
        self.wakes = Wakes()
        self._at_zero = False  # True while scaled to zero; the next request wakes it
        self.queue = AdmissionQueue()
        self.queue.follow(self.policy)
        self.tokens = TokenRatio()
        self.rates = self._measured = UNKNOWN  # measured: by router/telemetry/rates.py
        self._law = {"context_cost": 0.0, "equal_cost_tokens": 0.0}  # part of `rates` published with the fleet
        self._replace({})

    def adapter(self, model: str) -> str:
        """Return the adapter that a request selects by this model name; empty for the base model. An unknown name
        counts as an adapter's, so that no hit in the base model's cache is expected."""
        return "" if model in ("", self.model, self.name) else model

    def homes(self, adapter: str) -> FleetView[Endpoint]:
        """Return the instances that hold the adapter."""
        found = self._homes.get(adapter)
        if found is None:
            names = {one.id for one in self.endpoints.values() if adapter in one.adapters}
            found = self._homes[adapter] = self.fleet_view.part(names, f"the adapter {adapter} is not loaded")
        return found

    @property
    def ready(self) -> int:
        """Return the instances that may take requests."""
        return len({endpoint.instance for endpoint in self.endpoints.values() if endpoint.takes_requests})

    @property
    def held(self) -> int:
        """Count the requests that wait for an instance to be ready."""
        return 0 if self.wakes.rule is None or self.ready else len(self.queue)

    def hold(self, size: int, now: float) -> WakeHold | None:
        """Return the terms on which a request with a body of this size may wait for an instance; None if it must be
        refused."""
        return None if self.ready else self.wakes.hold(len(self.queue), size, now)

    def troubles(self, now: float) -> list[str]:
        """List the reasons why the pool does not serve or its samples are old; `now` is Unix time."""
        none_ready = f"pool {self.name}: none of {len(self.published)} instances is ready{refusals(self.published)}"
        found = [] if self.ready or self.observed or self._at_zero else [none_ready]
        if self.trouble:
            found.append(f"pool {self.name}: {self.trouble}")
        found += [f"pool {self.name}: {why}" for why in self._key_troubles.lacking(self.published)]
        if now - self.exhaustion[0] < EXHAUSTED_S:
            found.append(f"pool {self.name}: the router could not open a connection: {self.exhaustion[1]}")
        found += [f"pool {self.name}: {why}" for why in stall_troubles(self.endpoints.values())]
        of_ranks = {endpoint.ranks.trouble: None for endpoint in self.endpoints.values() if endpoint.ranks.trouble}
        found += [f"pool {self.name}: {why}" for why in of_ranks]
        ages = [
            now - endpoint.sampled_at
            for endpoint in self.endpoints.values()
            if endpoint.routable and endpoint.sampled_at
        ]
        if ages and not is_recent(min(ages)):
            found.append(f"pool {self.name}: no instance was sampled for {min(ages):.0f} s, is its node's worker gone?")
        return found

    def exhausted(self, now: float, why: str) -> None:
        """Note that the router was unable to open a connection, and close idle ones. `now` is Unix time."""
        self.exhaustion = (now, why)
        for endpoint in self.endpoints.values():
            endpoint.upstream.close_all_idle()

    def take_policy(self, value: PolicyValue, now: float) -> bool:
        """Put the published version and its rollout into effect; return False if they already are.
        Raise Unreadable: the old version stays, or the new one serves all requests without its candidate.
        """
        version = (value.policy, value.version, value.sha256)
        is_new = version != (self.policy_name, self.version, self._sha256)
        if is_new:
            policy = read_version(value.version, value.sha256, value.document)
            self.policy, self.acked_at = policy, now
            self.policy_name, self.version, self._sha256 = version
            self.queue.follow(policy)
        elif value.rollout == self._rollout:
            return False
        try:
            self._take_rollout(value.rollout)
        finally:
            self.queue.wake_all()
        self.acked_at = now
        return True

    def _take_rollout(self, rollout: Rollout) -> None:
        if isinstance(rollout, FullRollout):
            self.split, self._rollout, self.generation = None, rollout, rollout.generation
            return
        self.split = SplitState(rollout, None)  # stays this way if the candidate cannot be read
        split = self.split = SplitState(rollout, read_candidate(rollout.candidate, self.policy))
        if self._last_split is not None:
            split.follow(self._last_split, perf_counter())
        self._last_split, self._rollout, self.generation = split, rollout, rollout.generation

    def trip(self, why: str, request_id: str) -> None:
        """Stop the split because the candidate could not decide a request: the live version serves all requests."""
        if self.split is not None and self.split.stopped(0, why):
            self.trips += 1
            self.queue.wake_all()
            if self.on_trip is not None:
                self.on_trip(self, why, request_id)

    def take_fleet(self, value: FleetValue) -> None:
        """Replace the instances. Those that restarted or left lose their connections and index entries."""
        self.fleet_at, self.published, self.model = value.at, value.instances, value.model
        law = {"context_cost": value.context_cost, "equal_cost_tokens": value.equal_cost_tokens}
        if law != self._law:
            self._law, self.rates = law, dataclasses.replace(self.rates, **law)
        self.trusted_keys, self.salt_by_key = value.trusted_keys, value.salt_by_key
        self.removes_billing_line = value.removes_billing_line
        self.observed, self.wakes.rule, self._at_zero = value.observed, value.wake, value.at_zero
        self._key_troubles.look(self.published)
        self.amend_again()
        if self.ready:
            self.wakes.ready(perf_counter())

    def amend_again(self) -> None:
        """Apply the worker registry and the engine keys again to the published instances."""
        amended = self.amend(self.published) if self.amend is not None else self.published
        instances = self._key_troubles.without(amended)
        self._replace({endpoint.id: endpoint for instance in instances for endpoint in self._endpoints_of(instance)})

    def look_at_keys(self) -> None:
        """Remove instances whose engine key became unreadable from routing, and restore those whose key is readable
        again."""
        if self._key_troubles.look(self.published):
            self.amend_again()

    def _replace(self, endpoints: dict[str, Endpoint]) -> None:
        before, self.endpoints = self.endpoints, endpoints
        divided = any(one.role != "both" for one in endpoints.values())
        connectors = {one.connector for one in endpoints.values() if one.role == "decode"}
        self.decode_connectors = tuple(sorted(connectors)) if divided else None
        self.adapters = frozenset().union(*(one.adapters for one in endpoints.values()))
        self.has_sglang = any(is_sglang(one.kind, one.tokenizer) for one in endpoints.values())
        self._homes.clear()
        self._by_instance = {endpoint.instance: endpoint.ranks.endpoints for endpoint in endpoints.values()}
        self.fleet_view.take(endpoints)
        self._step_together()
        self.is_mixed = len({endpoint.speed for endpoint in endpoints.values()}) > 1
        sizes = {endpoint.block_size for endpoint in endpoints.values()}
        self.block_size = sizes.pop() if len(sizes) == 1 else 0
        for endpoint in before.values():
            now = endpoints.get(endpoint.id)
            if now is not endpoint:
                endpoint.upstream.close(running_too=now is not None and now.epoch != endpoint.epoch)
                self.index.purge(endpoint.id)
        for endpoint in endpoints.values():
            if endpoint.asleep:
                self.index.purge(endpoint.id)
        self.limit_index()
        self.queue.wake_all()

    def _endpoints_of(self, instance: PublishedInstance) -> list[Endpoint]:
        """Return an endpoint for each data-parallel rank; existing ones are kept unless the process changed."""
        dp = instance.dp
        known = self.endpoints.get(ranks.named(instance.id, dp.first) if dp.ranks > 1 else instance.id)
        if (
            known is not None
            and (known.epoch, known.upstream.url) == (instance.epoch, instance.url)
            and known.ranks.dp == dp
        ):
            known.upstream.secure_by(instance.tls)
            for endpoint in known.ranks.endpoints:
                endpoint.update(instance)
            return known.ranks.endpoints
        shared = InstanceRanks(instance)
        return [Endpoint(instance, shared) for _ in range(dp.ranks)]

    def endpoints_of(self, instance: str) -> list[Endpoint]:
        """Return the endpoints of an instance: one, or one for each data-parallel rank."""
        return self._by_instance.get(instance, [])

    def _step_together(self) -> None:
        groups: defaultdict[str, list[Endpoint]] = defaultdict(list)
        for endpoint in self.endpoints.values():
            endpoint.step_group = None
            if name := endpoint.ranks.dp.together:
                groups[name].append(endpoint)
        for endpoints in groups.values():
            StepGroup(endpoints)

    def lease(
        self,
        endpoint: Endpoint,
        tokens: int,
        spent: GpuSpent | None = None,
        is_brief: bool = False,
        tenant: str = "",
        document: Mapping[str, Any] = NO_DOCUMENT,
        is_keyed: bool = False,
    ) -> Lease:
        """Count a request with this many new tokens as load of the endpoint and of the queue inside the context.
        `is_brief`: it ends before its work or needs no model, so its time is not that of a slot. `is_keyed`: its tenant
        is an API key. Other arguments as in `Lease`."""
        leaves_trial = is_keyed and bool(self.silent)
        if is_brief:
            return Lease(endpoint, tokens, self.queue.wake, spent, tenant, document, leaves_trial)
        began = perf_counter()
        self.queue.drain.began(began)
        given_back = lambda: self.queue.ended(perf_counter(), began)  # noqa: E731
        return Lease(endpoint, tokens, given_back, spent, tenant, document, leaves_trial)

    def measured(self, rates: Rates) -> None:
        """Take over the rates measured so far; the fleet's figures for the engines' law stay."""
        if rates is not self._measured:
            self._measured, self.rates = rates, dataclasses.replace(rates, **self._law)

    def limit_index(self) -> None:
        """Limit each instance's chunks in the index to the size of its KV cache."""
        tokens_per_chunk = CHUNK_BYTES * self.tokens.per_byte
        for endpoint in self.endpoints.values():
            if endpoint.kv_tokens:
                self.index.limit(endpoint.id, max(1, _rounded(endpoint.kv_tokens / tokens_per_chunk)))

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.upstream.close()
        self.queue.wake_all()

    def decide(
        self,
        request: RoutingRequest,
        tried: Mapping[str, str],
        now: float,
        policy: ParsedPolicy | None = None,
        homes: FleetView[Endpoint] | None = None,
    ) -> Decision:
        """Decide for the request. `tried` holds instances that failed it, with the error; `now` is the loop's time.
        `policy` is a candidate's, or the live version's if None. `homes` holds the adapter's instances; None: every
        instance may take the request."""
        open_s, draw = self.policy["failure.breaker_open_s"], random()  # noqa: S311 - ties, no secret
        return (homes or self.fleet_view).decide(request, policy or self.policy, draw, tried, now, open_s)

    def able(
        self,
        request: RoutingRequest,
        tried: Mapping[str, str],
        now: float,
        policy: ParsedPolicy,
        homes: FleetView[Endpoint] | None = None,
    ) -> bool:
        """Return whether an instance could take the request if it had capacity. Arguments as in `decide`."""
        open_s = self.policy["failure.breaker_open_s"]
        if self.decode_connectors is not None:
            return able(request, (homes or self.fleet_view).fleet(tried, now, open_s), policy)
        endpoints = self.endpoints.values() if homes is None else homes.endpoints
        return any(not tried.get(endpoint.id) and not endpoint.refusal(now, open_s) for endpoint in endpoints)


def _rounded(chunks: float) -> int:
    """Round to two digits; otherwise the learned token ratio would resize the index after every answer."""
    return int(float(f"{chunks:.1e}"))
