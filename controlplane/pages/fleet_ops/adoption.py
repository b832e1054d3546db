"""Inspects engines that another system runs, before any of them becomes part of the fleet. From this process, it sends
the same requests that a pool with these options would send: addresses are subject to the same policy, and redirects are
not followed.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from django.conf import settings

from controlplane.common.description import ALWAYS_SENT, Description
from controlplane.people.audit.services import Actor, record
from fleet.discovery.answer import Listing, SourceAway, judged
from fleet.discovery.sources import source_of
from fleet.kinds.external import EXTERNAL, ExternalSpec
from fleet.kinds.kind import Launch, check_engine
from fleet.kinds.listed import ListedEngine
from fleet.kinds.options.option import build
from fleet.kinds.servers import SERVERS
from fleet.observe.identify import AnswersLate, Identified, NotLetIn, identify
from fleet.observe.lacking import PROMPT_DETAILS, misplaced
from fleet.spec import allow_lists
from fleet.spec.fleet_spec import InvalidFleet
from router.contract.net.probe import Prober
from router.contract.redis.published import InstanceRole

AT_ONCE = 16  # engines asked at the same time
LOOK_S = 8.0  # limit for all engines together; engines not reached in time are shown without an answer
MOST = 64  # engines asked in one inspection


@dataclass(frozen=True, slots=True)
class FoundEngine:
    __pydantic_config__ = ALWAYS_SENT

    url: str
    name: str
    role: InstanceRole
    node: Annotated[str, Description("Machine of its Pod")] = ""
    held: Annotated[str, Description("Why it would get no requests yet; empty if it would get some")] = ""
    server: Annotated[str, Description("What answers there; empty when nothing does")] = ""
    version: str = ""
    models: tuple[str, ...] = ()
    kv_events: Annotated[bool, Description("It publishes KV events, for the exact prefix index")] = False
    lacks: Annotated[tuple[str, ...], Description("Flags that an exact index needs and it was started without")] = ()
    asked: Annotated[bool, Description("False if there were too many engines to ask this one")] = True
    trouble: Annotated[str, Description("Why it does not answer, where it says so: it asks for a key")] = ""
    ranks: Annotated[int, Description("Data-parallel ranks behind its address, where it says so; else 1")] = 1
    misplaced: Annotated[str, Description("Why it would serve nothing in a pool with these options")] = ""

    @property
    def unsaid(self) -> str:
        """Return an option for an exact index that an engine may use without reporting it."""
        return PROMPT_DETAILS if self.server == SERVERS["vllm"].title else ""


@dataclass(frozen=True, slots=True)
class FoundFleet:
    __pydantic_config__ = ALWAYS_SENT

    engines: tuple[FoundEngine, ...] = ()
    refused: Annotated[tuple[str, ...], Description("Listed, but Weir does not connect to it; with the reason")] = ()
    trouble: Annotated[str, Description("Why the source does not answer; empty when it does")] = ""
    models: Annotated[tuple[str, ...], Description("Models that they serve, that of most of them first")] = ()
    ranks: Annotated[int, Description("The pool's data_parallel_size: as given, else what all of them say")] = 1

    @property
    def answering(self) -> int:
        return sum(bool(engine.server) for engine in self.engines)


def lacking(engine: Mapping[str, object], pool: str) -> dict[str, list[str]]:
    """Return the addresses of a pool's answering engines, by the options for an exact index that they lack."""
    spec = build(ExternalSpec, engine)
    found: dict[str, list[str]] = {}
    for one in asyncio.run(_ask(spec, _listed(spec, pool).engines)):
        if one.lacks:
            found.setdefault(", ".join(one.lacks), []).append(one.url)
    return found


def look(engine: Mapping[str, object], pool: str, actor: Actor) -> FoundFleet:
    """Inspect engines with the given options of the kind `external`. Raise InvalidFleet for wrong options. The
    inspection is audited, because this process connects to addresses chosen by a user.
    """
    problems = check_engine(EXTERNAL, engine, "engine")
    if not problems:
        problems = allow_lists.refusals(allow_lists.configured(), EXTERNAL, "", engine, "pool")
    if problems:
        raise InvalidFleet(problems)
    spec = build(ExternalSpec, engine)
    record(actor, "fleet.discover", f"pool {pool}" if pool else "fleet", "", None, {"engine": engine})
    try:
        listed = _listed(spec, pool)
    except SourceAway as away:
        return FoundFleet(trouble=str(away))
    engines = asyncio.run(_ask(spec, listed.engines))
    ranks = {each.ranks for each in engines if each.server}
    if spec.data_parallel_size == 1 and len(ranks) == 1 and ranks != {1}:
        spec = replace(spec, data_parallel_size=ranks.pop())
        engines = asyncio.run(_ask(spec, listed.engines))
    counted = Counter(model for each in engines for model in each.models)
    models = tuple(model for model, _ in counted.most_common())
    return FoundFleet(tuple(engines), listed.refused, "", models, spec.data_parallel_size)


def _listed(spec: ExternalSpec, pool: str) -> Listing:
    if spec.urls:
        urls = [url.rstrip("/") for url in spec.urls]
        return Listing(tuple(ListedEngine(url, url, url.partition("://")[2]) for url in urls))
    source = source_of(spec)
    try:
        return judged(spec, pool, source.look())
    finally:
        source.close()


async def _ask(spec: ExternalSpec, listed: tuple[ListedEngine, ...]) -> list[FoundEngine]:
    prober, slots = Prober(), asyncio.Semaphore(AT_ONCE)
    found = [_unasked(spec, engine, ordinal) for ordinal, engine in enumerate(listed)]

    async def ask(index: int) -> None:
        async with slots:
            try:
                found[index] = _answered(found[index], await identify(prober, listed[index].url, spec), spec)
            except (NotLetIn, AnswersLate) as why:
                found[index] = replace(found[index], asked=True, trouble=str(why))

    tasks = [asyncio.create_task(ask(index)) for index in range(min(MOST, len(listed)))]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LOOK_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    prober.keep_only(set())
    await asyncio.sleep(0)  # lets the transports close
    return found


def _unasked(spec: ExternalSpec, engine: ListedEngine, ordinal: int) -> FoundEngine:
    launch = Launch("", "", "", {}, "", ordinal, base=str(settings.BASE_DIR), listed=engine)
    role = EXTERNAL.wire(spec, launch).role
    return FoundEngine(engine.url, engine.name, role, engine.node, engine.held, asked=False)


def _answered(before: FoundEngine, identified: Identified | None, spec: ExternalSpec) -> FoundEngine:
    if identified is None:
        return replace(before, asked=True)
    explicit = bool(spec.kv_events or (spec.kv_endpoint and spec.kv_events is None))
    return replace(
        before,
        asked=True,
        server=identified.server.title,
        version=identified.version,
        models=identified.models,
        kv_events=explicit or bool(identified.events),
        lacks=identified.lacks,
        ranks=identified.ranks,
        misplaced=misplaced(identified.half, before.role, spec.connector),
    )
