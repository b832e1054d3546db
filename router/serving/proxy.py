"""Handles one request: read, admit, send, retry elsewhere after a failure, relay the answer, record the outcome."""

import asyncio
import random
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from math import ceil
from typing import Any, Literal

from router.contract.answer import answers, verdict
from router.contract.answer.said import AnswerError
from router.contract.answer.verdict import Result
from router.contract.api_paths import CLASSLESS, MEDIA, UNCOMPUTED
from router.contract.connectors import AT_ONCE
from router.contract.models import Condition
from router.flows import serve
from router.flows.post import post
from router.http import body, errors, headers
from router.http.body import ClientGone
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.policy.types import Decision, RoutingRequest
from router.policy.value import replace
from router.pool.admission import Admission, Refusal, Wait
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.pool.health.failure_attribution import failed_with, has_no_capacity
from router.pool.lease import Lease
from router.pool.wake import WakeHold
from router.request import bands, fault, predict
from router.request.call import Call
from router.request.offload import PrefillBusy, PrefillFailed, PromptRefused
from router.request.outcome import Attempt
from router.serving import admit, delivery, stored
from router.serving.admit import DEADLINES
from router.serving.aliases import may_fall_back
from router.serving.answer import relay
from router.serving.answer.learning import learn
from router.serving.answer.relay import BegunAnswer
from router.serving.division import division
from router.serving.pools import Pools
from router.serving.prompt import prepare
from router.serving.prompt.rendering import Rendering
from router.serving.prompt.sessions import Sessions
from router.serving.stored import StoredResponses
from router.telemetry.recorder import Recorder
from router.telemetry.tracer import Tracer
from router.tokenize import bounds
from router.tokenize.prompt import InvalidBody
from router.upstream.errors import UpstreamError
from router.upstream.response import EngineResponse
from router.upstream.stalls import Stalls

JITTER_S = 0.02  # longest pause before the first retry; doubles with each retry

Step = Decision | Wait | Refusal  # a result of an admission


class Proxy:
    def __init__(self, pools: Pools, sessions: Sessions, recorder: Recorder) -> None:
        self._pools = pools
        self._sessions = sessions
        self._recorder = recorder
        self.stalls = Stalls()
        self._rendering = Rendering()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.tracer: Tracer | None = None  # None: spans are off
        self.responses: StoredResponses | None = None  # None behind a gateway, as the picker does not see the answers

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; cached because asking for it costs a system call (getpid) before Python 3.12."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    async def handle(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        by_name = {header: value for header, value in incoming.headers}  # faster than dict()
        name, own_id = headers.request_ids(by_name)
        call = Call(name, incoming.path, time.time(), time.perf_counter(), incoming.peer, own_id)
        if self.tracer is not None:
            incoming.headers = self.tracer.begin(call, incoming.headers, by_name)
        try:
            await self._read(call, incoming, by_name, client)
            try:
                await self._answer(call, client)
            except ErrorResponse as unserved:
                await self._fall_back(call, unserved, client)
        except (ErrorResponse, InvalidBody) as refusal:
            _send_refusal(call, refusal, client)
        except UpstreamError as error:  # after the first byte, the relay has already sent an error event
            content = call.outcome.first_content is not None
            call.outcome.close("failed_after_content" if content else "failed_before_content", error.code, str(error))
        except ClientGone:
            call.outcome.close("cancelled")
        except asyncio.CancelledError:
            call.outcome.close("cancelled")
            if not client.gone:  # the router is stopping and its grace period is over
                _cut_short(call, client)
        finally:
            self._end(call)

    async def _read(
        self, call: Call, incoming: IncomingRequest, by_name: dict[bytes, bytes], client: ClientConnection
    ) -> None:
        """Build the request for the engines, and charge its key. Raise ErrorResponse or InvalidBody."""
        auth = self._pools.auth
        if auth.bucket_store is not None:
            call.key = auth.identify(incoming, by_name, call.at)
            self._pools.require_key(call.key, by_name)
        if not DEADLINES.isdisjoint(by_name):
            call.deadline = admit.deadline(by_name, call.started)
        received = client.received
        if received is None or b"content-encoding" in by_name:
            received = await body.read(by_name, client)
        client.received = None
        form, large = prepare.form(received, incoming, by_name, call.key), len(received) > bounds.SMALL
        read, sent = await prepare.read_large(*form) if large else prepare.read(*form)
        call.asked_band = bands.asked(by_name, read, call.key)
        responses = self.responses if call.api_path == stored.PATH else None
        if responses is not None:
            await responses.find_owner(call, read)
        prepare.prepare(call, incoming, by_name, read, sent, self._pools)
        path = call.api_path
        call.outcome.is_brief = path in UNCOMPUTED or (path == stored.PATH and stored.is_in_background(call))
        if not predict.read_tokens(call):
            await predict.read_slowly(call)
        if call.key is not None or auth.limits_keyless:
            await auth.admit(call)
        if responses is not None:
            responses.hold(call, self._running_loop().time())

    def _end(self, call: Call) -> None:
        call.end(time.perf_counter())
        if call.key is not None or call.reserved:
            self._pools.auth.settle(call)
        self._recorder.ended(call)
        if call.tracing is not None and self.tracer is not None:
            self.tracer.ended(call)

    async def _fall_back(self, call: Call, refusal: ErrorResponse, client: ClientConnection) -> None:
        """Serve from the fallback pools of the call's alias. Raise the last one's refusal."""
        while True:
            if not prepare.falls_back(call, refusal, self._pools):
                raise refusal
            await self._pools.auth.moved(call)
            _end_attempt(call)
            if not predict.read_tokens(call):
                await predict.read_slowly(call)
            try:
                return await self._answer(call, client)
            except ErrorResponse as further:
                refusal = further

    async def _answer(self, call: Call, client: ClientConnection) -> None:
        """Try instances of the call's pool until there is an answer to pass on."""
        if call.prediction.engine_renders:
            await self._rendering.ask(call)
        if self._sessions.bind(call):
            await self._sessions.look_up(call)
        pool = call.pool
        tried: dict[str, str] = {}
        if pool.split is not None:
            delivery.assign(call)
        rules = call.candidate or pool.policy  # inlined `Call.rules`
        call.band = bands.granted(call.asked_band, call.key, rules, is_replay=pool.ephemeral)
        limit = partial(admit.output_limit, call)
        admission = Admission(
            pool.queue, call.started, call.tenant, call.deadline, call.band, limit
        )  # positional, as keywords cost more
        call.admission, left = admission, rules["failure.retries"]
        outcome = call.outcome
        while True:
            if (shared := pool.kv_event_state.shared) is not None:
                await predict.ask(call, shared)
            outcome.deciding = time.perf_counter()
            # Only the first attempt has to meet the deadline
            begins = outcome.attempts or call.deadline is not None
            late = admission.begin(outcome.deciding) if begins else None
            step = self._step(call, admission, tried) if late is None else late
            decision = step if type(step) is Decision else await self._admit(call, admission, tried, step)
            if await self._attempt(call, decision, tried, left, client):
                return
            if outcome.offload is not None:
                tried |= outcome.offload.failed
            left -= 1
            _end_attempt(call)
            await asyncio.sleep(random.random() * JITTER_S * 2 ** (len(outcome.attempts) - 1))  # noqa: S311 - jitter

    def _step(self, call: Call, admission: Admission, tried: dict[str, str]) -> Step:
        """Return the decision if an instance has capacity."""
        decision = self._decide(call, tried)
        decided = call.outcome.decided = time.perf_counter()
        if admission.admits(decision, decided):
            return decision
        able, hold = partial(_is_servable, call, tried), partial(_hold, call, tried)
        return admission.put_off(decision, call.rules, decided, able, hold)

    async def _admit(self, call: Call, admission: Admission, tried: dict[str, str], step: Step) -> Decision:
        """Return the decision once an instance has capacity."""
        while not isinstance(step, Decision):
            if isinstance(step, Refusal):
                raise _refusal_error(call, step, tried)
            refusal = await self._wait(call, admission, step)
            step = self._step(call, admission, tried) if refusal is None else refusal
        return step

    def _decide(self, call: Call, tried: dict[str, str]) -> Decision:
        pool = call.pool
        request, now = self._sessions.request(call), (self._loop or self._running_loop()).time()
        excluded = _excluded(call, tried) if call.outside or pool.silent else tried
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
        # Time already spent in the queue of a pool that could not serve the request
        before = call.outcome.queued_s - admission.queued_s
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
        """Try one instance. Return True if the client has its answer, False to try another instance."""
        pool, outcome, endpoint = call.pool, call.outcome, call.pool.endpoints[decision.instance]
        outcome.attempts.append(attempt := Attempt(endpoint.id, pool.name, outcome.deciding, outcome.decided))
        tokens, document = 0 if decision.prefill else decision.new_tokens, call.request.prompt.document
        is_keyed = call.key is not None
        lease = pool.lease(endpoint, tokens, outcome, outcome.is_brief, call.tenant, document, is_keyed)
        _expect_other_times(call, lease) if call.api_path in CLASSLESS else None
        connection: EngineResponse | None = None
        try:
            self._sessions.sent(call, endpoint)
            alone = outcome.offload is None and not decision.prefill and endpoint.role != "decode"  # `post` is compiled
            sending = post(call, endpoint, call.request.body) if alone else serve(call, decision, endpoint, lease)
            connection = await sending
            outcome.first_byte, attempt.status = time.perf_counter(), connection.status
            lease.refused() if connection.status >= 400 else None
            answer = self._watched(call, connection, lease)
            answer = await self._begun(call, answer, lease) if answer.is_early else answer
            if answer.result == "served":  # as far as is known now
                if endpoint.breaker.opened_at is not None:
                    endpoint.breaker.answered(computed=not outcome.is_brief)
            elif self._tries_another(call, endpoint, attempt, answer, tried, left):
                return False
            rest = self._pass_on(call, endpoint, lease, answer, client)
            return True if rest is None else await rest
        except PrefillFailed as failed:
            _prefill_failed(call, attempt, failed, tried, left)
            return False
        except UpstreamError as error:
            _broke(call, endpoint, attempt, error, tried, left)
            return False
        finally:
            _settle(call)  # before the next request gets the capacity
            if connection is not None:
                self.stalls.forget(connection, None)
                connection.release()
            lease.end()

    def _watched(self, call: Call, connection: EngineResponse, lease: Lease) -> BegunAnswer:
        """Begin the answer, and measure the times of its first content and of its pauses."""
        rules, asks_stream = call.candidate or call.pool.policy, call.request.prompt.stream  # inlined `Call.rules`
        content_s = rules["failure.first_byte_timeout_s"] if asks_stream else 0.0
        self.stalls.watch(connection, (lease, rules["failure.stream_idle_timeout_s"], content_s))
        background = call.outcome.is_brief and call.api_path == stored.PATH
        lease.expect_no_token() if background else None
        return relay.begin(connection, call.api_path, asks_stream=asks_stream, background=background)

    async def _begun(self, call: Call, answer: BegunAnswer, lease: Lease) -> BegunAnswer:
        """Wait for an answer's first content, or for a whole answer. The first content may take as long as a first
        byte."""
        rules, asks_stream = call.rules, call.request.prompt.stream
        silent_s, content_s = rules["failure.stream_idle_timeout_s"], rules["failure.first_byte_timeout_s"]
        if answer.beginning is not None:  # false for a stream of speech
            self.stalls.watch(answer.connection, (lease, silent_s, content_s))
        elif not asks_stream:
            self.stalls.watch(answer.connection, (lease, max(silent_s, content_s), 0.0))
            await relay.wait_for_content(answer)
            self.stalls.watch(answer.connection, (lease, silent_s, 0.0))
        return await relay.wait(answer, call.api_path, asks_stream=asks_stream)

    def _content_came(self, call: Call, endpoint: Endpoint, lease: Lease, *, streams: bool) -> None:
        """Note that the prompt has been computed: a stream's first content, or a whole answer, has arrived."""
        outcome = call.outcome
        outcome.first_content = time.perf_counter()
        lease.first_content()
        outcome.alone = lease.alone and not outcome.queued_s and len(outcome.attempts) == 1
        offload = outcome.offload
        if offload is None:
            return
        if streams:
            offload.arrived = outcome.first_content
        if offload.pull is not None:
            offload.pull.over()
            self._sessions.expect_cached(call, endpoint)

    def _tries_another(
        self, call: Call, endpoint: Endpoint, attempt: Attempt, answer: BegunAnswer, tried: dict[str, str], left: int
    ) -> bool:
        """Judge an answer that does not count as served. Return True to try another instance."""
        status = answer.error.status if answer.error is not None else answer.connection.status
        if fault.is_about_the_engines_key(call, endpoint, status):
            return _key_refused(call, endpoint, attempt, status, tried, left)
        _judge_refusal(call, answer)
        result = attempt.result = answer.result
        attempt.error = _words(attempt, answer)
        refused = {**tried, endpoint.id: attempt.error}
        able = left > 0 and _is_servable(call, refused)
        if result == "refused":
            has_no_capacity(call.pool, endpoint, call.tenant)
        elif not _counts(call, endpoint, attempt, answer, able=able):
            if answer.result == "failed_before_content" and fault.may_have_ended_one(call):
                raise _tried_enough(call, "upstream_failed", answer.result)
            return False
        able = able or (left > 0 and _is_servable(call, refused))  # another instance may now be available
        condition: Condition = "saturated" if result == "refused" else "upstream_failed"
        if able:
            tried[endpoint.id] = attempt.error
        elif may_fall_back(call.alias, condition):
            status = _status_of(result, attempt.status if attempt.status != 200 else None)
            raise ErrorResponse(status, condition, f"{endpoint.id} {attempt.error}", result=result)
        elif result == "refused" and fault.was_sent_on(call):
            raise _not_again(call, f"{endpoint.id} {attempt.error}")
        return able

    def _pass_on(
        self, call: Call, endpoint: Endpoint, lease: Lease, answer: BegunAnswer, client: ClientConnection
    ) -> Coroutine[Any, Any, Literal[True]] | None:
        """Send a whole answer to the client, or begin another one. Return the rest of the work to await, if any."""
        if answer.beginning is not None:
            answer.on_content = partial(self._content_came, call, endpoint, lease, streams=answer.streams)
        elif answer.result == "served":
            self._content_came(call, endpoint, lease, streams=answer.streams)
        if answer.error is not None:
            raise _reported(call, endpoint, answer, answer.error)
        if answer.result == "failed_alike":
            raise _alike(endpoint, answer)
        status = answer.connection.status
        if answer.result == "client_error" and (code := relay.code_of_event(call, status, answer.body)):
            relay.fail_in_stream(call, code, _said(answer), client)
            self._judge_end(call, endpoint, answer)
            return None
        if self.responses is not None and call.api_path == stored.PATH and status == 200:
            client = self.responses.noting(call, endpoint, client, streams=answer.streams)
        rest = relay.forward(call, answer, client)
        if rest is not None:
            return self._pass_rest(call, endpoint, answer, rest)
        self._judge_end(call, endpoint, answer)
        return None

    async def _pass_rest(
        self, call: Call, endpoint: Endpoint, answer: BegunAnswer, rest: Coroutine[Any, Any, None]
    ) -> Literal[True]:
        try:
            await rest
        except asyncio.CancelledError:
            ended = answer.ended
            if ended is None or not ended.is_whole or answer.error is not None:
                raise  # otherwise the client left after the last event
        self._judge_end(call, endpoint, answer)
        return True

    def _judge_end(self, call: Call, endpoint: Endpoint, answer: BegunAnswer) -> None:
        outcome, attempt, result = call.outcome, call.outcome.attempts[-1], answer.result
        if result == "served" and answer.error is not None:
            result = fault.of_error(call, endpoint, answer.error, has_content=outcome.first_content is not None)
            attempt.error, is_key = _why(call, endpoint, answer.error)
            if verdict.VERDICTS[result].fault == "engine":
                fault.failed(call, endpoint, fault.KEY if is_key else fault.FAILED)
                endpoint.note_refused(answer.error.message) if answer.error.message == relay.CUT else None
        attempt.result = result
        if result == "served":
            if not outcome.is_brief:
                endpoint.breaker.served()
                call.pool.accused.discard(call.tenant) if call.pool.accused else None
            outcome.close("served")
            learn(call, endpoint)
        else:
            outcome.close(result, _code(result), f"{endpoint.id} {attempt.error}")


def _why(call: Call, endpoint: Endpoint, error: AnswerError) -> tuple[str, bool]:
    """Return the meaning of an error within an answer, and whether the engine rejects its pool's key."""
    is_key = fault.is_about_the_engines_key(call, endpoint, error.status)
    return (fault.words(endpoint, error.status) if is_key else error.message), is_key


def _expect_other_times(call: Call, lease: Lease) -> None:
    """Expect no token, or the late token of an image or sound."""
    lease.is_media = call.api_path in MEDIA
    if not lease.is_media:
        lease.expect_no_token()


def _broke(
    call: Call, endpoint: Endpoint, attempt: Attempt, error: UpstreamError, tried: dict[str, str], left: int
) -> None:
    """Count a failure without a complete answer. Raise the error unless another instance may be tried."""
    outcome = call.outcome
    fault.upstream_failed(call, endpoint, error)
    attempt.error, attempt.code = str(error), error.code
    has_content = outcome.begun and outcome.first_content is not None
    attempt.result = "failed_after_content" if has_content else verdict.of_own_answer(error.status, error.code)
    tried |= dict.fromkeys(failed_with(endpoint, error), attempt.error)
    if outcome.begun:
        raise error
    if fault.is_spent(call):
        raise _spent(call, error.code) from None
    if left <= 0 or not _is_servable(call, tried):
        raise _error_after(call, error) from None


def _key_refused(
    call: Call, endpoint: Endpoint, attempt: Attempt, status: int | None, tried: dict[str, str], left: int
) -> bool:
    """Handle an engine that rejects its pool's key, which is never the client's fault. Return True to try another
    instance.
    """
    attempt.result, attempt.error = "failed_before_content", fault.words(endpoint, status)
    fault.failed(call, endpoint, fault.KEY)
    tried[endpoint.id] = attempt.error
    if left <= 0 or not _is_servable(call, tried):
        raise ErrorResponse(502, "upstream_failed", f"{endpoint.id} {attempt.error}", result=attempt.result)
    return True


def _words(attempt: Attempt, answer: BegunAnswer) -> str:
    if answer.error is None:
        return f"answered {attempt.status}"
    return f"answered {attempt.status} with an error: {answer.error.message}"


def _code(result: Result) -> str:
    return "upstream_failed" if result in ("failed_before_content", "failed_after_content") else ""


def _counts(call: Call, endpoint: Endpoint, attempt: Attempt, answer: BegunAnswer, *, able: bool) -> bool:
    """Count a failed answer against the engine. Return False if the answer is passed on because the request is at
    fault. `able` is True if another instance may be asked.
    """
    kind = fault.FAILED
    if answer.result == "client_error":
        status = attempt.status if answer.error is None else answer.error.status
        if not fault.is_doubted(call, endpoint, status):
            return False
        kind = call.outcome.failures[-1].kind
    else:
        fault.failed(call, endpoint)
    if fault.is_spent(call) or (kind != fault.FAILED and not able):
        if fault.forgive(call, kind):
            answer.result = attempt.result = "failed_alike" if kind == fault.FAILED else "client_error"
        return False
    attempt.result = "failed_before_content"
    return True


def _reported(call: Call, endpoint: Endpoint, answer: BegunAnswer, error: AnswerError) -> ErrorResponse:
    """Turn the engine's error inside an answer of status 200 into an error response."""
    result = answer.result
    status = _status_of(result, error.status)
    own = result == "client_error" and call.api_path != "/v1/messages"
    own = own or (error.body.startswith(b'{"type":"error"') and error.status in (None, status))
    return ErrorResponse(
        status,
        _code(result) or ("failed_alike" if result == "failed_alike" else "engine_refused"),
        f"{endpoint.id}: {error.message}",
        should_retry=result not in ("failed_alike", "client_error"),
        result=result,
        engines=error.body if own else b"",
    )


def _status_of(result: Result, reported: int | None) -> int:
    """Return the status for a client: the `reported` one unless it blames the request for an engine's failure."""
    if result == "failed_before_content" and reported is not None and verdict.of_status(reported) != result:
        reported = None
    return reported or (400 if result == "client_error" else 503 if result == "refused" else 502)


def _judge_refusal(call: Call, answer: BegunAnswer) -> None:
    """Judge a refusal as a failure of the engine if the engine blames itself."""
    if answer.result != "client_error":
        return
    status = answer.connection.status
    error = answer.error or AnswerError(_said(answer), status, is_clients=True, body=answer.body)
    if answers.is_engines(error, call.request.body):
        answer.error, answer.result = error, "failed_before_content"


def _alike(endpoint: Endpoint, answer: BegunAnswer) -> ErrorResponse:
    """Return the failure with the engine's status and message and the code `failed_alike`."""
    status = answer.connection.status
    message = f"{endpoint.id} answered {status}, as another engine did: {_said(answer)}"
    return ErrorResponse(status, "failed_alike", message, should_retry=False, result="failed_alike")


def _said(answer: BegunAnswer) -> str:
    """Return the message of an engine's whole answer that is an error."""
    event = answers.said(answer.body)
    error = answers.error_of(event) if event is not None else None
    if error is not None:
        return error.message
    return answer.body[: answers.LONGEST_MESSAGE].decode("utf-8", "replace")


def _settle(call: Call) -> None:
    if call.prediction.under_way is not None:
        predict.over(call.prediction.under_way)
    offload = call.outcome.offload
    if offload is not None and offload.pull is not None:
        offload.pull.over()
    if call.admission is not None and call.admission.is_charged:
        admit.settle(call)


def _end_attempt(call: Call) -> None:
    """End an attempt that is followed by another, perhaps in another pool."""
    attempts, tracing = call.outcome.attempts, call.tracing
    if attempts and not attempts[-1].ended:
        attempts[-1].ended = time.perf_counter()
    if tracing is not None:
        lines = tracing.for_attempt(len(attempts), call.request.forwarded)
        call.request = replace(call.request, forwarded=lines)


def _homes(call: Call) -> FleetView[Endpoint] | None:
    """Return the instances that hold the request's adapter; None if its model is not a known adapter."""
    adapter = call.adapter
    if adapter not in call.pool.adapters:
        if call.alias is None:
            return None
        message = f"no instance of the pool {call.pool.name} holds the adapter {adapter} yet: retry in 5 s"
        raise ErrorResponse(503, "adapter_not_loaded", message, retry_after_s=5)
    return call.pool.homes(adapter)


def _excluded(call: Call, tried: Mapping[str, str]) -> dict[str, str]:
    """Return the instances that the request must not use, with the reasons. If an engine fails clients and a tenant's
    requests there have no token, the tenant tries it with one more request at a time, because those requests may be the
    cause."""
    silent = call.pool.silent if call.key is not None else ()
    leases = ((one.id, lease) for one in silent for lease in (*one.prefilling, *one.unseen))
    own = [name for name, lease in leases if lease.repeats and lease.tenant == call.tenant]
    return {**(call.outside or {}), **dict.fromkeys(own, "its requests there have no token yet"), **tried}


def _is_servable(call: Call, tried: Mapping[str, str]) -> bool:
    indivisible, generates = division(call)
    request = RoutingRequest(0, indivisible=indivisible, generates=generates)
    homes = _homes(call) if call.adapter else None
    return call.pool.able(request, _excluded(call, tried), asyncio.get_running_loop().time(), call.rules, homes)


def _hold(call: Call, tried: Mapping[str, str], now: float) -> WakeHold | None:
    """Hold the request while the pool wakes up. A failed instance does not count as asleep."""
    return None if tried else call.pool.hold(len(call.request.body), now)


def _prefill_of(call: Call) -> str:
    return call.outcome.offload.prefill if call.outcome.offload is not None else ""


def _rule_out(call: Call, error: PrefillFailed, tried: dict[str, str]) -> None:
    """Rule out both instances of a failed pair, because either may be the cause; rule out only one if no others are
    left."""
    offload, prefill = call.outcome.offload, {_prefill_of(call): str(error)}
    is_pair = False
    if offload is not None:
        tried |= offload.failed
        is_pair = offload.connector in AT_ONCE
    decoder = {error.decoder: str(error)} if error.decoder in call.pool.endpoints else {}
    if decoder:
        fault.failed(call, call.pool.endpoints[error.decoder])
    both = {**prefill, **decoder, **({call.instance: str(error)} if is_pair else {})}
    either = [one for one in (both, decoder) if one and _is_servable(call, {**tried, **one})]
    tried |= either[0] if either else prefill


def _prefill_failed(call: Call, attempt: Attempt, failed: PrefillFailed, tried: dict[str, str], left: int) -> None:
    attempt.error = str(failed)
    _rule_out(call, failed, tried)
    attempt.code, attempt.result = failed.code, verdict.of_own_answer(failed.status, failed.code)
    _require_another_prefill(call, failed, tried, left)


def _require_another_prefill(call: Call, error: PrefillFailed, tried: dict[str, str], left: int) -> None:
    """Raise ErrorResponse unless another prefill instance and a decoder may serve the request."""
    if isinstance(error, PromptRefused):
        if error.elsewhere:
            fault.forgive(call, call.outcome.failures[-1].kind)
        raise ErrorResponse(error.status, error.code, f"the prefill failed: {error}") from None
    if isinstance(error, PrefillBusy):  # all instances that could take over are busy
        if fault.was_sent_on(call):
            raise _not_again(call, str(error)) from None
        raise ErrorResponse(503, "saturated", f"no instance takes the prompt now: {error}", retry_after_s=1) from None
    if fault.is_spent(call):
        raise _spent(call, error.code) from None
    allowed = call.rules["failure.offload_fallback"] == "local"
    if allowed and left > 0 and _is_servable(call, tried):
        return
    raise ErrorResponse(error.status, error.code, f"the prefill failed: {error}") from None


def _spent(call: Call, code: str) -> ErrorResponse:
    """Return the error for a request that is sent to no further engine and that the client should not retry."""
    if fault.forgive(call):
        return _tried_enough(call, "failed_alike", "failed_alike")
    return _tried_enough(call, code, "failed_before_content")


def _tried_enough(call: Call, code: str, result: Result) -> ErrorResponse:
    failures = call.outcome.failures
    named = "; ".join(f"{failure.endpoint.id}: {_KINDS.get(failure.kind, 'it failed')}" for failure in failures)
    message = f"the request failed on two engines and is tried on no other: {named}"
    status = 504 if "timeout" in code or failures[-1].kind == fault.LATE else 502
    return ErrorResponse(status, code, message, should_retry=False, result=result)


def _not_again(call: Call, why: str) -> ErrorResponse:
    """Return the error for a request that may have crashed an engine and is sent to no other engine now."""
    ended = ", ".join(one.endpoint.id for one in call.outcome.failures if one.kind == fault.BROKEN)
    message = f"{why}; {ended}: {_KINDS[fault.BROKEN]}"
    return ErrorResponse(502, "upstream_failed", message, should_retry=False, result="failed_before_content")


_KINDS = {
    fault.FAILED: "it answered with a failure",
    fault.BROKEN: "it closed the connection, its process may have ended",
    fault.LATE: "it did not answer in time",
}


def _refusal_error(call: Call, refusal: Refusal, tried: dict[str, str]) -> ErrorResponse:
    if fault.was_sent_on(call):
        return _not_again(call, refusal.reason)
    if tried and refusal.code == "no_instance_ready":
        why = "; ".join(f"{instance}: {error}" for instance, error in tried.items())
        return _bad_gateway(call, f"every instance that was tried failed: {why}")
    return admit.refused(call.pool.name, refusal)


def _error_after(call: Call, error: UpstreamError) -> ErrorResponse:
    tried = ", ".join(attempt.instance for attempt in call.outcome.attempts)
    if error.status == 502:
        return _bad_gateway(call, f"{error}; tried: {tried}")
    after = 1 if error.status == 503 else None
    retry = ": retry in 1 s" if after else ""
    return ErrorResponse(error.status, error.code, f"{error}; tried: {tried}{retry}", retry_after_s=after)


def _bad_gateway(call: Call, why: str) -> ErrorResponse:
    """Return the error after failed attempts; after its Retry-After, an open breaker admits a probe."""
    after = ceil(call.pool.policy["failure.breaker_open_s"])
    return ErrorResponse(502, "upstream_failed", f"{why}: retry in {after} s", retry_after_s=after)


def _send_refusal(call: Call, refusal: ErrorResponse | InvalidBody, client: ClientConnection) -> None:
    if isinstance(refusal, InvalidBody):
        refusal = ErrorResponse(400, refusal.code, str(refusal))
    call.outcome.close(refusal.result, refusal.code, refusal.message)
    is_final = call.outcome.fault == "client" or (not refusal.should_retry and refusal.retry_after_s is None)
    said = refusal.engines or refusal.message.encode("utf-8", "replace")
    if is_final and (code := relay.code_of_event(call, refusal.status, said, refusal.code)):
        relay.fail_in_stream(call, code, refusal.message, client)
        return
    call.outcome.status = refusal.status
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
