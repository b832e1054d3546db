"""Randomly drawn plans for an engine's treatment of one request, and the resulting bytes in each API."""

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import strategies as st

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
STREAMED = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
CHUNKED = (CHAT, COMPLETIONS)  # APIs that stream chunks with choices
PATHS = (*STREAMED, EMBEDDINGS, RERANK)

Usage = tuple[Any, Any]  # reported tokens of the prompt and of the answer
End = Literal["whole", "closes", "resets", "holds", "stays"]
HONEST = ("begin", "text", "text", "finish", "usage", "end")
KINDS = (
    *("begin", "ping", "alive", "text", "thought", "tool", "decoy", "long", "finish", "usage", "end"),
    *("error", "error_client", "error_busy", "error_text", "error_named", "abort", "garbage"),
)
STATUSES = (200, 200, 400, 400, 400, 401, 403, 404, 405, 408, 413, 422, 429, 500, 501, 502, 503, 504, 302)
USAGES: tuple[Usage, ...] = ((9, 3), (40, 20), (0, 0), (10**12, 10**12), (-5, -1), ("9", None), (True, 1.5))
TOLD = (777, 888)  # usage reported by a decoy
TRUE = (True, True, 1, 1.0, "true", "True", "on", "yes", "1")  # values that engines accept as true
FALSE = (None, None, False, 0, "false", "off", "no")  # None: left out
# Replacements for a whole answer: content type and body
PAGES: dict[str, tuple[str, bytes]] = {
    "html": ("text/html", b"<html>busy</html>"),
    "text": ("", b"busy"),
    "remark": ("application/json", b'{"detail": "busy"}'),
    "null": ("application/json", b"null"),
    "empty": ("application/json", b""),
    "hollow": ("application/json", b'{"id": "x", "choices": [], "data": [], "results": [], "usage": {}}'),
}


@dataclass(frozen=True)
class Plan:
    events: tuple[str, ...] = HONEST
    status: int = 200
    end: End = "whole"  # holds: waits until the engine continues; stays: waits forever
    at: int = 99  # event before which it ends; -1: before the head
    usages: tuple[Usage, ...] = ((9, 3),)  # reported in this order
    framing: Literal["chunked", "length", "close"] = "chunked"
    crlf: bool = False
    piece: int = 0  # bytes per chunk; 0: one event per chunk
    streams: bool | None = None  # None: as the request asks
    slow: bool = False  # time passes between events
    page: str = ""  # one of PAGES, sent in place of a whole answer
    then: "Plan | None" = None  # plan of the next lying engine that gets the request; None: the same plan


GOOD = Plan()
HANGS = Plan(end="stays", at=-1)
_EVENTS = st.sampled_from(KINDS)
_FAILURES = st.sampled_from(KINDS[-7:])


@st.composite
def event_lists(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw the events of an honest answer with some edits."""
    events = list(HONEST)
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        where = draw(st.integers(0, len(events)))
        edit = draw(st.sampled_from(("insert", "fail", "fail", "delete", "cut", "repeat")))
        if edit in ("insert", "fail"):
            events.insert(where, draw(_EVENTS if edit == "insert" else _FAILURES))
        elif edit == "delete":
            del events[where : where + 1]
        elif edit == "cut":
            del events[where:]
        else:
            events[where:where] = events[where : where + 1] * 9
    return tuple(events)


ENDS: tuple[End, ...] = ("whole", "closes", "resets", "holds", "stays")
LIES: dict[str, st.SearchStrategy[Any]] = {
    "events": event_lists(),
    "status": st.sampled_from(STATUSES),
    "end": st.sampled_from(ENDS),
    "at": st.integers(-1, 6),
    "usages": st.lists(st.sampled_from(USAGES), min_size=1, max_size=2).map(tuple),
    "framing": st.sampled_from(("chunked", "chunked", "length", "close")),
    "crlf": st.booleans(),
    "piece": st.sampled_from((0, 0, 1, 7, 64)),
    "streams": st.sampled_from((None, None, None, True, False)),
    "slow": st.booleans(),
    "page": st.sampled_from(("", *PAGES)),
}


def _lying(*names: str) -> st.SearchStrategy[Plan]:
    """Draw an answer that is honest except for the given lies."""
    return st.builds(Plan, **{name: LIES[name] for name in names})


# One lie hides another, so most plans have few lies
_ONE = st.one_of(
    _lying("events"),
    _lying("events", "framing", "crlf", "piece", "slow"),
    _lying("events", "usages"),
    _lying("status"),
    _lying("page", "streams"),
    _lying("end", "at", "framing"),
    _lying("events", "end", "at"),
    _lying(*LIES),
)


@st.composite
def _lies(draw: st.DrawFn) -> Plan:
    plan = draw(_ONE)
    return replace(plan, then=draw(_ONE)) if draw(st.integers(0, 4)) == 4 else plan


PLANS = _lies()
# One engine closes the connection as if it had died, and the next fails in another way
DEATHS = st.builds(
    Plan,
    end=st.sampled_from(("closes", "resets")),
    at=st.just(-1),
    then=st.sampled_from((Plan(status=500), Plan(status=401), Plan(status=503), Plan(events=("error",)), HANGS)),
)
# Every engine fails alike on this request
POISONS = st.sampled_from(
    (
        Plan(status=500),
        Plan(end="closes", at=-1),
        Plan(end="resets", at=0),
        Plan(events=("begin", "error")),
        Plan(events=("error",)),
        Plan(status=400),
        Plan(status=422),
    )
)

ERRORS: dict[str, Any] = {
    "error": {"message": "EngineCore is dead", "type": "InternalServerError", "code": 500},
    "error_client": {"message": "the prompt is too long", "type": "BadRequestError", "code": 400},
    "error_busy": {"message": "overloaded", "type": "ServiceUnavailableError", "code": 503},
    "error_text": "it failed",
}
_OF_AN_ABORT = {MESSAGES: {"type": "api_error", "message": "aborted"}, RESPONSES: {"message": "aborted"}}


def error_body(path: str, error: Any) -> dict[str, Any]:
    return {"type": "error", "error": error} if path == MESSAGES else {"error": error}


def usage_of(path: str, told: Usage) -> dict[str, Any]:
    prompt, output = told
    if path == MESSAGES:
        return {"output_tokens": output}
    if path == RESPONSES:
        return {"input_tokens": prompt, "output_tokens": output, "input_tokens_details": {"cached_tokens": 0}}
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 1}


def _chunk(path: str, text: str | None, **more: Any) -> dict[str, Any]:
    if path == CHAT:
        delta = {} if text is None else {"content": text}
        return {"choices": [{"index": 0, "delta": delta, **more}]}
    return {"choices": [{"index": 0, "text": text or "", **more}]}


DECOY = {"usage": {"prompt_tokens": TOLD[0], "completion_tokens": TOLD[1]}}


def event(path: str, kind: str, told: Usage) -> bytes:
    """Return one event of a stream, without its blank line."""
    if kind == "ping":
        return b"event: ping\ndata: " + _json({"type": "ping"}) if path == MESSAGES else b": ping"
    if kind == "garbage":
        return b'data: {"choices": [{"te\xc3'
    if kind == "alive":  # an endpoint outside every API
        return b'data: {"type": "keepalive", "model": "llama"}'
    if kind == "error_named":
        return b'event: error\ndata: "it failed"'
    if kind == "end" and path in CHUNKED:
        return b"data: [DONE]"
    document = (_of_chunks if path in CHUNKED else _of_messages if path == MESSAGES else _of_responses)(
        path, kind, told
    )
    if document is None:
        return b": nothing"
    name = f"event: {document['type']}\n".encode() if "type" in document and path not in CHUNKED else b""
    return name + b"data: " + _json(document)


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def _of_chunks(path: str, kind: str, told: Usage) -> dict[str, Any] | None:
    if kind in ERRORS:
        return error_body(path, ERRORS[kind])
    if kind == "usage":
        return {"choices": [], "usage": usage_of(path, told)}
    if kind in ("finish", "abort"):
        return _chunk(path, None, finish_reason="stop" if kind == "finish" else "abort")
    if kind == "begin":
        return _chunk(path, "")
    if kind == "tool" and path == CHAT:
        call = {"index": 0, "function": {"arguments": json.dumps(DECOY)}}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    if kind == "thought" and path == CHAT:
        return {"choices": [{"index": 0, "delta": {"reasoning": "wört"}}]}
    text = {"tool": json.dumps(DECOY), "long": "ü" * 9000}.get(kind, "wört")
    return _chunk(path, text) | ({"metadata": DECOY} if kind == "decoy" else {})


def _of_messages(path: str, kind: str, told: Usage) -> dict[str, Any] | None:
    if kind in ERRORS or kind == "abort":
        return error_body(path, ERRORS.get(kind, _OF_AN_ABORT[MESSAGES]))
    if kind == "begin":
        return {"type": "message_start", "message": {"usage": {"input_tokens": told[0], "output_tokens": 1}}}
    if kind == "usage":
        return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage_of(path, told)}
    if kind in ("finish", "end"):
        return {"type": "content_block_stop" if kind == "finish" else "message_stop"}
    part = {"type": "text_delta", "text": "ü" * 9000 if kind == "long" else "wört"}
    if kind == "tool":
        part = {"type": "input_json_delta", "partial_json": json.dumps(DECOY)}
    if kind == "thought":
        part = {"type": "thinking_delta", "thinking": "wört"}
    return {"type": "content_block_delta", "delta": part} | ({"metadata": DECOY} if kind == "decoy" else {})


def _of_responses(path: str, kind: str, told: Usage) -> dict[str, Any] | None:
    if kind == "error_text":
        return {"type": "error", "message": "it failed"}
    if kind in ERRORS or kind == "abort":
        error = ERRORS.get(kind, _OF_AN_ABORT[RESPONSES])
        return {"type": "response.failed", "response": {"status": "failed", "error": error}}
    if kind in ("begin", "end"):
        name, status = ("created", "in_progress") if kind == "begin" else ("completed", "completed")
        usage = {"usage": usage_of(path, told)} if kind == "end" else {}
        return {"type": f"response.{name}", "response": {"id": "resp_liar", "status": status, **usage}}
    if kind == "usage":
        return None
    if kind == "finish":
        return {"type": "response.output_text.done", "text": "wört"}
    name = {"tool": "function_call_arguments", "thought": "reasoning_text"}.get(kind, "output_text")
    text = {"tool": json.dumps(DECOY), "long": "ü" * 9000}.get(kind, "wört")
    return {"type": f"response.{name}.delta", "delta": text} | ({"metadata": DECOY} if kind == "decoy" else {})


def failing(path: str, plan: Plan) -> str:
    """Return the kind of failure in a whole answer of status 200; empty for none."""
    if plan.page:
        return "page"
    kinds = [kind for kind in plan.events if kind in ERRORS or kind in ("abort", "garbage")]
    if not kinds or (kinds[0] == "abort" and path in (EMBEDDINGS, RERANK)):
        return ""
    return kinds[0]


def whole(path: str, plan: Plan) -> bytes:
    """Return the body of an answer that is not streamed."""
    kind = failing(path, plan)
    if plan.page and plan.status == 200:
        return PAGES[plan.page][1]
    if plan.status != 200:
        return _json(error_body(path, {"message": f"status {plan.status}", "type": "x", "code": plan.status}))
    if kind == "garbage":
        return b'{"choices": [{"te'
    if kind in ERRORS:
        return _json(error_body(path, ERRORS[kind]))
    return _json(_answer(path, "abort" if kind else "stop") | {"usage": _told_whole(path, plan), "metadata": DECOY})


def _answer(path: str, finish: str) -> dict[str, Any]:
    if path in CHUNKED:
        text = {"message": {"content": "wört"}} if path == CHAT else {"text": "wört"}
        return {"choices": [{"index": 0, "finish_reason": finish, **text}]}
    if path == MESSAGES:
        of = {"type": "message", "content": [{"type": "text", "text": "wört"}], "stop_reason": "end_turn"}
        return of if finish == "stop" else error_body(path, _OF_AN_ABORT[MESSAGES])
    if path == RESPONSES:
        return {"object": "response", "status": "completed" if finish == "stop" else "failed", "output": []}
    if path == EMBEDDINGS:
        return {"object": "list", "data": [{"index": 0, "embedding": [0.5]}]}
    return {"id": "x", "results": [{"index": 0, "relevance_score": 0.5}]}


# The KV location in an answer to a prefill
_BLOCKS = {"do_remote_prefill": True, "remote_engine_id": "x", "remote_block_ids": [1], "remote_host": "h"}
_CONTEXT = {"request_type": "context_only", "first_gen_tokens": [7], "ctx_request_id": 2**62 + 1}


def held(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a whole answer to a prefill contains besides its text; empty if there is nothing, or if it is not a
    prefill.
    """
    if (document.get("kv_transfer_params") or {}).get("do_remote_decode"):
        return {"kv_transfer_params": _BLOCKS}
    context = (document.get("disaggregated_params") or {}).get("request_type") == "context_only"
    return {"disaggregated_params": _CONTEXT, "finish_reason": "length"} if context else {}


def is_prefill(document: dict[str, Any]) -> bool:
    """Return whether the request is a prefill: it asks for one token, which no client does."""
    limits = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return bool(held(document)) or 1 in (document.get(name) for name in limits)


def located(body: bytes, held: dict[str, Any]) -> bytes:
    """Return the body with the KV location; a failed answer has none."""
    if not held or b'"error"' in body or b'"abort"' in body or not body.endswith(b"}"):
        return body
    answer = json.loads(body)
    ((answer.get("choices") or [{}])[0] if "finish_reason" in held else answer).update(held)  # a remark has none
    return _json(answer)


def _told_whole(path: str, plan: Plan) -> dict[str, Any]:
    of = usage_of(path, plan.usages[0])
    return {"input_tokens": plan.usages[0][0], **of} if path == MESSAGES else of
