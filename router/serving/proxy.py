"""One request: read, decided, sent, sent elsewhere when that fails, its answer passed on, its fate recorded."""

import asyncio
import random
import time

from router.flows import serve
from router.http import body, errors, headers
from router.http.body import ClientGone
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.policy.types import Decision
from router.pool.admission import QueueEntry
from router.pool.endpoint import Endpoint
from router.pool.failure_attribution import blame, failed
from router.request import prediction
from router.request.call import Attempt, Call
from router.serving import admission_wait, relay
from router.serving.learning import learn
from router.serving.pools import Pools
from router.serving.prepare import build
from router.serving.relay import BegunAnswer
from router.serving.sessions import Sessions
from router.telemetry.recorder import Recorder
from router.upstream.errors import UpstreamError
from router.upstream.response import EngineResponse
from router.upstream.stalls import Stalls

BACK_PRESSURE = (429, 503)
ROUTE_REFUSES = ("over_ttft_limit",)  # rules by which a route lets nobody take a request
# Whatever status the policy gives them: nothing failed.
REFUSED = (*admission_wait.CODES, *ROUTE_REFUSES, "no_instance_ready", "keys_unknown")
JITTER_S = 0.02  # the longest wait before the first retry; doubles with each


class Proxy:
    def __init__(self, pools: Pools, sessions: Sessions, recorder: Recorder) -> None:
        self._pools = pools
        self._sessions = sessions
        self._recorder = recorder
        self.stalls = Stalls()

    async def handle(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        own = dict(incoming.headers)
        call = Call(headers.request_id(own), incoming.path, time.time(), time.perf_counter())
        try:
            call.key = self._pools.gate.identify(incoming, own, call.at)
            call.deadline = admission_wait.deadline(own, call.started)
            call.tenant = incoming.peer
            call.body = await body.read(own, client)
            build(call, incoming, own, self._pools)
            if not prediction.read_tokens(call):
                await prediction.read_slowly(call)
            await self._pools.gate.admit(call)
            if self._sessions.bind(call):
                await self._sessions.look_up(call)
            await self._answer(call, client)
        except ErrorResponse as refusal:
            _refuse(call, refusal, client)
        except UpstreamError as error:  # after the first byte: the relay has told the client
            call.outcome, call.code, call.error = "error", error.code, str(error)
        except ClientGone:
            call.outcome = "cancelled"
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            if not client.gone:  # the router ends, and has waited for as long as it may
                call.error = "the router was stopped"
                _cut_short(call, client)
        finally:
            call.outcome = call.outcome or "error"
            call.end(time.perf_counter())
            self._pools.gate.settle(call)
            self._recorder.ended(call)

    async def _answer(self, call: Call, client: ClientConnection) -> None:
        """Attempts until one can be passed on."""
        pool = call.pool
        tried: dict[str, str] = {}
        left: int = pool.policy["failure.retries"]
        while True:
            admission_wait.check_deadline(call)
            decision = await self._choose(call, tried)
            if await self._attempt(call, decision, tried, left, client):
                return
            left -= 1
            await asyncio.sleep(random.random() * JITTER_S * 2 ** (len(call.attempts) - 1))  # noqa: S311 - jitter

    async def _choose(self, call: Call, tried: dict[str, str]) -> Decision:
        """The decision, once there is room on an instance."""
        pool = call.pool
        place: QueueEntry | None = None
        while True:
            decision = pool.decide(self._sessions.request(call), tried, asyncio.get_running_loop().time())
            first = call.decision is None
            call.decision, call.version, call.policy = decision, pool.version, pool.policy_name
            if first:
                self._recorder.decided(call, decision)
            if decision.instance and (place is not None or not len(pool.queue)):
                if place is not None:
                    pool.queue.admitted(place, time.perf_counter())
                return decision
            if decision.rule in ROUTE_REFUSES or not pool.able(tried, asyncio.get_running_loop().time()):
                if place is not None:
                    pool.queue.leave(place)
                raise _nobody(call, tried, decision)
            place = place or admission_wait.place(call, decision)
            await admission_wait.wait(call, decision, place)

    async def _attempt(
        self, call: Call, decision: Decision, tried: dict[str, str], left: int, client: ClientConnection
    ) -> bool:
        """True when the client has its answer; False when another instance is to be tried."""
        pool = call.pool
        endpoint = pool.endpoints[decision.instance]
        attempt = Attempt(endpoint.id)
        call.attempts.append(attempt)
        endpoint.breaker.begin()
        lease = endpoint.lease(0 if decision.prefill else decision.new_tokens)
        self._sessions.sent(call, endpoint)
        connection: EngineResponse | None = None
        try:
            connection = await serve(call, decision, endpoint, lease)
            attempt.status = connection.status
            self.stalls.watch(connection, pool.policy["failure.stream_idle_timeout_s"])
            answer = await relay.begin(connection)
            call.first_byte = time.perf_counter()
            lease.first_byte()
            call.alone = lease.alone and not call.queued_s and len(call.attempts) == 1
            if call.offload is not None:
                call.offload.arrived = call.first_byte
            if self._is_refused(call, endpoint, attempt, tried, left):
                return False
            await self._pass_on(call, endpoint, answer, client)
            return True
        except UpstreamError as error:
            blame(pool, endpoint, error)
            attempt.error = tried[endpoint.id] = str(error)
            if call.begun:
                raise
            if left <= 0 or not pool.able(tried, asyncio.get_running_loop().time()):
                raise _failure(call, error) from None
            return False
        finally:
            endpoint.breaker.neutral()  # of what neither succeeded nor failed
            lease.end()
            prediction.over(call.under_way)
            if connection is not None:
                self.stalls.forget(connection)
                connection.release()
            pool.queue.wake()

    def _is_refused(self, call: Call, endpoint: Endpoint, attempt: Attempt, tried: dict[str, str], left: int) -> bool:
        """Judge the engine's status; True when the request is to be tried elsewhere."""
        pool, status = call.pool, attempt.status or 0
        if status < 500 and status != 429:
            endpoint.breaker.answered()
            return False
        if status not in BACK_PRESSURE:
            failed(pool, endpoint)
        attempt.error = f"it answered {status}"
        refused = {**tried, endpoint.id: attempt.error}
        if left <= 0 or not pool.able(refused, asyncio.get_running_loop().time()):
            return False  # the client gets the engine's own words
        tried[endpoint.id] = attempt.error
        return True

    async def _pass_on(self, call: Call, endpoint: Endpoint, answer: BegunAnswer, client: ClientConnection) -> None:
        await relay.forward(call, answer, client)
        if call.status < 500 and call.status != 429:
            endpoint.breaker.served()
        if call.status < 400:
            call.outcome = "ok"
            learn(call, endpoint)
        else:
            call.outcome = "refused" if call.status in BACK_PRESSURE else "error"
            call.error = f"{endpoint.id} answered {call.status}"


def _nobody(call: Call, tried: dict[str, str], decision: Decision) -> ErrorResponse:
    if decision.rule in ROUTE_REFUSES:
        return admission_wait.unwanted(call, decision)
    if tried:
        why = "; ".join(f"{instance}: {error}" for instance, error in tried.items())
        return ErrorResponse(502, "upstream_failed", f"every instance that could be tried failed: {why}")
    why = "; ".join(decision.reasons)
    message = f"pool {call.pool.name}: no instance is ready ({why}): retry later"
    return ErrorResponse(503, "no_instance_ready", message, retry_after_s=call.pool.policy["admission.retry_after_s"])


def _failure(call: Call, error: UpstreamError) -> ErrorResponse:
    tried = ", ".join(attempt.instance for attempt in call.attempts)
    if error.code == "upstream_timeout":
        return ErrorResponse(504, "upstream_timeout", f"{error}; tried: {tried}")
    return ErrorResponse(502, "upstream_failed", f"{error}; tried: {tried}")


def _refuse(call: Call, refusal: ErrorResponse, client: ClientConnection) -> None:
    call.outcome = "refused" if refusal.status < 500 or refusal.code in REFUSED else "error"
    call.status, call.code, call.error = refusal.status, refusal.code, refusal.message
    lines, text = errors.answer(call.api_path, refusal, call.id)
    client.start(refusal.status, lines + relay.own_lines(call))
    client.end(text)


def _cut_short(call: Call, client: ClientConnection) -> None:
    """Tell the client as far as that still goes."""
    refusal = ErrorResponse(503, "shutting_down", "the router is stopping: send the request again", retry_after_s=1)
    if not call.begun:
        _refuse(call, refusal, client)
    elif call.streamed:
        client.end(errors.event(call.api_path, refusal.code, refusal.message, call.id))
