"""Polls health, metrics and models of each listed instance once a second; a slow instance does not delay the others."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from router.contract.metrics.engine_metrics import VLLM_SCRAPE, parse_metrics
from router.contract.metrics.metrics_page import LARGEST
from router.contract.model_cards import LONGEST_NAME, Lengths, cards, lengths
from router.contract.models import Adapter, Alias, Models, Target
from router.contract.net.engine_key import line_if_any, refusal, trouble
from router.contract.net.probe import LARGEST as HEALTH_LARGEST
from router.contract.net.probe import READY, NotAsked, ProbeError, Prober, Slow
from router.contract.redis.published import FleetValue, PublishedInstance
from router.contract.redis.sample import EngineMetrics, InstanceSample, sample_of
from router.pool.pool import Pool
from router.serving.pools import Pools

TIMEOUT_S = 0.9  # limit for one answer; an engine that hangs is polled again in the next round
HEALTH = "/health"
PATIENCE_S = 0.5  # limit for a round; later answers are taken in the next round
AT_ONCE = 64  # instances polled at the same time
MODELS_LARGEST = 1024 * 1024  # bytes
NAMES_SHOWN = 5
MODELS_S = 5.0  # interval between requests for the models, because adapters change
FAILURES_ALLOWED = 2  # consecutive failures during which an instance stays ready; failed requests are retried elsewhere

Listing = tuple[tuple[str, ...] | None, frozenset[str], Lengths]  # models, adapters among them, max_model_len by name
NO_MODELS: Listing = (None, frozenset(), {})


@dataclass(frozen=True, slots=True)
class WatchedAnswer:
    error: str = ""  # why it does not serve; empty if it serves
    slow: bool = False  # True if no answer came in time
    metrics: EngineMetrics | None = None
    models: tuple[str, ...] | None = None  # None: unknown
    adapters: frozenset[str] = frozenset()  # models with a parent
    lengths: Lengths = field(default_factory=dict)  # context lengths of the models
    refused: str = ""  # why /v1/models was refused, if it requires a key
    unseen: str = ""  # why /metrics was refused, if it requires a key


class Rules(NamedTuple):
    """The changes to requests that a pool's engines require, as in FleetValue."""

    trusted_keys: frozenset[str] = frozenset()
    salt_by_key: bool = False
    removes_billing_line: bool = False


NO_RULES = Rules()


class Watched:
    def __init__(self, listed: PublishedInstance) -> None:
        self.listed = listed
        self.epoch, self.state, self.reason = listed.epoch, listed.state, listed.reason
        self.failures = 0  # consecutive failed rounds
        self.models: tuple[str, ...] | None = None
        self.adapters: frozenset[str] = frozenset()
        self.lengths: Lengths = {}
        self.health_path = HEALTH  # changed to READY once that path answers in time while HEALTH does not
        self.refused = ""  # why the last request for its models was refused
        self.models_at = float("-inf")  # s, monotonic: last request for the models
        self.metrics: EngineMetrics | None = None
        self.sampled_at = 0.0  # s, Unix

    def take(self, answer: WatchedAnswer, model: str, now: float) -> None:
        """Process an answer. `model` is the required model, empty while unknown; `now` is Unix time."""
        if answer.metrics is not None:
            self._take_metrics(answer.metrics, now)
        if not answer.error:
            self.failures = 0
            self.models, self.adapters, self.lengths = answer.models, answer.adapters, answer.lengths
            self.state, self.reason = self._keyed(answer, model) or _serving(answer.models, model)
            self.reason = self.reason or answer.unseen
            return
        # A slow instance with recent metrics is busy. Until it counts as unreachable, the breaker protects requests.
        self.failures += not (answer.slow and answer.metrics is not None)
        if self.state != "ready" or self.failures >= FAILURES_ALLOWED:
            self.state, self.reason = "unreachable", answer.error

    def _keyed(self, answer: WatchedAnswer, model: str) -> tuple[str, str] | None:
        """Return (state, reason) of an instance that requires a key. If none is configured, clients may send one
        themselves."""
        self.refused = answer.refused
        why = trouble(self.listed.engine_key) or answer.refused
        if not why:
            return None
        return ("failed" if self.listed.engine_key else "ready" if model else "loading"), why

    def _take_metrics(self, metrics: EngineMetrics, now: float) -> None:
        before = self.metrics
        # Counters fall only after a restart, which also empties the cache.
        if before is not None and (metrics.prompt_tokens_total or 0) < (before.prompt_tokens_total or 0):
            self.epoch += 1
        self.metrics, self.sampled_at = metrics, now

    def instance(self) -> PublishedInstance:
        return replace(
            self.listed,
            epoch=self.epoch,
            state=self.state,
            routable=self.state == "ready",
            reason=self.reason,
            block_size=self.metrics.block_size if self.metrics is not None else None,
            kv_blocks=self.metrics.kv_blocks if self.metrics is not None else None,
            adapters=tuple(sorted(self.adapters)),
        )

    def sample(self, pool: str) -> InstanceSample | None:
        """Return the sample; None until the instance's metrics have been read once."""
        if self.metrics is None:
            return None
        return sample_of(self.metrics, id=self.listed.id, pool=pool, epoch=self.epoch, at=self.sampled_at)


def _serving(models: tuple[str, ...] | None, model: str) -> tuple[str, str]:
    """Return (state, reason) of an instance that answers."""
    if not model:
        return "loading", "GET /v1/models names no model, and no --model was given"
    if models is not None and model not in models:
        more = f" and {len(models) - NAMES_SHOWN} more" if len(models) > NAMES_SHOWN else ""
        return "failed", f"it serves {', '.join(models[:NAMES_SHOWN]) or 'no model'}{more}, not {model}"
    return "ready", ""


class InstanceWatch:
    def __init__(self, pools: Pools, pool: Pool, model: str) -> None:
        self._pools = pools
        self._pool = pool
        self._model = model  # empty: use the first model that an instance lists
        self._prober = Prober()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        # Polls whose answers have not been processed yet
        self._asked: dict[Watched, asyncio.Task[WatchedAnswer | None]] = {}
        self.watched: list[Watched] = []
        self._rules: Rules = NO_RULES
        self._instances: tuple[PublishedInstance, ...] | None = ()  # the instances as passed to the pool

    def follow(self, listed: Sequence[PublishedInstance], rules: Rules = NO_RULES) -> None:
        """Watch these instances; those that are already watched keep their state."""
        if rules != self._rules:
            self._rules, self._instances = rules, None
        known = {(each.listed.id, each.listed.url): each for each in self.watched}
        self.watched = [known.get((each.id, each.url)) or Watched(each) for each in listed]
        for watched, each in zip(self.watched, listed, strict=True):
            watched.listed = each
        self._publish(time.time())

    async def step(self, patience_s: float = PATIENCE_S) -> None:
        """Poll all instances without an open poll, and wait for the answers."""
        self._take_answers()
        begun = {each: asyncio.create_task(self._ask(each)) for each in self.watched if each not in self._asked}
        self._asked |= begun
        if begun:
            await asyncio.wait(begun.values(), timeout=patience_s)
        self._take_answers()

    def _take_answers(self) -> None:
        now, ended = time.time(), [each for each, task in self._asked.items() if task.done()]
        answers = {each: self._asked.pop(each).result() for each in ended}
        found = [(each, answer) for each in self.watched if (answer := answers.get(each)) is not None]
        self._model = self._model or next((answer.models[0] for _, answer in found if answer.models), "")
        for watched, answer in found:
            watched.take(answer, self._model, now)
        if found:
            self._publish(now)

    def _publish(self, now: float) -> None:
        pool = self._pool
        instances = tuple(each.instance() for each in self.watched)
        if instances != self._instances:
            self._instances = instances
            value = FleetValue(pool=pool.name, model=self._model, at=now, instances=instances, **self._rules._asdict())
            pool.take_fleet(value)
            self._pools.changed()
        self._pools.take_listed(self._other_names())
        for each in self.watched:
            sample = each.sample(pool.name)
            for endpoint in pool.endpoints_of(each.listed.id):
                if sample is not None:
                    endpoint.take_sample(sample, now)
                endpoint.models = each.lengths

    def _other_names(self) -> Models:
        """Return adapters listed by an instance, and further names served by every ready instance."""
        ready = [each for each in self.watched if each.state == "ready" and each.models]
        adapters = frozenset[str]().union(*(each.adapters for each in ready))
        shared = set.intersection(*(set(each.models or ()) for each in ready)) if ready else set()
        pool = self._pool.name
        of_adapters = {name: Alias((Target(pool, adapter=Adapter(name)),)) for name in sorted(adapters)}
        return {
            name: Alias((Target(pool, model=name),)) for name in sorted(shared - adapters - {self._model})
        } | of_adapters

    async def _ask(self, watched: Watched) -> WatchedAnswer | None:
        """Poll the instance; return None if this router cannot open a connection."""
        listed = watched.listed
        async with self._at_once:
            try:
                (error, slow), (metrics, unseen) = await asyncio.gather(self._health(watched), self._metrics(listed))
            except NotAsked:
                return None
            known: Listing = (watched.models, watched.adapters, watched.lengths)
            if watched.state != "ready":
                known = (None, *known[1:])
            refused = watched.refused
            due = known[0] is None or time.monotonic() - watched.models_at > MODELS_S
            if due and not error:
                watched.models_at = time.monotonic()
                found, refused = await self._models(listed)
                known = known if found[0] is None else found
            return WatchedAnswer(error, slow, metrics, *known, refused, unseen)

    async def _get(self, listed: PublishedInstance, path: str, largest: int) -> tuple[int, bytes]:
        lines = line_if_any(listed.engine_key)
        return await self._prober.get(listed.url + path, TIMEOUT_S, largest, lines, listed.tls)

    async def _health(self, watched: Watched) -> tuple[str, bool]:
        """Return why the instance is unhealthy, and whether it is only slow."""
        listed, path = watched.listed, watched.health_path
        try:
            status, _ = await self._get(listed, path, HEALTH_LARGEST)
        except NotAsked:
            raise
        except ProbeError as error:
            is_slow = isinstance(error, Slow)
            if is_slow and path == HEALTH and await self._is_ready(listed):
                watched.health_path = READY
                return "", False
            return str(error), is_slow
        if status == 404 and path == READY:  # another engine answers at that address now
            watched.health_path = HEALTH
            return f"GET {listed.url}{path} answers {status}", False
        # An engine without a health page is healthy if it answers at all.
        return ("" if status < 300 or status == 404 else f"GET {listed.url}{path} answers {status}"), False

    async def _is_ready(self, listed: PublishedInstance) -> bool:
        try:
            return (await self._get(listed, READY, HEALTH_LARGEST))[0] == 200
        except ProbeError:
            return False

    async def _metrics(self, listed: PublishedInstance) -> tuple[EngineMetrics | None, str]:
        try:
            status, page = await self._get(listed, "/metrics", LARGEST)
        except ProbeError:
            return None, ""
        metrics = parse_metrics(page, VLLM_SCRAPE) if status == 200 else None
        return metrics, refusal(status, "/metrics", listed.engine_key)

    async def _models(self, listed: PublishedInstance) -> tuple[Listing, str]:
        try:
            status, body = await self._get(listed, "/v1/models", MODELS_LARGEST)
            if why := refusal(status, "/v1/models", listed.engine_key):
                return NO_MODELS, why
            if status != 200:
                return NO_MODELS, ""
            found = cards(body)
            adapters = frozenset(str(card["id"])[:LONGEST_NAME] for card in found if card.get("parent"))
            by_name = lengths(found)
            return (tuple(by_name), adapters, by_name), ""
        except (ProbeError, ValueError):
            return NO_MODELS, ""

    def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        self._prober.keep_only(set())
