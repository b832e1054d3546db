"""One instance, or one of its data-parallel ranks, as seen by the router: its address, its load, its health."""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from router.contract import ranks
from router.contract.connectors import CONNECTORS
from router.contract.model_cards import Lengths
from router.contract.redis.published import PublishedInstance
from router.contract.redis.sample import InstanceSample, RankSample, queued
from router.contract.redis.staleness import SAMPLE_UNKNOWN_S, is_recent
from router.policy.types import KV_UNKNOWN, InstanceState, Role
from router.pool.health.progress import Progress
from router.pool.learned import LearnedFromAnswers
from router.pool.lease import NO_DOCUMENT, Lease
from router.pool.load.gpu_clock import GpuClock, GpuSpent
from router.pool.load.load_order import Load
from router.pool.ranks import InstanceRanks
from router.pool.shortlist import Traits

if TYPE_CHECKING:
    from router.pool.kv_event_state import EventFeed
    from router.pool.ranks import StepGroup


DEFAULT_BLOCK_SIZE = 16  # tokens per block of an instance that reports no size


class Endpoint(LearnedFromAnswers):
    def __init__(self, instance: PublishedInstance, shared: InstanceRanks | None = None) -> None:
        """`shared`: state shared by the instance's ranks; None for an instance with one rank."""
        super().__init__()
        self.ranks = shared = shared or InstanceRanks(instance)
        self.instance = instance.id
        self.rank = shared.dp.first + len(shared.endpoints) if shared.dp.ranks > 1 else None  # None without ranks
        self.id = instance.id if self.rank is None else ranks.named(instance.id, self.rank)
        self.rank_line = b""  # header of its requests
        self.step_group: StepGroup | None = None  # ranks that step together
        self.epoch = instance.epoch
        self.upstream, self.breaker = shared.upstream, shared.breaker
        self.requests = 0  # requests of this router in flight
        self.prefill_tokens = 0  # new tokens of requests without a first token
        self.decodes = 0  # in flight after their first token
        self.prefilling: set[Lease] = set()  # requests without a first token
        self.unseen: set[Lease] = set()  # requests whose tokens do not pass through this router
        self.unheld = 0  # requests without a token due here: KV is awaited, or the answer is elsewhere or no text
        self.picked = 0  # requests whose tokens bypass the router and whose end a gateway reports
        self.awaiting = 0  # the requests in `unheld` that await KV; the metrics page may count them as well
        self.progress = Progress()
        self.pulls = self.others_pulls = 0  # KV pulls in progress from this instance (router/pool/load/pull.py)
        self.pull_tokens = 0  # part of `prefill_tokens`
        self.others = (0, 0, 0)  # `requests`, `prefill_tokens` and `decodes` of the other routers
        self.kv_usage = 0.0
        self.kv_tokens = self.waiting = 0
        self.models: Lengths = {}  # models listed by the engine; empty while unknown
        self.uncached = False  # True if it reuses no prefix
        self.sampled_at = 0.0  # Unix time on its node's clock
        self.heard_at = 0.0  # arrival of that sample on this host's clock, which may differ
        self._tells = (False, False)  # whether it reports KV usage, and whether it reports waiting requests
        self._rejected: float | None = None  # number of requests refused because it was full, by its latest sample
        self._rejects = False  # whether that number has grown since the previous sample
        self.feed: EventFeed | None = None  # feed of its KV events, if followed
        self.changes: set[str] = set()  # ids of changed instances in its pool
        self.pace = 1.0  # speed relative to the pool's median instance (router/telemetry/rates.py)
        self.measured_at = 0.0  # s, Unix; when a long prompt was last computed without other load
        self.gpu_clock = GpuClock()
        self._view: InstanceState | None = None
        shared.add(self)
        self.update(instance)

    def update(self, instance: PublishedInstance) -> None:
        self.routable = instance.routable
        self.state = instance.state
        self.kind = instance.kind
        self.reason = instance.reason
        self.asleep = instance.asleep
        self.block_size = instance.block_size or DEFAULT_BLOCK_SIZE
        self.events_url = instance.events
        self.tokenizer = instance.tokenizer
        self.engine_key = instance.engine_key
        self.kv_tokens = (instance.kv_blocks or 0) * self.block_size
        self.role: Role = instance.role
        self.connector = instance.connector
        self.kv = instance.kv  # parameters of its connector
        self.adapters = frozenset(instance.adapters)
        self.speed = instance.speed
        of_ranks = 1 / instance.dp.ranks
        dollars = instance.dollars_per_hour
        self.gpu_clock.priced(instance.gpus * of_ranks, dollars and dollars * of_ranks, perf_counter())
        self.touch()

    def refusal(self, now: float, open_s: float) -> str:
        """Return why the endpoint cannot take a request; empty if it can. `now` is the event loop's time."""
        if not self.routable and not self._is_tried:
            return f"{self.state}: {self.reason}" if self.reason else self.state
        breaker = self.breaker
        if breaker.opened_at is None:
            return self.progress.refusal if self.progress.stalled else ""
        return breaker.refusal(now, open_s)

    @property
    def _is_tried(self) -> bool:
        """Return whether clients' requests are tried on the engine although it is published as stalled; only such a
        request can show that it has recovered.
        """
        return self.progress.by_requests and bool(self.progress.stalled) and self.reason.startswith("stalled")

    @property
    def shares_store(self) -> bool:
        """Return whether the instance can read KV that other instances of its pool have put into a store."""
        connector = CONNECTORS.get(self.connector)
        return self.kv.shares_store or (connector is not None and connector.is_shared)

    @property
    def takes_lent(self) -> bool:
        return self.kv.takes_lent and not self.hung_on_lent

    @property
    def is_suspect(self) -> bool:
        return self.breaker.opened_at is not None or bool(self.progress.stalled)

    @property
    def takes_requests(self) -> bool:
        """Return whether the endpoint's state allows requests; an open breaker is checked per request."""
        return self.routable and not self.progress.stalled

    @property
    def holds_requests(self) -> bool:
        """Return whether the engine holds requests of this router and should therefore produce tokens."""
        return self.requests > self.unheld

    @property
    def traits(self) -> Traits:
        return Traits(self.id, self.role, self.connector, self.kv.pair)

    def load(self, refused: str) -> Load:
        requests, prefill_tokens, _ = self.others
        prefill_tokens, requests = self.prefill_tokens + prefill_tokens, self.requests + requests
        return Load(prefill_tokens, requests, self.kv_usage, self.kv_tokens, refused, self.pace)

    def view(self, refused: str) -> InstanceState:
        """Return this endpoint as the policy sees it; rebuilt after a change."""
        view = self._view
        if view is None or view.refused != refused:
            requests, prefill_tokens, decodes = self.others
            view = self._view = InstanceState(  # positional, because named arguments take twice as long
                self.id,
                0,  # cached tokens, set per request
                self.requests + requests,
                self.waiting,
                self.decodes + decodes if self.step_group is None else self.step_group.decodes,
                self.prefill_tokens + prefill_tokens,
                self.kv_usage,
                self.kv_tokens,
                self.block_size,
                refused,
                self.role,
                self.connector,
                self.kv.pair,
                self.pace,
                self.pulls + self.others_pulls,
                self.pull_tokens,
            )
        return view

    def touch(self) -> None:
        """Mark a change that a policy can see."""
        self._view = None
        self.changes.add(self.id)

    def take_sample(self, sample: InstanceSample, now: float) -> None:
        """Take a sample; a sample of an earlier process counts as no load. `now` is Unix time."""
        before = self.kv_usage, self.waiting, self.kv_tokens
        mine = sample if self.rank is None else sample.ranks.get(str(self.rank), RankSample())
        if sample.at != self.sampled_at:
            self.heard_at = now if is_recent(now - sample.at) else sample.at
            if sample.epoch == self.epoch:
                self.progress.read_sample(sample, mine, holds=self.holds_requests)
            self._rejects = self._rejected is not None and (sample.rejected_total or 0.0) > self._rejected
            self._rejected = sample.rejected_total
        self.sampled_at = sample.at
        if sample.epoch == self.epoch:
            self.models, self.uncached = sample.models, sample.uncached
        if now - self.heard_at > SAMPLE_UNKNOWN_S:
            self._forget_load()
        elif sample.epoch != self.epoch:
            self.kv_usage, self.waiting = 0.0, 0
        else:
            self._take_load(mine)
            if not self.kv_tokens:
                self.kv_tokens = (sample.kv_blocks or 0) * (sample.block_size or self.block_size)
        if (self.kv_usage, self.waiting, self.kv_tokens) != before:
            self.touch()

    def note_full(self) -> None:
        """Treat the endpoint's load as unknown until the next sample or check, because it refused a request for lack of
        capacity. An instance that refuses at once would otherwise look empty.
        """
        self.kv_usage, self.waiting = KV_UNKNOWN, 0
        self.touch()

    def look(self, now: float) -> None:
        """Forget a load that was reported too long ago, even if other samples arrive. `now` is Unix time."""
        if not self.heard_at and self.kv_usage == KV_UNKNOWN:  # marked as full without figures
            self.kv_usage = 0.0
            self.touch()
        if self.heard_at and now - self.heard_at > SAMPLE_UNKNOWN_S and self.kv_usage != KV_UNKNOWN:
            self._forget_load()
            self.touch()

    def _forget_load(self) -> None:
        self.kv_usage, self.waiting = KV_UNKNOWN, 0
        self.progress.unread()

    def _take_load(self, figures: InstanceSample | RankSample) -> None:
        """Take the load figures. A figure that stops being reported is unknown; one that was never reported counts as
        0. While an instance refuses requests because it is full, they are unused: they would make it look empty."""
        tells = figures.kv_usage is not None, figures.waiting is not None
        missing = any(before and not now for before, now in zip(self._tells, tells, strict=True))
        self._tells = tells[0] or self._tells[0], tells[1] or self._tells[1]
        if missing or self.progress.is_unmoved or self._rejects:
            self.kv_usage, self.waiting = KV_UNKNOWN, 0
            return
        self.kv_usage = round(figures.kv_usage or 0.0, 6)  # receipts contain it unchanged
        self.waiting = int(queued(figures))

    def take_pace(self, pace: float) -> None:
        if pace != self.pace:
            self.pace = pace
            self.touch()

    def take_others(self, load: tuple[int, int, int], pulls: int = 0) -> None:
        if (load, pulls) != (self.others, self.others_pulls):
            self.others, self.others_pulls = load, pulls
            self.gpu_clock.take_others(load, perf_counter())
            self.decodes_changed()

    def decodes_changed(self) -> None:
        if self.step_group is None:  # inlined `touch`
            self._view = None
            self.changes.add(self.id)
        else:
            self.step_group.changed()

    def lease(
        self,
        tokens: int,
        given_back: Callable[[], None],
        spent: GpuSpent | None = None,
        tenant: str = "",
        document: Mapping[str, Any] = NO_DOCUMENT,
        leaves_trial: bool = False,
    ) -> "Lease":
        """Count a request with this many new tokens as load inside the context. `given_back` is called at the end of
        the request; `spent` accumulates its GPU time. Other arguments as in `Lease`."""
        return Lease(self, tokens, given_back, spent, tenant, document, leaves_trial)
