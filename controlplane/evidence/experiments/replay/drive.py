"""Plays a trace against an endpoint: by the clock (timestamps) or session by session (closed loop)."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from controlplane.evidence.experiments.replay import completions
from controlplane.evidence.experiments.replay.client import NoAnswer, ReplayAnswer, ReplayClient
from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.experiments.results.records import Record, cached_by_place
from controlplane.evidence.traces.types import TraceRequest

ANSWER_LIMIT_S = 1_800.0  # limit per response, in the engine's time
ANSWER_LIMIT_LEAST_S = 60.0  # shortest limit, wall clock


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The requests and their pacing in the engine's time; the replay runs `time_scale` times as fast."""

    requests: Sequence[TraceRequest]  # sorted by arrival
    pacing: str  # "timestamps" or "closed_loop"
    duration_s: float  # time after which a closed loop begins no request
    time_scale: float
    model: str
    writer: PromptWriter
    headers: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[int, str] = field(default_factory=dict)  # class by request index
    request_ids: str = "replay"  # prefix of x-request-id, followed by the request's index


@dataclass(slots=True)
class ReplayProgress:
    """The progress of a replay, read from another thread while it runs."""

    done: int = 0
    sent: int = 0


@dataclass(slots=True)
class _Play:
    load: OfferedLoad
    clients: Sequence[ReplayClient]
    append: Callable[[Record], None]
    progress: ReplayProgress
    start: float = 0.0  # reading of time.perf_counter()

    def due(self, at_s: float) -> float:
        return self.start + at_s / self.load.time_scale

    def client_of(self, request: TraceRequest) -> ReplayClient:
        """Return the client for the request's router: all turns of a session use one router, as with a sticky load
        balancer."""
        key = sum(request.session.encode()) if request.session else request.index
        return self.clients[key % len(self.clients)]


async def play(
    load: OfferedLoad, urls: Sequence[str], append: Callable[[Record], None], progress: ReplayProgress | None = None
) -> None:
    """Send all requests and wait for the responses; each finished request is appended at once. Errors of single
    requests become records; an exception of `append` ends the replay.
    """
    clients = [ReplayClient(url) for url in urls]
    run = _Play(load, clients, append, progress or ReplayProgress(), time.perf_counter() + 0.05)
    try:
        await (_by_session(run) if load.pacing == "closed_loop" else _by_clock(run))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        for client in clients:
            client.close()


async def _by_clock(run: _Play) -> None:
    async with asyncio.TaskGroup() as tasks:
        for request in run.load.requests:
            body = _body(run, request)  # built before the request is due, so that it is sent on time
            await _until(run.due(request.at_s))
            tasks.create_task(_send(run, request, body, run.due(request.at_s)))


async def _by_session(run: _Play) -> None:
    ordered = sorted(run.load.requests, key=lambda request: (request.session, request.index))
    async with asyncio.TaskGroup() as tasks:
        for _, turns in groupby(ordered, key=lambda request: request.session):
            tasks.create_task(_session(run, list(turns)))


async def _session(run: _Play, turns: list[TraceRequest]) -> None:
    due = run.due(turns[0].at_s)
    for number, request in enumerate(turns):
        if number:
            due = time.perf_counter() + request.think_s / run.load.time_scale
        if due >= run.due(run.load.duration_s):
            return
        await _until(due - 0.01)
        body = _body(run, request)
        await _until(due)
        await _send(run, request, body, due)


async def _until(moment: float) -> None:
    wait = moment - time.perf_counter()
    if wait > 0:
        await asyncio.sleep(wait)


def _body(run: _Play, request: TraceRequest) -> bytes:
    return completions.body_of(run.load.model, run.load.writer.write(request), request.output_tokens)


async def _send(run: _Play, request: TraceRequest, body: bytes, due: float) -> None:
    headers = {**run.load.headers, "x-request-id": f"{run.load.request_ids}-{request.index}"}
    if request.session:
        headers["x-session-id"] = request.session
    if request.band:
        headers["x-weir-priority"] = str(request.band)
    run.progress.sent += 1
    sent = time.perf_counter()
    limit = max(ANSWER_LIMIT_LEAST_S, ANSWER_LIMIT_S / run.load.time_scale)
    answer, ending = ReplayAnswer(sent), completions.RequestEnding("error", error="no answer in time")
    try:
        answer = await run.client_of(request).request("POST", completions.PATH, body, headers, timeout_s=limit)
        ending = completions.ending_of(answer)
    except NoAnswer as error:
        ending = completions.RequestEnding("error", error=str(error))
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        run.append(
            _record(run, request, due, answer, completions.RequestEnding("cancelled", error="the run was cancelled"))
        )
        raise
    run.append(_record(run, request, due, answer, ending))
    run.progress.done += 1


def _record(
    run: _Play, request: TraceRequest, due: float, answer: ReplayAnswer, ending: completions.RequestEnding
) -> Record:
    scale = run.load.time_scale
    ok = ending.outcome == "ok"
    first = (answer.first_at - answer.sent_at) if ok and answer.first_at else None
    whole = (answer.last_at - answer.sent_at) if ok else None
    return Record(
        index=request.index,
        session=request.session,
        sent_s=round((answer.sent_at - run.start) * scale, 4),
        late_wall_ms=round(max(0.0, answer.sent_at - due) * 1000, 3),
        input_tokens=request.input_tokens,
        ttft_ms=_ms(first, scale),
        tpot_ms=_ms(per_token(first, whole, ending.output_tokens), scale),
        e2e_ms=_ms(whole, scale),
        prompt_tokens=ending.prompt_tokens,
        cached_tokens=ending.cached_tokens,
        output_tokens=ending.output_tokens,
        instance=answer.headers.get("x-weir-instance", ""),
        routed_class=answer.headers.get("x-weir-class", ""),
        trace_class=run.load.classes.get(request.index, ""),
        policy_version=answer.headers.get("x-weir-policy", ""),
        status=answer.status,
        outcome=ending.outcome,
        error=ending.error,
        **(cached_by_place(ending.cached_from) if ending.cached_from is not None else {}),
    )


def _ms(seconds: float | None, scale: float) -> float | None:
    return None if seconds is None else round(seconds * 1000 * scale, 3)


def per_token(first: float | None, whole: float | None, tokens: int | None) -> float | None:
    """Return the seconds per token after the first; None if not measured."""
    if first is None or whole is None or not tokens or tokens < 2:
        return None
    # A response that arrived in one read says nothing about the engine's speed.
    if whole <= first:
        return None
    return (whole - first) / (tokens - 1)
