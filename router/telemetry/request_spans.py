"""Builds the spans of an ended request from its times, attempts and decision. Pure.

    POST /v1/chat/completions   SERVER
    ├── queue
    ├── decide                  one for each attempt
    ├── prefill                 CLIENT, of an offload
    └── chat MODEL              CLIENT, one for each attempt
        ├── transfer            of the prefill's KV
        └── decode              first content to last byte of a stream

Prompts, answers and error texts never appear: errors are given by their codes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from router.contract.answer.verdict import VERDICTS
from router.request.call import Call
from router.request.outcome import Attempt
from router.request.tracing import QUEUE, SERVER, Tracing
from router.spans import names
from router.spans.otlp import Attribute, Kind, Span


@dataclass(frozen=True, slots=True)
class ServerAttributes:
    """Span attributes of an instance; None if unknown."""

    provider: str | None = None  # vllm, sglang, …
    address: str | None = None
    port: int | None = None


Find = Callable[[str, str], ServerAttributes]  # (pool, endpoint) → server


def spans(call: Call, tracing: Tracing, find: Find) -> list[Span]:
    return list(_Spans(call, tracing, find).made())


class _Spans:
    def __init__(self, call: Call, tracing: Tracing, find: Find) -> None:
        self._call = call
        self._tracing = tracing
        self._find = find
        self._ended = call.started + call.outcome.e2e_ms / 1000

    def made(self) -> Iterator[Span]:
        call, outcome, tracing = self._call, self._call.outcome, self._tracing
        yield self._server()
        queued_until = outcome.deciding
        if outcome.queued_s:
            first = outcome.attempts[0].deciding if outcome.attempts else outcome.deciding
            queued_until = first + outcome.queued_s
            reason: dict[str, Attribute | None] = {"weir.queue.reason": "waking" if outcome.held_s else "capacity"}
            yield self._span("queue", "internal", tracing.id(QUEUE), first, queued_until, reason)
        for number, attempt in enumerate(outcome.attempts):
            yield self._decide(number, attempt, queued_until if not number else attempt.deciding)
        if not outcome.attempts and call.decision is not None and not outcome.queued_s:
            yield self._decide(0, None, outcome.deciding)
        yield from self._prefills()
        for number, attempt in enumerate(outcome.attempts):
            yield from self._attempt(number, attempt)

    def _span(
        self,
        name: str,
        kind: Kind,
        id_: str,
        began: float,
        ended: float,
        attributes: dict[str, Attribute | None],
        parent: str = "",
    ) -> Span:
        unix = self._call.at - self._call.started
        parent = parent or self._tracing.id(SERVER)
        return Span(name, kind, self._tracing.trace, id_, began + unix, ended + unix, parent, attributes=attributes)

    def _server(self) -> Span:
        call, outcome, tracing = self._call, self._call.outcome, self._tracing
        decided = call.decision is not None
        failed = outcome.status >= 500 or outcome.label == "error"
        made = self._span(
            f"POST {call.api_path}",
            "server",
            tracing.id(SERVER),
            call.started,
            self._ended,
            {
                "http.request.method": "POST",
                "http.route": call.api_path,
                "http.response.status_code": outcome.status or None,
                "error.type": _error_type(outcome.code, outcome.status, failed),
                "weir.request_id": call.id,
                "weir.pool": call.pool.name,
                "weir.class": call.decision.request_class if call.decision is not None else None,
                "weir.policy": call.policy,
                "weir.policy.version": call.version if decided else None,
                "weir.flow": outcome.flow if decided else None,
                "weir.key": call.key.name if call.key is not None else None,
            },
        )
        made.parent = tracing.parent.span if tracing.parent is not None else ""
        made.remote, made.state, made.failed = tracing.parent is not None, tracing.state, failed
        return made

    def _decide(self, number: int, attempt: Attempt | None, began: float) -> Span:
        """Build the span of the decision; only the last attempt's decision is kept."""
        call, decision = self._call, self._call.decision
        last = attempt is None or attempt is call.outcome.attempts[-1]
        known: dict[str, Attribute | None] = {"weir.instance": attempt.instance if attempt is not None else None}
        if last and decision is not None:
            known |= {
                "weir.rule": decision.rule,
                "weir.strategy": decision.strategy,
                "weir.candidates": len(decision.candidates),
                "weir.predicted_cached_tokens": decision.cached_tokens,
            }
        ended = attempt.began if attempt is not None else self._ended
        return self._span("decide", "internal", self._tracing.of_attempt(number, 1), began, ended, known)

    def _prefills(self) -> Iterator[Span]:
        offload = self._call.outcome.offload
        for prefill in self._tracing.prefills:
            server = self._find(self._call.pool.name, prefill.instance)
            known: dict[str, Attribute | None] = {
                "weir.instance": prefill.instance,
                "weir.connector": offload.connector if offload is not None else None,
                "server.address": server.address,
                "server.port": server.port,
                "error.type": prefill.error,
            }
            made = self._span("prefill", "client", prefill.id, prefill.began, prefill.ended, known)
            made.failed = bool(prefill.error)
            yield made

    def _attempt(self, number: int, attempt: Attempt) -> Iterator[Span]:
        call, outcome, id_ = self._call, self._call.outcome, self._tracing.of_attempt(number)
        last = number == len(outcome.attempts) - 1
        answered = last and outcome.first_content is not None
        began, ended = attempt.began, attempt.ended or (outcome.last_byte if last else None) or self._ended
        offload = outcome.offload if last else None
        if offload is not None and offload.sent is not None and offload.outcome in ("", "ok"):
            began = max(began, offload.sent)
        status = attempt.status or 0
        model = _model(call)
        operation = names.operation(call.api_path)
        server = self._find(attempt.pool, attempt.instance)
        result = (attempt.result or outcome.result if last else attempt.result) or "served"
        failed = bool(attempt.code) or status >= 400 or VERDICTS[result].label not in ("ok", "cancelled", "picked")
        known: dict[str, Attribute | None] = {
            names.OPERATION: operation,
            names.PROVIDER: server.provider,
            names.MODEL: model,
            "weir.instance": attempt.instance,
            "http.response.status_code": attempt.status,
            "server.address": server.address,
            "server.port": server.port,
            "error.type": _error_type(attempt.code or (outcome.code if last else ""), status, failed, result),
        }
        made = self._span(f"{operation} {model}", "client", id_, began, ended, known)
        made.failed = failed
        if answered:
            made.attributes |= self._answered(began)
        yield made
        if answered:
            yield from self._parts(number, id_)

    def _answered(self, began: float) -> dict[str, Attribute | None]:
        """Return attributes of the attempt whose answer the client got."""
        call, outcome = self._call, self._call.outcome
        usage, streamed = outcome.usage, outcome.streamed and outcome.first_content is not None
        return {
            names.STREAM: True if outcome.streamed else None,
            names.FIRST_CHUNK: (outcome.first_content or 0.0) - began if streamed else None,
            names.INPUT: usage.prompt_tokens if usage is not None else None,
            names.CACHED: usage.cached_tokens if usage is not None else None,
            names.OUTPUT: usage.output_tokens if usage is not None else None,
            names.CONVERSATION: call.session_key,
        }

    def _parts(self, number: int, parent: str) -> Iterator[Span]:
        outcome, tracing = self._call.outcome, self._tracing
        offload = outcome.offload
        if offload is not None and offload.arrived is not None and offload.transfer_ms is not None:
            known: dict[str, Attribute | None] = {
                "weir.instance": outcome.attempts[number].instance,
                "weir.connector": offload.connector,
                "weir.transfer_bytes": offload.transfer_bytes,
            }
            began = offload.arrived - offload.transfer_ms / 1000
            yield self._span(
                "transfer", "internal", tracing.of_attempt(number, 2), began, offload.arrived, known, parent
            )
        if outcome.streamed and outcome.first_content is not None and outcome.last_byte is not None:
            ids = tracing.of_attempt(number, 3)
            yield self._span("decode", "internal", ids, outcome.first_content, outcome.last_byte, {}, parent)


def _model(call: Call) -> str:
    """Return the engine's name of the model."""
    return call.alias.serves if call.alias is not None else call.adapter or call.pool.model


def _error_type(code: str, status: int, failed: bool, result: str = "_OTHER") -> str | None:
    """Return the error type; `result` replaces it for an answer of status 200."""
    if code:
        return code
    if not failed:
        return None
    return str(status) if status >= 400 else result
