"""Decides for a gateway: performs the steps that precede sending a request, and writes a receipt. Tokens never pass
through the picker, so a receipt has no TTFT and no usage. If the gateway does not send response bodies, its stream
stays open until the response has ended, and then the request stops counting as load. Otherwise the stream is closed at
the decision: the request counts as load for its expected time, and its receipt says `picked`.
"""

import asyncio
import ipaddress
import time
from functools import lru_cache

import orjson

from router.contract.answer import answers, verdict
from router.contract.answer.verdict import Result
from router.contract.api_paths import CLASSLESS, MEDIA, ROUTED, BehindGateway
from router.contract.connectors import NIXL
from router.http import doors
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.limits import charge
from router.picker.stream import Answered, GatewayStream, pairs
from router.policy.types import Decision
from router.pool.endpoint import Endpoint
from router.pool.health.failure_attribution import has_no_capacity
from router.pool.lease import Lease
from router.pool.pool import Pool
from router.request import fault, predict
from router.request.call import Call
from router.request.offload import Offload
from router.request.outcome import Attempt
from router.serving import stored
from router.serving.answer.relay import own_lines
from router.serving.pages import Pages
from router.serving.pools import Pools
from router.serving.prompt.sessions import Sessions
from router.serving.proxy import Proxy
from router.spans.context import TRACE
from router.telemetry.recorder import Recorder
from router.tokenize.prompt import TOO_DEEP, TooComplex
from router.upstream.errors import KeyMissing
from router.upstream.keyed import with_key

PREFILL_TOKENS_PER_S = 5_000.0  # assumed rate of an unmeasured instance
PREFILLER = b"x-prefiller-host-port"  # header for llm-d's sidecar, which calls that instance before its decoder
DECODE_S = 0.02  # assumed time per output token of a response whose end is not reported


class Picking(Proxy):
    def __init__(
        self,
        pools: Pools,
        sessions: Sessions,
        recorder: Recorder,
        pages: Pages,
        *,
        single: bool = False,
        sidecars: bool = False,
    ) -> None:
        """`single`: name no alternatives for the gateway's retries. `sidecars`: a sidecar runs in front of each
        decoder."""
        super().__init__(pools, sessions, recorder)
        self._pages = pages
        self._single = single
        self._sidecars = sidecars
        self._turn = 0

    async def pick(self, incoming: IncomingRequest, stream: GatewayStream) -> None:
        if (incoming.method, incoming.path) in ROUTED:
            await self.handle(incoming, stream)
            return
        try:
            row = doors.admitted(incoming)
            if row.behind_gateway is BehindGateway.REFUSED:
                raise doors.not_served(incoming.path, "only the port of a router or picker answers it, no gateway")
            if row.behind_gateway is BehindGateway.ANY:
                await self._pick_any(incoming, stream)
            else:
                await self._pages.handle(incoming, stream)
        except ErrorResponse as refusal:
            doors.refuse(incoming, refusal, stream)

    async def _pick_any(self, incoming: IncomingRequest, stream: GatewayStream) -> None:
        """Pick instances in turn, for requests that need no decision, such as GET /health."""
        own = dict(incoming.headers)
        key = self._pools.auth.identify(incoming, own, time.time())
        named = own.get(b"x-weir-pool")
        pool = self._pools.pick(named.decode("latin-1") if named is not None else None, "", key)
        refusal = self._pools.barred(key, pool.name)
        if refusal is not None:
            raise refusal
        await stream.read()
        outside = unreached(pool, stream.subset)
        ready = [one for one in pool.endpoints.values() if one.takes_requests and one.id not in outside]
        if not ready:
            message = f"pool {pool.name}: no instance that the gateway reaches is ready: retry in 5 s"
            raise ErrorResponse(503, "no_instance_ready", message, retry_after_s=5)
        self._turn += 1
        picked = ready[self._turn % len(ready)]
        await stream.pick([address(picked)], _with_key(b"", picked))

    async def _answer(self, call: Call, client: ClientConnection) -> None:
        call.sidecars = self._sidecars
        call.outside = _elsewhere(call) | unreached(call.pool, _of_gateway(client).subset)
        await super()._answer(call, client)

    async def _attempt(
        self, call: Call, decision: Decision, tried: dict[str, str], left: int, client: ClientConnection
    ) -> bool:
        """Make an attempt. Return True once the gateway has the request."""
        stream, outcome = _of_gateway(client), call.outcome
        decisions = self._ranked(call, decision, tried, left)
        ranked = [call.pool.endpoints[one.instance] for one in decisions]
        first = served = ranked[0]
        outcome.attempts.append(_attempt(call, first))
        body = _changed_body(call)
        prefiller = _prefiller(call, decision)
        lease = _lease(call, first, decision.new_tokens if prefiller is None else 0)
        first.picked += (held := stream.tells_the_end and call.api_path not in CLASSLESS)
        try:
            self._sessions.sent(call, first)
            await stream.pick([address(one) for one in ranked], _headers(call, first, prefiller), body)
            outcome.close("picked")
            outcome.begun, outcome.streamed = True, call.request.prompt.stream
            prefill_s = _expected_s(call, decision, prefiller)
            asyncio.get_running_loop().call_later(prefill_s, lease.prefilled) if not lease.has_media() else None
            if not stream.tells_the_end:
                _end_later(call, lease, prefill_s)
                return True
            answered = await stream.answered()
            if (served := _take(call, ranked, answered)) is not first:
                first.picked, served.picked = first.picked - held, served.picked + held
                call.decision = decisions[ranked.index(served)]
                self._sessions.sent(call, served)
            if answered.status is not None:
                await stream.pass_on(pairs(own_lines(call)))
                await stream.ended()
            return True
        except asyncio.CancelledError:
            if not stream.gone or not outcome.label:
                raise
            return True  # the gateway's stream lasts until the end of the response
        finally:
            served.picked -= held
            if outcome.label != "picked" or stream.tells_the_end:
                _end(call, lease)

    def _ranked(self, call: Call, decision: Decision, tried: dict[str, str], left: int) -> list[Decision]:
        """Return the decision's instance, followed by the next choices in case it fails; only one instance if its rank
        needs a header."""
        ranked, out = [decision], dict(tried)
        if self._single or call.pool.endpoints[decision.instance].rank is not None:
            return ranked
        for _ in range(left):
            out[ranked[-1].instance] = "named before"
            further = self._decide(call, out)
            if not further.instance or not _same_key(call.pool, further, decision):
                break
            ranked.append(further)
        call.decision = decision
        return ranked


def _lease(call: Call, endpoint: Endpoint, tokens: int) -> Lease:
    outcome, document = call.outcome, call.request.prompt.document
    is_keyed = call.key is not None
    lease = call.pool.lease(endpoint, tokens, outcome, outcome.is_brief, call.tenant, document, is_keyed)
    lease.expect_no_token()
    lease.is_media = call.api_path in MEDIA or None
    return lease


def _prefiller(call: Call, decision: Decision) -> Endpoint | None:
    """Return the instance that computes the prompt for a sidecar, and record the offload; None if there is none."""
    prefiller = call.pool.endpoints.get(decision.prefill) if call.sidecars else None
    if prefiller is None or prefiller.connector != NIXL:
        return None
    call.outcome.offload = Offload(NIXL, prefiller.id, "ok")
    return prefiller


def _expected_s(call: Call, decision: Decision, prefiller: Endpoint | None) -> float:
    """Return the expected time of the prefill, during which the request counts as load of the prefill instance."""
    tokens = decision.new_tokens if prefiller is None else decision.prefill_new_tokens
    seconds = tokens / (call.pool.rates.prefill_tokens_per_s or PREFILL_TOKENS_PER_S)
    if prefiller is not None:
        counted = prefiller.lease(tokens, call.pool.queue.wake)
        counted.expect_no_token()
        asyncio.get_running_loop().call_later(seconds, counted.end)
    return seconds


def _of_gateway(client: ClientConnection) -> GatewayStream:
    assert isinstance(client, GatewayStream)  # noqa: S101 - narrows the type: `pick` is given no other
    return client


def _elsewhere(call: Call) -> dict[str, str]:
    """Return the instances that cannot continue the response to which the request refers. Answers do not pass through
    the picker, so only the instance of the request's session is known to store one. Raise ErrorResponse.
    """
    previous = call.request.prompt.document.get("previous_response_id") if call.api_path == stored.PATH else None
    if not isinstance(previous, str) or not previous or len({one.instance for one in call.pool.endpoints.values()}) < 2:
        return {}
    bound = call.pool.affinity.get(call.request.session or "", call.at, call.pool.policy["affinity.ttl_s"])
    owner = call.pool.endpoints.get(bound.instance) if bound is not None else None
    if owner is None:
        why = "behind a gateway it is found by the name of its session alone, and none is known"
        raise stored.not_found(previous, why)
    why = f"the session's response is stored by {owner.instance}"
    return {one.id: why for one in call.pool.endpoints.values() if one.instance != owner.instance}


def unreached(pool: Pool, subset: frozenset[str] | None) -> dict[str, str]:
    """Return the instances that the gateway cannot reach, with the reason. `subset` has addresses with or without a
    port; None means all addresses.
    """
    found = {}
    for endpoint in pool.endpoints.values():
        where = address(endpoint)
        if not where:
            found[endpoint.id] = f"its host {endpoint.upstream.host} is a name, and gateways take IP addresses"
        elif endpoint.upstream.base:
            found[endpoint.id] = "its URL has a path, which gateways do not put before those of requests"
        elif subset is not None and where not in subset and endpoint.upstream.host not in subset:
            found[endpoint.id] = "not in the gateway's subset"
    return found


def address(endpoint: Endpoint) -> str:
    """Return ip:port; empty if the URL has a host name."""
    return _address(endpoint.upstream.host, endpoint.upstream.port)


@lru_cache(maxsize=10_000)
def _address(host: str, port: int) -> str:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return ""
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def _headers(call: Call, endpoint: Endpoint, prefiller: Endpoint | None) -> list[tuple[bytes, bytes]]:
    traced = [pair for pair in pairs(call.request.forwarded) if pair[0] in TRACE] if call.tracing is not None else []
    named = [(PREFILLER, address(prefiller).encode())] if prefiller is not None else []
    return [(b"x-request-id", call.engine_id.encode()), *traced, *named, *_with_key(endpoint.rank_line, endpoint)]


def _with_key(lines: bytes, endpoint: Endpoint) -> list[tuple[bytes, bytes]]:
    """Add the engine's key. Routing excludes an instance without a readable key only a moment later; until then, raise
    ErrorResponse.
    """
    try:
        return list(pairs(with_key(lines, endpoint.engine_key)))
    except KeyMissing as error:
        raise ErrorResponse(error.status, error.code, f"{endpoint.id}: {error}", retry_after_s=1) from None


def _same_key(pool: Pool, one: Decision, other: Decision) -> bool:
    """Keep only instances with the same key, since a gateway retries with the same headers."""
    return pool.endpoints[one.instance].engine_key == pool.endpoints[other.instance].engine_key


def _attempt(call: Call, endpoint: Endpoint) -> Attempt:
    return Attempt(endpoint.id, call.pool.name, call.outcome.deciding, call.outcome.decided)


def _changed_body(call: Call) -> bytes | None:
    """Return the body for the engine if it differs from the client's: model renamed, router's fields removed. It does
    not request a stream's usage, as the picker could not remove the usage from the answer. Raise InvalidBody."""
    prompt, alias = call.request.prompt, call.alias
    if not prompt.rewritten and (alias is None or not alias.renames):
        return None
    if not call.request.strip_usage:
        return call.request.body
    try:
        return orjson.dumps(prompt.document)
    except orjson.JSONEncodeError:
        raise TooComplex(TOO_DEEP) from None


def _end_later(call: Call, lease: Lease, prefill_s: float) -> None:
    """Stop counting the request as load after its expected time."""
    limit = charge.output_limit(call.request.prompt.document, call.api_path)
    decode_s = call.pool.queue.outputs.tokens(limit) * DECODE_S
    asyncio.get_running_loop().call_later(prefill_s + decode_s, _end, call, lease)


def _end(call: Call, lease: Lease) -> None:
    predict.over(call.prediction.under_way)
    lease.end()


def _take(call: Call, ranked: list[Endpoint], answered: Answered) -> Endpoint:
    """Record the gateway's report and return the instance that served; instances before it in the list have failed."""
    outcome = call.outcome
    addresses = [address(one) for one in ranked]
    served = addresses.index(answered.served) if answered.served in addresses else 0
    for at, endpoint in enumerate(ranked[:served]):
        fault.failed(call, endpoint)
        outcome.attempts[at].result = "failed_before_content"
        outcome.attempts[at].error, outcome.attempts[at].ended = "the gateway gave it up", time.perf_counter()
        outcome.attempts.append(_attempt(call, ranked[at + 1]))
    endpoint, status = ranked[served], answered.status
    if status is not None:
        _judge(call, endpoint, status, answered.kind)
    return endpoint


def _judge(call: Call, endpoint: Endpoint, status: int, kind: bytes) -> None:
    outcome = call.outcome
    outcome.status = outcome.attempts[-1].status = status
    endpoint.progress.refused() if 400 <= status < 500 else None  # a 5xx may be the gateway's own
    result, error, status = _judged(call, endpoint, status, kind)
    outcome.attempts[-1].result = result
    outcome.close(result, error=error)
    if result == "served":
        endpoint.breaker.answered(computed=not outcome.is_brief)
        if not outcome.is_brief:
            endpoint.breaker.served()
            call.pool.accused.discard(call.tenant)
    elif result == "client_error":
        endpoint.breaker.answered(computed=False)
        endpoint.breaker.rejected()
        if status in verdict.DOUBTFUL and _is_alone_in_doubt(call.pool, endpoint):
            fault.failed(call, endpoint, f"status {status}")
    elif result == "refused":
        has_no_capacity(call.pool, endpoint, call.tenant)
    elif result == "failed_before_content":
        fault.failed(call, endpoint)
        if fault.forgive(call):
            outcome.close("failed_alike", error=outcome.error)


def _judged(call: Call, endpoint: Endpoint, status: int, kind: bytes) -> tuple[Result, str, int]:
    """Return (result of an answer, what is wrong with it, the status that reports it)."""
    asks_stream = call.request.prompt.stream
    error = answers.unlike_asked(kind, call.api_path, asks_stream=asks_stream) if status == 200 else None
    if error is not None:
        return verdict.of_error(error, has_content=False), f"{endpoint.id}: {error.message}", error.status or status
    is_key = fault.is_about_the_engines_key(call, endpoint, status)
    result = "failed_before_content" if is_key else verdict.of_status(status)
    return result, "" if result == "served" else f"{endpoint.id} answered {status}", status


def _is_alone_in_doubt(pool: Pool, endpoint: Endpoint) -> bool:
    """Return whether only this instance keeps rejecting requests that another instance would serve, since a picker
    cannot ask both.
    """
    others = [one for one in pool.endpoints.values() if one.instance != endpoint.instance and one.takes_requests]
    return endpoint.breaker.is_doubted and any(not one.breaker.is_doubted for one in others)
