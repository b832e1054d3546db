"""The node's step: probes each of its instances, writes samples, and changes states. `Scraper` keeps connections and
the counters of the last minute between steps, for one process and event loop.
"""

import asyncio
import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

import redis
from django.db.models import Q
from django.utils import timezone
from msgspec import structs

from fleet.control import nodes
from fleet.control.launchers import current
from fleet.control.node_agent import status_of
from fleet.control.publish import publish_fleet
from fleet.events import move
from fleet.kinds import KINDS
from fleet.kinds.external import cache_page
from fleet.kinds.kind import Kind
from fleet.kinds.resources import NodeGpu
from fleet.kinds.servers import SERVERS, Server, answering
from fleet.models import NO_PROCESS, Changes, Instance, State
from fleet.node import logs
from fleet.node.fencing import Fence
from fleet.node.launcher import ProcessStatus
from fleet.node.prepare import volume_of
from fleet.observe.engine_pages import EnginePages
from fleet.observe.identify import AnswersLate, Identified, NotLetIn, identify
from fleet.observe.lacking import misplaced
from fleet.observe.samples import InstanceReadings, free_space, is_full
from fleet.plan.failure import failure_fields
from fleet.plan.state import (
    NOT_READY,
    PAUSED,
    Health,
    InstanceRecord,
    Move,
    Observation,
    is_stable,
    is_stalled,
    next_move,
)
from fleet.redis import connect, live_routers, values_of
from fleet.tries import tries
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import RouterStatus
from router.contract.redis.sample import EngineMetrics, InstanceSample, sample_of

PROBE_S = 1.0
IDENTIFY_S = 2.0  # time limit for all requests to identify an engine that another system started
PRODUCES_S = 5.0  # time after its latest token for which an engine counts as producing
AGAIN_S = 0.5  # delay before a failed probe is repeated, so that a single failure takes no instance out of routing
LOST_PROBE_S = 0.8  # time limit for a known unreachable instance, which must not delay the step
SAMPLE_TTL_S = 900
KEY_AGAIN_S = 5.0  # interval between checks of whether an engine still accepts its key
MOST_REASONS = 20  # reasons of refused answers kept per instance
HEARTBEAT_S = 5.0
TRIM_EVERY_S = 20.0  # interval between trims of running instances' logs
_PROBED = (State.LOADING, State.READY, State.DRAINING, State.UNREACHABLE)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class InstanceMemory:
    """State kept between steps for one epoch of an instance."""

    epoch: int
    answered_at: float  # Unix time
    volume: str = ""  # folder of its KV tier
    disk: tuple[int, int] | None = None  # (free, total) bytes on its disk
    serves_model: bool = False
    models: dict[str, int | None] = field(default_factory=dict)  # listed models, each with its max_model_len
    listed_at: float = 0.0  # monotonic time of the latest request for its models
    history: InstanceReadings = field(default_factory=InstanceReadings)
    metrics_at: float = 0.0  # Unix time of the latest metrics; at first, that of the first step
    refused: Counter[str] = field(default_factory=Counter)
    produced_at: float = -inf  # Unix time at which a router last received tokens from it
    can_pause: bool = True  # True until it answers that it cannot be paused


@dataclass(frozen=True, slots=True)
class ScrapedAnswer:
    """Answers of the endpoints in one step."""

    health: Health
    serves_model: bool
    metrics: EngineMetrics | None
    error: str
    refused: Counter[str] = field(default_factory=Counter)
    identified: Identified | None = None  # identity of an engine that another system started, if requested in this step
    has_page: bool = True  # True if it has a metrics page
    models: dict[str, int | None] = field(default_factory=dict)  # empty if not requested in this step
    closed_why: str = ""  # why it takes no requests: its key is missing or refused, or it is paused

    @property
    def is_late(self) -> bool:
        """Return whether none of the instance's pages was answered in time."""
        return self.health == "slow" and self.metrics is None


class Scraper:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pages = EnginePages()
        self._memory: dict[str, InstanceMemory] = {}
        self._launcher = current()
        self._fence = Fence(self._launcher.fence)
        self._seen_at: dict[str, float] = {}  # node → monotonic time of the last written heartbeat
        self._gpus: dict[str, tuple[NodeGpu, ...]] = {}  # node → its GPUs, as of that heartbeat
        self._trimmed_at = -TRIM_EVERY_S  # monotonic time

    def close(self) -> None:
        self._pages.prober.keep_only(set())
        self._loop.run_until_complete(asyncio.sleep(0))  # lets the transports close
        self._loop.close()

    def step(self, now: dt.datetime, node: str = "local") -> list[str]:
        """Probe every instance of the node; return the names of instances that changed state."""
        self._launcher.refresh(node)
        self._fence.step(node)
        try:
            rows = list(Instance.objects.select_related("pool").filter(node=node).filter(_watched()))
            statuses = {row.name: status_of(row, self._launcher) for row in rows}
            answers = self._loop.run_until_complete(self._ask(self._to_be_asked(rows, statuses), statuses))
            at = timezone.now().timestamp()
            self._remember(rows, answers, at)
            self._ask_routers(rows, answers, at)
            self._keep_logs_short(rows)
            self._write(rows, answers, at)
        finally:
            self._heartbeat(now, node)  # after the samples, which a database that refuses writes must not prevent
        return advance_each(rows, lambda row: self._advance(row, statuses[row.name], answers.get(row.name), at))

    def _heartbeat(self, now: dt.datetime, node: str) -> None:
        if time.monotonic() - self._seen_at.get(node, -HEARTBEAT_S) < HEARTBEAT_S:
            return
        self._gpus[node] = nodes.record_heartbeat(node, now).resources.gpus or ()
        self._seen_at[node] = time.monotonic()

    def _keep_logs_short(self, rows: list[Instance]) -> None:
        if time.monotonic() - self._trimmed_at >= TRIM_EVERY_S:
            self._trimmed_at = time.monotonic()
            for row in rows:
                logs.trim(logs.path_of(row.name))

    def _to_be_asked(self, rows: Iterable[Instance], statuses: Mapping[str, ProcessStatus]) -> list[Instance]:
        return [row for row in rows if statuses[row.name].alive and row.state in _PROBED and row.url]

    async def _ask(self, asked: list[Instance], statuses: Mapping[str, ProcessStatus]) -> dict[str, ScrapedAnswer]:
        answers = await asyncio.gather(*(self._ask_one(row, bool(statuses[row.name].suspended_why)) for row in asked))
        return {row.name: answer for row, answer in zip(asked, answers, strict=True)}

    async def _ask_one(self, row: Instance, suspended_why: bool) -> ScrapedAnswer:
        refused = Counter[str]()
        try:
            identified, asked = await self._identify(row)
        except NotLetIn as why:
            return ScrapedAnswer("ok", False, None, str(why), refused, closed_why=str(why))
        except AnswersLate as why:
            return ScrapedAnswer("slow", False, None, str(why), refused, closed_why=str(why))
        if asked and identified is None:
            return ScrapedAnswer("refused", False, None, f"GET {row.url}/v1/models is not answered", refused)
        alone = misplaced(identified.half, row.facts.role, row.facts.connector) if identified is not None else ""
        if alone:
            return ScrapedAnswer("ok", False, None, alone, refused, closed_why=alone)
        kind = identified.server if identified is not None else answering_of(row)
        lost = row.state == State.UNREACHABLE or suspended_why
        (health, error), metrics = await asyncio.gather(
            self._health(row, kind, lost), self._pages.metrics(row, kind, LOST_PROBE_S if lost else PROBE_S, refused)
        )
        serves, models, asks = await self._models(row, kind, refused) if health == "ok" else (False, {}, "")
        page = bool(kind.metrics_path)
        closed_why = asks or await self._paused(row, kind, health)
        if row.state == State.UNREACHABLE and health == "ok" and not closed_why and not is_stalled(row.reason):
            identified, closed_why = await self._returned(row)
        return ScrapedAnswer(health, serves, metrics, error, refused, identified, page, models, closed_why)

    async def _paused(self, row: Instance, kind: Kind | Server, health: Health) -> str:
        """Return why the engine holds requests back although it looks idle and healthy; empty if it does not."""
        known, by_health = self._memory.get(row.name), kind.pause_path == kind.health_path
        is_asked = health == "error" and row.state != State.LOADING if by_health else health == "ok"
        if not (kind.pause_path and is_asked) or known is None or known.epoch != row.epoch or not known.can_pause:
            return ""
        paused = await self._pages.paused(row, kind.pause_path, PROBE_S)
        known.can_pause = paused is not None
        return (NOT_READY if by_health else PAUSED) if paused else ""

    async def _returned(self, row: Instance) -> tuple[Identified | None, str]:
        """Return the identity of an engine that is about to return, perhaps restarted with other options, and why it
        takes no requests. Without an answer, the earlier values remain.
        """
        with suppress(NotLetIn, AnswersLate):
            found, _ = await self._identify(row, State.UNREACHABLE)
            return found, misplaced(found.half, row.facts.role, row.facts.connector) if found is not None else ""
        return None, ""

    async def _identify(self, row: Instance, state: State = State.LOADING) -> tuple[Identified | None, bool]:
        """Return (the engine's identity, whether it was asked for it). In each epoch it is asked until it is ready,
        because another engine may have taken over the address.
        """
        if KINDS[row.pool.kind].launched or row.state != state:
            return None, False
        options, tls = row.started_from.options(), row.pool.engine.get("tls") or {}
        server = row.facts.server if row.facts.server in SERVERS else options.server
        spec = replace(options, server=server, engine_key=row.engine_key, tls=tls)
        try:
            async with asyncio.timeout(IDENTIFY_S):
                return await identify(self._pages.prober, row.url, spec), True
        except TimeoutError:
            return None, True

    async def _health(self, row: Instance, kind: Kind | Server, lost: bool) -> tuple[Health, str]:
        found = await self._pages.health(row, kind.health_path, LOST_PROBE_S if lost else PROBE_S)
        if found[0] == "ok" or lost or row.state == State.LOADING:
            return found
        return await self._pages.health(row, kind.health_path, AGAIN_S)

    async def _models(
        self, row: Instance, kind: Kind | Server, refused: Counter[str]
    ) -> tuple[bool, dict[str, int | None], str]:
        """Return whether the engine serves the pool's model, the models that it lists, and an explanation if it
        requires a key. It is asked once per epoch until it serves the model, because an engine's models do not change
        while it runs. Its key may change, so an engine with a key is asked repeatedly.
        """
        known = self._memory.get(row.name)
        is_known = known is not None and known.epoch == row.epoch and known.serves_model
        if not kind.models_path or (is_known and not self._is_key_due(row, known)):
            return True, {}, ""
        models, asks = await self._pages.models(row, kind.models_path, PROBE_S, refused)
        return (is_known and not asks) or row.pool.model in models, models, asks

    def _is_key_due(self, row: Instance, known: InstanceMemory | None) -> bool:
        now = time.monotonic()
        if known is None or not row.engine_key or (row.state == State.READY and now - known.listed_at < KEY_AGAIN_S):
            return False
        known.listed_at = now
        return True

    def _remember(self, rows: list[Instance], answers: dict[str, ScrapedAnswer], at: float) -> None:
        previous = self._memory
        self._memory = {}
        urls = set()
        for row in rows:
            known = previous.get(row.name)
            if known is None or known.epoch != row.epoch:
                known = InstanceMemory(row.epoch, at, volume_of(row), metrics_at=at)
            known.disk = free_space(known.volume)
            self._memory[row.name] = known
            urls |= {row.url + path for path in _paths(answering_of(row), known.can_pause)}
            urls.add(cache_page(row.pool.engine, row.url))
            answer = answers.get(row.name)
            if answer is not None:
                self._note(known, answer, at)
        self._pages.prober.keep_only(urls)

    def _ask_routers(self, rows: list[Instance], answers: Mapping[str, ScrapedAnswer], at: float) -> None:
        """Ask routers whether tokens arrive from instances whose pages are late: an engine on a busy host is still
        working."""
        late = [row for row in rows if (answer := answers.get(row.name)) and answer.is_late]
        producing = _producing() if late else set()
        for row in late:
            if (row.name, row.epoch) in producing:
                self._memory[row.name].produced_at = at

    def _note(self, known: InstanceMemory, answer: ScrapedAnswer, at: float) -> None:
        known.serves_model |= answer.serves_model
        known.models = answer.models or known.models
        if answer.health == "ok" or (answer.health == "slow" and answer.metrics is not None):
            known.answered_at = at
        if answer.metrics is not None:
            known.history.add(at, answer.metrics)
        if answer.metrics is not None or (answer.health == "ok" and not answer.has_page):
            known.metrics_at = at
        note_refused(known, answer.refused)

    def _write(self, rows: list[Instance], answers: dict[str, ScrapedAnswer], at: float) -> None:
        try:
            pipe = connect().pipeline(transaction=False)
            for row in rows:
                answer = answers.get(row.name)
                if answer is not None and (
                    answer.metrics is not None or not answer.has_page or self._memory[row.name].refused
                ):
                    sample = self._sample(row, answer.metrics or EngineMetrics())
                    pipe.set(redis_keys.instance_key(row.name), codec.encode(sample), ex=SAMPLE_TTL_S)
            pipe.execute()
        except redis.RedisError as error:
            log.warning("samples not written: %s", error)

    def _sample(self, row: Instance, metrics: EngineMetrics) -> InstanceSample:
        """Build a sample with the time of the latest metrics, so that it becomes stale if metrics are refused."""
        known = self._memory[row.name]
        return sample_of(
            structs.replace(
                metrics,
                kv_tiers=known.history.with_rates(metrics.kv_tiers),
                uncached=metrics.uncached or row.facts.uncached,
            ),
            id=row.name,
            pool=row.pool.name,
            epoch=row.epoch,
            at=known.metrics_at,
            hit_rate=known.history.hit_rate(),
            transfer_bytes_per_s=known.history.transfer_bytes_per_s(),
            disk=known.disk,
            gpu=known.history.gpu(
                (gpu for gpu in self._gpus.get(row.node, ()) if gpu.number in row.gpus), metrics.gpu_memory
            ),
            models=known.models,
            refused=dict(known.refused),
        )

    def _advance(self, row: Instance, status: ProcessStatus, answer: ScrapedAnswer | None, at: float) -> bool:
        record = record_of(row)
        observation = _observe(status, answer, at, self._memory[row.name])
        if not status.alive:
            observation = replace(observation, failure_cause=self._launcher.failure_cause(row))
        step = next_move(record, observation)
        if step is not None:
            return apply_move(row, step, at, answer)
        if row.failures and is_stable(record, at):
            Instance.objects.filter(pk=row.pk, epoch=row.epoch, state=State.READY).update(failures=0)
        return False


def advance_each(rows: Iterable[Instance], advance: Callable[[Instance], bool]) -> list[str]:
    """Change the state of each row that has a reason to change, and publish their pools. Return the names of these
    rows."""
    moved = []
    with tries() as attempt:
        for row in rows:
            with attempt(f"instance {row.name}"):
                if advance(row):
                    moved.append(row)
        for pool in sorted({row.pool.name for row in moved}):
            with attempt(f"publish pool {pool}"):
                publish_fleet(pool)
    return [row.name for row in moved]


def note_refused(known: InstanceMemory, refused: Mapping[str, int]) -> None:
    """Count refused answers by reason. A reason names a page or a figure, so there are few; the limit keeps a fault
    here from becoming a leak."""
    for reason, count in refused.items():
        kept = reason in known.refused or len(known.refused) < MOST_REASONS
        known.refused[reason if kept else "other"] += count


def _producing() -> set[tuple[str, int]]:
    """Return (name, epoch) of the engines from which a router has just received tokens; empty without Redis."""
    try:
        statuses = values_of(RouterStatus, redis_keys.router_key, live_routers()).values()
    except redis.RedisError:
        return set()
    return {found for status in statuses for found in status.producing.items()}


def _watched() -> Q:
    elsewhere = [name for name, kind in KINDS.items() if not kind.launched]
    known = Q(pool__kind__in=KINDS)  # excludes kinds declared by a newer release
    return (
        known
        & Q(state__in=(*_PROBED, State.STOPPING))
        & (Q(pid__isnull=False) | ~Q(pod="") | Q(pool__kind__in=elsewhere))
    )


def answering_of(row: Instance) -> Kind | Server:
    return answering(KINDS[row.pool.kind], row.facts.server)


def _paths(kind: Kind | Server, can_pause: bool) -> tuple[str, ...]:
    return kind.health_path, kind.metrics_path, kind.models_path, kind.pause_path if can_pause else kind.health_path


def record_of(row: Instance) -> InstanceRecord:
    return InstanceRecord(
        state=row.state,
        reason=row.reason,
        desired=row.desired,
        failing=row.next_start_at is not None,
        failures=row.failures,
        since=row.since.timestamp(),
        may_sleep=row.asleep is not None,
    )


def _observe(status: ProcessStatus, answer: ScrapedAnswer | None, at: float, known: InstanceMemory) -> Observation:
    answer = answer or ScrapedAnswer("refused", False, None, "")
    return Observation(
        at=at,
        alive=status.alive,
        suspended=bool(status.suspended_why),
        health=answer.health,
        serves_model=answer.serves_model,
        has_metrics=answer.metrics is not None,
        silent_s=at - known.answered_at,
        error=answer.error,
        failure_cause="",
        suspended_why=status.suspended_why,
        waits_for=status.waits_for,
        end_text=status.end_text,
        full_folder=known.volume if status.alive and is_full(known.disk) else "",
        closed_why=answer.closed_why,
        produces=at - known.produced_at <= PRODUCES_S,
    )


def apply_move(row: Instance, step: Move, at: float, answer: ScrapedAnswer | None) -> bool:
    if step.to == row.state:
        # Only the reason changes: no event, and `since` stays.
        return bool(Instance.objects.filter(pk=row.pk, state=row.state, epoch=row.epoch).update(reason=step.reason))
    now = dt.datetime.fromtimestamp(at, dt.UTC)
    return move(row, State(step.to), step.reason, **_fields(row, step, now, answer))


def _wire(row: Instance, found: Identified) -> dict[str, object]:
    identified = {"server": found.server.name, "version": found.version, "events": found.events}
    # A metrics page that reports that no prefix is reused is trusted, also about its connector.
    uncached = found.uncached and not found.server.scrape.cache_config
    made = {**row.wire, **{name: value for name, value in identified.items() if value}, "uncached": uncached}
    return {name: value for name, value in made.items() if value}


def _fields(row: Instance, step: Move, now: dt.datetime, answer: ScrapedAnswer | None) -> Changes:
    fields: Changes = {}
    if answer is not None and answer.identified is not None:
        fields["wire"] = _wire(row, answer.identified)
    if step.to in {State.READY, State.DRAINING}:
        fields |= {"last_probe_at": now, "ready_at": row.ready_at or now}
        if answer is not None and answer.metrics is not None:
            fields |= {"kv_blocks": answer.metrics.kv_blocks, "block_size": answer.metrics.block_size}
    if step.to in {State.FAILED, State.STOPPED}:
        fields |= NO_PROCESS
    return fields | (failure_fields(row, now) if step.failure else {})
