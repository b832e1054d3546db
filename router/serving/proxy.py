"""Handles one request: read, admit, send, retry elsewhere after a failure, relay the answer, record the outcome."""

import asyncio
import random
import time
from collections.abc import Mapping
from functools import cached_property, partial
from math import ceil

from router.contract.models import Condition
from router.flows import serve
from router.http import body, errors, headers
from router.http.body import ClientGone
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.policy.types import Decision, RoutingRequest
from router.policy.value import replace
from router.pool.admission import CODES, Admission, Refusal, Wait
from router.pool.endpoint import Endpoint
from router.pool.failure_attribution import attribute, failed, failed_with
from router.pool.fleet_view import FleetView
from router.pool.wake import Hold
from router.request import bands, predict
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed, PromptRefused
from router.request.outcome import Attempt
from router.serving import admit, delivery, prepare, relay
from router.serving.aliases import may_fall_back
from router.serving.division import division
from router.serving.learning import learn
from router.serving.pools import Pools
from router.serving.relay import BegunAnswer
from router.serving.sessions import Sessions
from router.telemetry.recorder import Recorder
from router.telemetry.tracer import Tracer
from router.tokenize import bounds
from router.upstream.errors import UpstreamError
from router.upstream.response import EngineResponse
from router.upstream.stalls import Stalls

BACK_PRESSURE = (429, 503)
REFUSED = (
    *CODES,
    "adapter_not_loaded",
    "budget_unknown",
    "keys_unknown",
    "keys_unreadable",
)  # these codes count as refused, whatever their status
JITTER_S = 0.02  # the longest wait before the first retry; doubles with each


class Proxy:
    def __init__(self, pools: Pools, sessions: Sessions, recorder: Recorder) -> None:
        self._pools = pools
        self._sessions = sessions
        self._recorder = recorder
        self.stalls = Stalls()
        self.tracer: Tracer | None = None  # spans are off

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Kept: until Python 3.12 asking for it costs a system call (getpid)."""
        return asyncio.get_running_loop()

    async def handle(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        by_name = dict(incoming.headers)
        name, own_id = headers.request_ids(by_name)
        call = Call(name, incoming.path, time.time(), time.perf_counter(), incoming.peer, own_id)
        outcome = call.outcome
        if self.tracer is not None:
            incoming.headers = self.tracer.begin(call, incoming.headers, by_name)
        try:
            call.key = self._pools.auth.identify(incoming, by_name, call.at)
            call.deadline = admit.deadline(by_name, call.started)
            self._pools.require_key(call.key, by_name)
            received = await body.read(by_name, client)
            form, large = prepare.form(received, incoming, call.key), len(received) > bounds.SMALL
            read, sent = await prepare.read_large(*form) if large else prepare.read(*form)
            call.asked_band = bands.asked(by_name, read, call.key)
            prepare.prepare(call, incoming, by_name, read, sent, self._pools)
            if not predict.read_tokens(call):
                await predict.read_slowly(call)
            await self._pools.auth.admit(call)
            await self._serve(call, client)
        except ErrorResponse as refusal:
            _send_refusal(call, refusal, client)
        except UpstreamError as error:  # after the first byte: the relay has sent an error event
            outcome.label, outcome.code, outcome.error = "error", error.code, str(error)
        except ClientGone:
            outcome.label = "cancelled"
        except asyncio.CancelledError:
            outcome.label = "cancelled"
            if not client.gone:  # the router is stopping and its grace period is over
                outcome.error = "the router was stopped"
                _cut_short(call, client)
        finally:
            self._end(call)

    def _end(self, call: Call) -> None:
        call.end(time.perf_counter())
        self._pools.auth.settle(call)
        self._recorder.ended(call)
        if call.tracing is not None and self.tracer is not None:
            self.tracer.ended(call)

    async def _serve(self, call: Call, client: ClientConnection) -> None:
        """Serve from the call's pool, then from the fallback pools of its alias."""
        while True:
            try:
                if self._sessions.bind(call):
                    await self._sessions.look_up(call)
                return await self._answer(call, client)
            except ErrorResponse as refusal:
                if not prepare.falls_back(call, refusal, self._pools):
                    raise
            await self._pools.auth.moved(call)
            _end_attempt(call)
            if not predict.read_tokens(call):
                await predict.read_slowly(call)

    async def _answer(self, call: Call, client: ClientConnection) -> None:
        """Try instances until an answer can be passed on."""
        pool = call.pool
        tried: dict[str, str] = {}
        if pool.split is not None:
            delivery.assign(call)
        call.band = bands.granted(call.asked_band, call.key, call.rules, is_replay=pool.ephemeral)
        admission = call.admission = admit.admission(call)
        left: int = call.rules["failure.retries"]
        while True:
            decision = await self._admit(call, admission, tried)
            if await self._attempt(call, decision, tried, left, client):
                return
            left -= 1
            _end_attempt(call)
            await asyncio.sleep(random.random() * JITTER_S * 2 ** (len(call.outcome.attempts) - 1))  # noqa: S311 - jitter

    async def _admit(self, call: Call, admission: Admission, tried: dict[str, str]) -> Decision:
        """The decision, once an instance has capacity."""
        outcome, shared = call.outcome, call.pool.kv_event_state.shared
        if shared is not None:
            await predict.ask(call, shared)
        outcome.deciding = time.perf_counter()
        refusal = admission.begin(outcome.deciding)
        while refusal is None:
            decision = self._decide(call, tried)
            outcome.decided = time.perf_counter()
            if admission.admits(decision, outcome.decided):
                return decision
            able, hold = partial(_is_servable, call, tried), partial(_hold, call, tried)
            step = admission.put_off(decision, call.rules, outcome.decided, able, hold)
            refusal = await self._wait(call, admission, step) if isinstance(step, Wait) else step
        raise _refusal_error(call, refusal, tried)

    def _decide(self, call: Call, tried: dict[str, str]) -> Decision:
        pool = call.pool
        request, now = self._sessions.request(call), self._loop.time()
        excluded = {**call.outside, **tried} if call.outside else tried
        homes = _homes(call) if call.adapter else None
        if call.assigned is None:
            decision, call.version = pool.decide(request, excluded, now, None, homes), pool.version
        else:
            decision = delivery.decide(call, call.assigned, request, excluded, now, homes)
        if call.decision is None:
            self._recorder.decided(call, decision)
        call.decision, call.policy = decision, pool.policy_name
        return decision

    async def _wait(self, call: Call, admission: Admission, wait: Wait) -> Refusal | None:
        before = call.outcome.queued_s - admission.queued_s  # queued before, in a pool that could not serve it
        wakes, size, shared = call.pool.wakes, len(call.request.body), call.pool.kv_event_state.shared
        prepare = partial(predict.ask, call, shared) if shared is not None else None
        wakes.waiting_bytes += size
        try:
            return await admit.until_woken(admission, wait, prepare)
        finally:
            wakes.waiting_bytes -= size
            call.outcome.queued_s, call.outcome.held_s = before + admission.queued_s, admission.held_s

    async def _attempt(
        self, call: Call, decision: Decision, tried: dict[str, str], left: int, client: ClientConnection
    ) -> bool:
        """True when the client has its answer; False to try another instance."""
        pool = call.pool
        endpoint = pool.endpoints[decision.instance]
        outcome = call.outcome
        attempt = Attempt(endpoint.id, None, "", pool.name, outcome.deciding, outcome.decided)
        outcome.attempts.append(attempt)
        with pool.lease(endpoint, 0 if decision.prefill else decision.new_tokens, outcome) as lease:
            self._sessions.sent(call, endpoint)
            connection: EngineResponse | None = None
            try:
                connection = await serve(call, decision, endpoint, lease)
                attempt.status = connection.status
                self.stalls.watch(connection, call.rules["failure.stream_idle_timeout_s"])
                answer = await relay.begin(connection)
                outcome.first_byte = time.perf_counter()
                lease.first_byte()
                outcome.alone = lease.alone and not outcome.queued_s and len(outcome.attempts) == 1
                if outcome.offload is not None:
                    self._transferred(call, endpoint, outcome.offload, streams=answer.streams)
                if self._is_refused(call, endpoint, attempt, tried, left):
                    return False
                await self._pass_on(call, endpoint, answer, client)
                return True
            except PrefillFailed as error:
                attempt.error = tried[_prefill_of(call)] = str(error)
                attempt.code = "prefill_failed"
                _require_another_prefill(call, error, tried, left)
                return False
            except UpstreamError as error:
                attribute(pool, endpoint, error)
                attempt.error, attempt.code = str(error), error.code
                tried |= dict.fromkeys(failed_with(endpoint, error), attempt.error)
                if outcome.begun:
                    raise
                if left <= 0 or not _is_servable(call, tried):
                    raise _error_after(call, error) from None
                return False
            finally:
                _settle(call)  # before the next request gets the capacity
                if connection is not None:
                    self.stalls.forget(connection)
                    connection.release()

    def _transferred(self, call: Call, endpoint: Endpoint, offload: Offload, *, streams: bool) -> None:
        """The answer has begun, so the KV blocks of the other instance have arrived."""
        if streams:
            offload.arrived = call.outcome.first_byte
        if offload.pull is not None:
            offload.pull.over()
            self._sessions.expect_cached(call, endpoint)

    def _is_refused(self, call: Call, endpoint: Endpoint, attempt: Attempt, tried: dict[str, str], left: int) -> bool:
        """Judge the engine's status; True to try another instance."""
        pool, status = call.pool, attempt.status or 0
        if status < 500 and status != 429:
            endpoint.breaker.answered()
            return False
        if status not in BACK_PRESSURE:
            failed(pool, endpoint)
        attempt.error = f"answered {status}"
        refused = {**tried, endpoint.id: attempt.error}
        if left <= 0 or not _is_servable(call, refused):
            condition: Condition = "saturated" if status in BACK_PRESSURE else "upstream_failed"
            if may_fall_back(call.alias, condition):
                raise ErrorResponse(status, condition, f"{endpoint.id} answered {status}")
            return False  # the client gets the engine's own answer
        tried[endpoint.id] = attempt.error
        return True

    async def _pass_on(self, call: Call, endpoint: Endpoint, answer: BegunAnswer, client: ClientConnection) -> None:
        await relay.forward(call, answer, client)
        outcome, status = call.outcome, call.outcome.status
        if status < 500 and status != 429:
            endpoint.breaker.served()
        if status < 400:
            outcome.label = "ok"
            learn(call, endpoint)
        else:
            outcome.label = "refused" if status in BACK_PRESSURE else "error"
            outcome.error = f"{endpoint.id} answered {status}"


def _settle(call: Call) -> None:
    predict.over(call.prediction.under_way)
    offload = call.outcome.offload
    if offload is not None and offload.pull is not None:
        offload.pull.over()
    admit.settle(call)


def _end_attempt(call: Call) -> None:
    """Called when another attempt follows, perhaps in another pool."""
    attempts, tracing = call.outcome.attempts, call.tracing
    if attempts and not attempts[-1].ended:
        attempts[-1].ended = time.perf_counter()
    if tracing is not None:
        lines = tracing.for_attempt(len(attempts), call.request.forwarded)
        call.request = replace(call.request, forwarded=lines)


def _homes(call: Call) -> FleetView[Endpoint] | None:
    """The instances that hold the request's adapter; None if its model is not known to be an adapter."""
    adapter = call.adapter
    if adapter not in call.pool.adapters:
        if call.alias is None:
            return None
        message = f"no instance of the pool {call.pool.name} holds the adapter {adapter} yet: retry in 5 s"
        raise ErrorResponse(503, "adapter_not_loaded", message, retry_after_s=5)
    return call.pool.homes(adapter)


def _is_servable(call: Call, tried: Mapping[str, str]) -> bool:
    indivisible, generates = division(call)
    request = RoutingRequest(0, indivisible=indivisible, generates=generates)
    excluded = {**call.outside, **tried} if call.outside else tried
    homes = _homes(call) if call.adapter else None
    return call.pool.able(request, excluded, asyncio.get_running_loop().time(), call.rules, homes)


def _hold(call: Call, tried: Mapping[str, str], now: float) -> Hold | None:
    """Hold the request while the pool wakes. A failed instance is not a sleeping one."""
    return None if tried else call.pool.hold(len(call.request.body), now)


def _prefill_of(call: Call) -> str:
    return call.outcome.offload.prefill if call.outcome.offload is not None else ""


def _require_another_prefill(call: Call, error: PrefillFailed, tried: dict[str, str], left: int) -> None:
    """Raises ErrorResponse unless another prefill instance and a decoder may serve the request."""
    allowed = call.rules["failure.offload_fallback"] == "local" and not isinstance(error, PromptRefused)
    if allowed and left > 0 and _is_servable(call, tried):
        return
    code = "prefill_timeout" if error.timed_out else "prefill_failed"
    raise ErrorResponse(error.status, code, f"the prefill failed: {error}") from None


def _refusal_error(call: Call, refusal: Refusal, tried: dict[str, str]) -> ErrorResponse:
    if tried and refusal.code == "no_instance_ready":
        why = "; ".join(f"{instance}: {error}" for instance, error in tried.items())
        return _bad_gateway(call, f"every instance that was tried failed: {why}")
    return admit.refused(call.pool.name, refusal)


def _error_after(call: Call, error: UpstreamError) -> ErrorResponse:
    tried = ", ".join(attempt.instance for attempt in call.outcome.attempts)
    if error.code == "upstream_timeout":
        return ErrorResponse(504, "upstream_timeout", f"{error}; tried: {tried}")
    if error.code == "router_exhausted":
        return ErrorResponse(503, error.code, f"{error}; tried: {tried}: retry in 1 s", retry_after_s=1)
    return _bad_gateway(call, f"{error}; tried: {tried}")


def _bad_gateway(call: Call, why: str) -> ErrorResponse:
    """The error after failed attempts; by its Retry-After an open breaker admits a probe."""
    after = ceil(call.pool.policy["failure.breaker_open_s"])
    return ErrorResponse(502, "upstream_failed", f"{why}: retry in {after} s", retry_after_s=after)


def _send_refusal(call: Call, refusal: ErrorResponse, client: ClientConnection) -> None:
    outcome = call.outcome
    outcome.label = "refused" if refusal.status < 500 or refusal.code in REFUSED else "error"
    outcome.status, outcome.code, outcome.error = refusal.status, refusal.code, refusal.message
    lines, text = errors.answer(call.api_path, refusal, call.id)
    client.start(refusal.status, lines + relay.own_lines(call))
    client.end(text)


def _cut_short(call: Call, client: ClientConnection) -> None:
    """Send the client an error, or end its stream with one."""
    refusal = ErrorResponse(503, "shutting_down", "the router is stopping: retry in 1 s", retry_after_s=1)
    if not call.outcome.begun:
        _send_refusal(call, refusal, client)
    elif call.outcome.streamed:
        client.end(errors.event(call.api_path, refusal.code, refusal.message, call.id))
