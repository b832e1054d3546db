"""Reads an engine's answer: content, failure, completeness, usage. Pure. On the path of every stream, `find` replaces
`in`, because `in` first tries to convert its operand to an integer and handles the exception. The shape of a JSON value
tells its API: chunks of chat and plain completions, events of responses and messages, whole answers of each. A value of
an unknown shape counts as content, unless it has no text.
"""

import json
import re
import struct
from base64 import b64decode
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import islice
from math import isnan
from typing import Any, Final, Literal

import msgspec
import orjson

from router.contract.answer import verdict
from router.contract.answer.said import AnswerError, Ending, Said, SaidChoice
from router.contract.answer.verdict import Result
from router.contract.api_paths import CLASSLESS, IMAGES, MEDIA
from router.contract.values.json_value import JsonObject

# quiet: a sign of life without output; end: nothing follows
Sign = Literal["quiet", "content", "error", "end"]

ABORTED: Final = ("error", "abort", "cancelled", "timeout")  # finish reasons of answers that the engine abandoned
WHOSE_END = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")  # streams with a final event
LONGEST_MESSAGE = 500  # characters of an error's message
LONGEST_REMARK = 4096  # bytes; a larger answer is never a remark
EMPTY = "the answer is empty"
NO_JSON = "the answer is not valid JSON in UTF-8"
NO_CONTENT = "the stream ended without content"
# Tuples rather than sets, as a field may hold an unhashable value
_CLIENTS_TYPES = ("BadRequestError", "invalid_request_error", "request_too_large", "UnprocessableEntityError")
_CLIENTS_CODES = (
    *("invalid_prompt", "invalid_request_error", "context_length_exceeded", "string_above_max_length"),
    *("invalid_image", "invalid_image_format", "image_too_large", "invalid_base64_image", "invalid_image_url"),
)
_STATUSES = {
    **dict.fromkeys(("overloaded_error", "service_unavailable_error", "ServiceUnavailableError"), 503),
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "RateLimitError"), 429),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "AuthenticationError"), 401),
    **dict.fromkeys(("permission_error", "PermissionDeniedError"), 403),
    **dict.fromkeys(("not_found_error", "model_not_found", "NotFoundError"), 404),
}  # statuses of errors without one, by type or code
UNFINISHED: Final = ("queued", "in_progress")  # statuses of a response that is still generating
# Error texts of vLLM and SGLang, of SGLang whose KV cache is shorter than its context, and of TensorRT-LLM
_TOO_LONG = re.compile(
    rb"context[ _]length|maximum model length|maximum allowed length|max_(?:seq_len|num_tokens)\b",
)
# Error texts that TensorRT-LLM sends, like all its errors, with status 400
_OF_ENGINES = re.compile(
    r"""\b(?:CUDA|NCCL|HIP)(?:["']? |_|Error|GetLastError)|\bcu(?:BLAS|DNN)(?:_STATUS| error)|out of memory"""
    r"""|illegal memory access|device-side assert|EngineCore|engine ?(?:is|has been)? ?dead|KVTransferError"""
    r"""|background loop (?:is not running|has errored)|forward(?:A?sync) function|internal ?server ?error"""
    r"""|Traceback \(|"(?:code|status|status_code)": ?"?5\d\d\b""",
    re.IGNORECASE,
)
# Match from the first backslash only; otherwise a long run of backslashes would be tried at every position
_ESCAPED, _ESCAPED_BLANK = re.compile(r"(?<!\\)\\+u([0-9a-fA-F]{4})"), re.compile(r"(?<!\\)\\+[bfnrt]")
NEAR = 12  # characters around words of an engine that are compared to see whether it quotes the request
MOST_WORDS = 32  # largest number of an engine's words to look for in the request
MOST_ASKED = 256 * 1024  # bytes; of longer requests, only the beginning and the end are searched for these words
_FURTHER_DATA = re.compile(rb"\ndata:([^\n]*)")
# SGLang's finish reason is an object; it may finish other answers after the error of one
_GIVEN_UP = re.compile(rb'"(?:finish_reason|type)": ?"(?:error|abort|cancelled|timeout)"|"error": ?[{"]')
_NAMED_ERROR = re.compile(rb"(?:^|\n)event: ?error\r?(?:\n|\Z)")
_ENDS = frozenset(("message_stop", "response.completed", "response.incomplete", "response.cancelled"))
_FAILURES = ("error", "response.failed", "response.error")
_NOTHING: Final = (None, None, None, None, None)
_NO_CONTENT = ("role", "type", "index")  # fields of a delta
_OF_CHOICES = ("/v1/chat/completions", "/v1/completions")
# Fields that do not count as content
_REMARKS = frozenset(
    (
        "code",
        "detail",
        "errors",
        "message",
        "msg",
        "ok",
        "path",
        "reason",
        "status",
        "success",
        "timestamp",
        "title",
        "type",
    )
)
_RESULTS = ("data", "results")  # fields that list the results in an unstreamed answer
# Overflowing models compute scores and vectors of nulls; what stands before them
_BEFORE_NULLS = (b"[", b'score":', b'score": ', b'embedding":', b'embedding": ')
_VECTOR = b'"embedding":'
MOST_PLACES = 1_000  # places of a word in a long answer that are looked at
_NUMBERS = struct.Struct("<3f")  # the first numbers of a vector
# Fields of a result that do not hold it
_OF_RESULT = frozenset(("index", "object", "id", "type", "document", "num_classes", "revised_prompt"))
# Metadata fields of an unstreamed answer
_BESIDE = _REMARKS.union(("id", "object", "index", "model", "created", "created_at", "usage", "meta"))
_QUIET = frozenset(("message_start", "ping", "content_block_stop"))
# Text fields of an unknown event that are not content
_LABELS = frozenset(("type", "object", "id", "event_id", "model", "status", "service_tier", "system_fingerprint"))
_KNOWN = ("response.", "content_block_")  # prefixes of known event kinds
_EMPTY_BLOCKS = ("text", "thinking", "text_delta", "thinking_delta", "input_json_delta")


STREAM = AnswerError("the answer is a stream where a whole one was asked for")
# Treated like a refusal from an engine that cannot stream
NO_STREAM = AnswerError("the answer is whole where a stream was asked for", 501, is_clients=True)


def unlike_asked(kind: bytes, api_path: str, *, asks_stream: bool) -> AnswerError | None:
    """Return why an answer is not of the type that the client requested. An empty content type is unknown."""
    if kind.lower().startswith(b"text/event-stream"):
        return None if asks_stream or api_path in MEDIA else STREAM
    return NO_STREAM if kind and asks_stream and api_path in WHOSE_END else None


def is_too_long(status: int, body: bytes) -> bool:
    """Return whether the engine refused a prompt that does not fit its context."""
    return status == 400 and _TOO_LONG.search(body) is not None


_SAID: Final = msgspec.json.Decoder(Said)


def said(data: bytes) -> Said | None:
    """Parse the fields of a JSON object; None for anything else."""
    try:
        return _SAID.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        is_marked = data.startswith(BOM_UTF8) and not data.startswith(BOM_UTF8, len(BOM_UTF8))
        return said(data[len(BOM_UTF8) :]) if is_marked else None


def sign_of(event: Said, data: bytes = b"") -> Sign:
    """Classify an event. `data` is its JSON, in which the text of an event of an unknown kind is searched."""
    kind = event.type
    if event.error or kind in _FAILURES or event.object == "error":
        return "error"
    if event.choices is not None:
        return _of_choices(event.choices)
    if _is_flat(event) or _several(event) or (kind == "message_delta" and _given_up(event)):
        return "error"
    if isinstance(kind, str):
        if kind in _ENDS:
            return "error" if _is_failed(event) else "end"
        if not _generates(kind, event):
            return "quiet"
        if kind.startswith(_KNOWN):
            return "content"
    return "content" if _has_text(data) else "quiet"


def _has_text(data: bytes) -> bool:
    """Return whether an event of an unknown kind holds any text; without text, it only keeps the connection alive."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return True
    if not isinstance(found, dict):
        return True
    return any(_says(part) for name, part in found.items() if name not in _LABELS and not _remarks(name, part))


def _remarks(name: str, part: object) -> bool:
    return name in _REMARKS and isinstance(part, str)


def _says(value: object, depth: int = 16) -> bool:
    if isinstance(value, dict | list):
        return not depth or any(_says(one, depth - 1) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and bool(value)


def _is_flat(event: Said) -> bool:
    """Return whether the object itself is an error."""
    return event.code is not None and isinstance(event.message, str)


def _several(event: Said) -> list[Any] | None:
    """Return the errors listed in choices, or in an answer without choices."""
    if event.choices is not None:
        return [choice.error for choice in event.choices if choice.error] or None
    return event.errors if isinstance(event.errors, list) and event.errors else None


def _given_up(event: Said) -> AnswerError | None:
    """Return the error of an answer that the engine abandoned; None if it did not. Accepts chunks, events and whole
    answers of any API."""
    for choice in event.choices or ():
        if choice.finish_reason is not None and _is_abort(choice.finish_reason):
            return _abandoned("finish_reason", choice.finish_reason)
    reason = event.delta.get("stop_reason") if isinstance(event.delta, dict) else event.stop_reason
    return _abandoned("stop_reason", reason) if reason is not None and reason in ABORTED else None


def _abandoned(field: str, reason: object) -> AnswerError:
    """Return the error of an abandoned answer. SGLang's reason includes a status."""
    why = f"the engine abandoned the answer: {field} {reason}"
    details = reason if isinstance(reason, dict) else {}
    return _error({"message": why, "code": details.get("status_code"), "type": details.get("err_type")}, b"")


def _is_abort(finish: object) -> bool:
    """Return whether SGLang uses this finish reason for an abandoned answer, in either of its APIs."""
    return (finish.get("type") if isinstance(finish, dict) else finish) in ABORTED


def _generates(kind: str, event: Said) -> bool:
    """Return whether an event of the Responses or Messages API, or of an unknown kind, has generated content."""
    if kind in ("content_block_delta", "content_block_start"):
        block = event.delta if kind == "content_block_delta" else event.content_block
        return _has_content(block) or (isinstance(block, dict) and block.get("type") not in _EMPTY_BLOCKS)
    if kind.startswith("response.output_item."):
        return _is_generated(event.item, is_done=kind.endswith(".done"))
    if kind.startswith("response."):
        return bool(event.delta) if kind.endswith(".delta") else kind.endswith((".done", ".partial_image"))
    return kind not in _QUIET


def _is_generated(item: object, *, is_done: bool) -> bool:
    """Return whether an item of a response is generated, as a call's name is. Others are announced empty; tools are
    listed before the prefill."""
    kind = item.get("type") if isinstance(item, dict) else None
    return kind != "mcp_list_tools" if is_done else isinstance(kind, str) and kind.endswith("_call")


def _of_choices(choices: list[SaidChoice]) -> Sign:
    sign: Sign = "quiet"
    for choice in choices:
        finish = choice.finish_reason
        if choice.error or (finish is not None and (finish in ABORTED or (type(finish) is dict and _is_abort(finish)))):
            return "error"
        if choice.text or finish or _has_content(choice.delta):
            sign = "content"
    return sign


def _has_content(delta: object) -> bool:
    """Return whether a delta has generated content: text, reasoning, a tool call, a refusal, audio."""
    if not isinstance(delta, dict):
        return bool(delta)
    for name, value in delta.items():
        if value and name not in _NO_CONTENT and (isinstance(value, str) or _tells(value)):
            return True
    return False


def _tells(value: object, depth: int = 4) -> bool:
    """Return whether a value holds any content, at any depth."""
    if isinstance(value, dict):
        value = [below for name, below in value.items() if name not in _NO_CONTENT]
    if isinstance(value, list) and depth:
        return any(_tells(below, depth - 1) for below in value)
    return bool(value)


def error_of(event: Said, data: bytes = b"") -> AnswerError | None:
    """Return the error of an event or whole answer, if any. `data`: its JSON."""
    response = event.response
    if event.error or (response is not None and response.error):
        reported = event.error or (response.error if response is not None else None)
        return _error(reported, data if event.error else b"")
    if event.type in _FAILURES or event.object == "error" or (event.choices is None and _is_flat(event)):
        kind = event.type if event.type not in _FAILURES else None
        return _error({"message": event.message, "code": event.code, "type": kind}, b"")
    if (errors := _several(event)) is not None:
        return _error(errors[0], b"")
    if (error := _given_up(event)) is not None:
        return error
    if event.choices is None and _is_failed(event):
        status = event.status if response is None else response.status
        return AnswerError(f"the engine says that the response {'failed' if status == 'failed' else 'was cancelled'}")
    return None


def _is_failed(event: Said) -> bool:
    """Return whether the response reports a failure. vLLM marks a response that it gave up as completed, with the
    status cancelled."""
    if event.response is None:
        return event.status in ("failed", "cancelled")
    given_up = event.type == "response.completed" and event.response.status == "cancelled"
    return given_up or event.response.status == "failed" or bool(event.response.error)


def unfinished(event: Said) -> AnswerError | None:
    """Return the error of a whole response that is still generating, which is allowed only in the background."""
    if event.object != "response" or event.status not in UNFINISHED:
        return None
    return AnswerError(f"the response is {event.status}, and was not requested in the background")


def wrong_with(event: Said | None, data: bytes, api_path: str, *, background: bool = False) -> AnswerError | None:
    """Return why a whole answer of status 200 is not an answer of the API; None if it is. `background` is True if the
    response may be generated after the answer."""
    if event is None:
        return _wrong_value(data, api_path)
    others = event.error, event.response, event.type, event.delta, event.stop_reason
    if event.choices and len(event.choices) == 1 and others == _NOTHING and event.object != "error":
        (choice,) = event.choices
        # Most answers end here
        finish = choice.finish_reason
        if type(finish) is str and finish not in ABORTED and not choice.error and api_path in _OF_CHOICES:
            return None
    if (error := error_of(event, data)) is not None:
        return error
    is_long = len(data) > LONGEST_REMARK and api_path not in WHOSE_END
    if is_long and not _may_be_bad(data):
        return None
    if not background and api_path == "/v1/responses" and (error := unfinished(event)) is not None:
        return error
    return _wrong_value(data, api_path)


def _may_be_bad(data: bytes) -> bool:
    """Return whether a result in a long answer may be an error, null or NaN."""
    if data.find(b'"error"') >= 0:
        return True
    if any(data.endswith(_BEFORE_NULLS, 0, at) for word in (b"null", b"NaN") for at in _places(data, word)):
        return True
    return any(
        _is_nan(data[at + len(_VECTOR) : at + len(_VECTOR) + 18].lstrip(b' "')[:16]) for at in _places(data, _VECTOR)
    )


def _places(data: bytes, word: bytes) -> Iterator[int]:
    at = data.find(word)
    for _ in range(MOST_PLACES):
        if at < 0:
            return
        yield at
        at = data.find(word, at + len(word))


def _wrong_value(data: bytes, api_path: str) -> AnswerError | None:
    """Judge an answer by its JSON value alone; the value may contain Python's NaN and Infinity."""
    if not data:
        return AnswerError(EMPTY)
    try:
        # Decode to text first: `json.loads` would also accept UTF-16 bytes, which clients cannot read.
        value = json_object(data) or json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return AnswerError(NO_JSON)
    if not isinstance(value, dict) and (api_path in WHOSE_END or not isinstance(value, list)):
        return AnswerError("the answer is not a JSON object")
    if api_path not in WHOSE_END and (error := _error_of_an_item(value)):
        return _error(error, b"")
    return None if _holds(value, api_path) else AnswerError("the answer has no field of an answer")


def begins_json(data: bytes) -> bool:
    """Return whether an answer whose beginning is known may be UTF-8 JSON."""
    start = data.removeprefix(BOM_UTF8).lstrip()[:2]
    return start[:1] in (b"", b"{", b"[") and start[1:] != b"\0"


def _error_of_an_item(value: Any) -> object:
    """Return the first error in place of a result."""
    return next((item["error"] for item in _results(value) if item.get("error")), None)


def _results(value: Any) -> Iterator[JsonObject]:
    """Yield the results of an unstreamed answer that are objects."""
    lists = [value] if isinstance(value, list) else [value.get(name) for name in _RESULTS]
    return (item for results in lists if isinstance(results, list) for item in results if isinstance(item, dict))


def _bare(result: JsonObject) -> list[Any]:
    """Return the values of a result's fields that may hold it. A label alone may, but not beside probabilities."""
    beside = "label" if "probs" in result else ""
    return [held for name, held in result.items() if name not in _OF_RESULT and name != beside]


def _holds(value: Any, api_path: str) -> bool:
    """Return whether a JSON value has the kind of content that the API returns. An empty answer has an end."""
    if api_path in _OF_CHOICES:
        choices = value.get("choices")
        return isinstance(choices, list) and any(map(_is_choice, choices))
    if api_path == "/v1/messages":
        return bool(value.get("content")) or (value.get("type") == "message" and bool(value.get("stop_reason")))
    if api_path == "/v1/responses":
        return bool(value.get("output")) or (value.get("object") == "response" and bool(value.get("status")))
    if api_path in CLASSLESS and api_path not in IMAGES:  # an empty text has no tokens, and silence has no words
        return isinstance(value, list) or any(name not in _REMARKS and held is not None for name, held in value.items())
    if any(not _has_more(_bare(result)) for result in _results(value)):
        return False
    return _has_more(value) or (isinstance(value, dict) and api_path not in IMAGES and _is_of_nothing(value))


def _is_of_nothing(value: dict[str, Any]) -> bool:
    """Return whether an answer has an empty list of results and its usage counts no tokens."""
    usage = value.get("usage")
    tokens = usage.get("total_tokens", usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    return tokens == 0 and any(isinstance(held, list) for held in value.values())


def _is_choice(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    message = choice.get("message")
    said = [value for name, value in message.items() if name != "role"] if isinstance(message, dict) else [message]
    return any(value is not None for value in (*said, choice.get("text"), choice.get("finish_reason")))


def _has_more(value: object, depth: int = 16) -> bool:
    """Return whether a value contains any number or text, apart from metadata fields. Deeper down, a client may have
    chosen the field names.
    """
    if isinstance(value, dict):
        is_top = depth == 16
        value = [
            held
            for name, held in value.items()
            if name not in _BESIDE or (not is_top and isinstance(held, dict | list))
        ]
    if isinstance(value, list):
        return not depth or any(_has_more(held, depth - 1) for held in value)
    return value is not None and value != "" and value == value and not (isinstance(value, str) and _is_nan(value))


def _is_nan(text: str | bytes) -> bool:
    """Return whether a text is the base64 of a vector whose first numbers are NaN."""
    try:
        return all(map(isnan, _NUMBERS.unpack(b64decode(text[:16], validate=True))))
    except (ValueError, struct.error):
        return False


def _error(reported: object, data: bytes) -> AnswerError:
    if not isinstance(reported, dict):
        return AnswerError(str(reported)[:LONGEST_MESSAGE], None, is_clients=False, body=data)
    message = reported.get("message")
    code, kind = reported.get("code"), reported.get("type")
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        number = int(code)
    status = number if number is not None and 400 <= number < 600 else _status(code) or _status(kind)
    clients = status is not None and status < 500 and status not in (408, 429)
    clients = clients or (status is None and (kind in _CLIENTS_TYPES or code in _CLIENTS_CODES))
    body = data or _written({"error": reported})
    return AnswerError(str(message or reported)[:LONGEST_MESSAGE], status, is_clients=clients, body=body)


def result_of(error: AnswerError, *, has_content: bool, asked: bytes = b"") -> Result:
    """Return the result of an answer of status 200 to the request `asked` that holds an error."""
    if is_engines(error, asked):
        return "failed_after_content" if has_content else "failed_before_content"
    return verdict.of_error(error, has_content=has_content)


def is_engines(error: AnswerError, asked: bytes = b"") -> bool:
    """Return whether an error whose code blames the request blames the engine in its own words."""
    return error.is_clients and blames_engine(error.body, asked)


def blames_engine(body: bytes, asked: bytes) -> bool:
    """Return whether an engine blames itself when it refuses a request. Words that also occur in the request, `asked`,
    do not count, because engines quote it."""
    event = said(body)
    error = error_of(event, body) if event is not None else None
    is_failure = error is not None and error.status is not None and error.status >= 500
    text = _unescaped(body)
    words = list(islice(_OF_ENGINES.finditer(text, NEAR), MOST_WORDS))
    if is_failure or not words:
        return is_failure
    if len(asked) > MOST_ASKED:
        asked = asked[: MOST_ASKED // 2] + b"\n" * NEAR + asked[-MOST_ASKED // 2 :]
    own = _unescaped(asked).replace(" ", "")
    return not all(_is_quoted(text, match.start(), match.end(), own) for match in words)


def _unescaped(data: bytes) -> str:
    """Return JSON or text decoded, in lower case, unescaped at any depth and surrounded by blanks."""
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), data.decode(json.detect_encoding(data), "replace"))
    blank = "\n" * NEAR
    return f"{blank}{_ESCAPED_BLANK.sub(' ', text)}{blank}".replace("\\", "").lower()


def _is_quoted(text: str, start: int, end: int, own: str) -> bool:
    """Return whether words also stand in the request, `own`, between the same text."""
    near = (text[start - before : end + NEAR - before] for before in range(0, NEAR + 1, NEAR // 3))
    return any(each.replace(" ", "") in own for each in near)


def _written(value: JsonObject) -> bytes:
    """Serialize to JSON; return nothing if the value is nested too deeply or holds an integer too large for the
    encoder."""
    try:
        return orjson.dumps(value, default=str)
    except orjson.JSONEncodeError:
        return b""


def _status(named: object) -> int | None:
    return _STATUSES.get(named) if isinstance(named, str) else None


def usage_of(event: Said) -> JsonObject | None:
    """Return the usage of an answer, or of the response or message inside an event. The usage at the start of a message
    has no final count of output tokens."""
    reported = event.usage
    if reported is None and event.response is not None:
        reported = event.response.usage
    if reported is None and isinstance(event.message, dict) and isinstance(event.message.get("usage"), dict):
        reported = {name: value for name, value in event.message["usage"].items() if name != "output_tokens"}
    if not isinstance(reported, dict):
        return None
    return reported if event.sglext is None else _with_tiers(reported, event.sglext)


def _with_tiers(usage: JsonObject, extension: object) -> JsonObject:
    """Return the usage with cached tokens by tier, which SGLang reports in a separate field on request."""
    tiers = extension.get("cached_tokens_details") if isinstance(extension, dict) else None
    if tiers is None:
        return usage
    details = usage.get("prompt_tokens_details")
    known = details if isinstance(details, dict) else {}
    return {**usage, "prompt_tokens_details": {**known, "cached_tokens_details": tiers}}


def payload(event: bytes) -> bytes:
    """Return the data of a stream's event, with or without HTTP chunk framing; empty for a comment line. The data of an
    event named `error` is wrapped in a JSON object with the field `error`."""
    start = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
    if not start and not event.startswith(b"data:"):
        return _as_error(b"") if event.find(b"error") >= 0 and _NAMED_ERROR.search(event) is not None else b""
    data = event[start + 5 :].rstrip()
    if data.find(b"\n") >= 0:  # more data lines or other fields, which may come in any order
        data = b"\n".join((data[: data.index(b"\n")], *_FURTHER_DATA.findall(data)))
    data = data.strip()
    if event.find(b"error") >= 0 and _NAMED_ERROR.search(event) is not None:
        return _as_error(data)
    return data


def _as_error(data: bytes) -> bytes:
    event = said(data)
    if event is not None and sign_of(event) == "error":
        return data
    found = json_object(data)
    made = _written({"error": found}) if found else b""
    return made or orjson.dumps({"error": data.decode("utf-8", "replace") or "an event named error"})


def json_object(data: bytes) -> JsonObject | None:
    """Parse an answer or event into an object; None if it is not JSON or not an object."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def events(stream: bytes) -> Iterator[bytes]:
    """Return the payloads of the complete events in a part of a stream, up to the last blank line."""
    whole, _, _ = stream.replace(b"\r\n", b"\n").rpartition(b"\n\n")
    for event in whole.split(b"\n\n"):
        if data := payload(event):
            yield data


def given_up(part: bytes) -> AnswerError | None:
    """Return the error of the first event that abandons one of the answer's choices."""
    if _GIVEN_UP.search(part) is None:  # matches only a key, as quotes inside JSON strings are escaped
        return None
    read = (said(data) for data in events(part + b"\n\n"))
    return next((error for event in read if event is not None and (error := error_of(event)) is not None), None)


def sign(data: bytes) -> tuple[Sign, AnswerError | None]:
    """Classify the payload of an event."""
    if data == b"[DONE]":
        return "end", None
    event = said(data)
    if event is None:
        return ("content", None) if _is_object(data) else ("error", AnswerError("an event that is no JSON object"))
    of = sign_of(event, data)
    return of, error_of(event, data) if of == "error" else None


def _is_object(data: bytes) -> bool:
    """Return whether the data is a JSON object, perhaps with Python's NaN and Infinity."""
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def may_be_all(end: bytes) -> bool:
    """Return whether a stream may consist of this last event alone, as in /v1/responses, where it repeats the whole
    answer."""
    return b'"response.' in end


LAST = 16  # events examined at the end of a stream; a comment counts as 1/16 of an event


def ending(stream: bytes) -> Ending:
    """Read the end of a stream from its last part, going back from the last event until one holds the usage, or content
    without a finish reason."""
    error, unread, whole, finishes, usage, extension = None, None, False, False, None, None
    stream = stream.replace(b"\r\n", b"\n")
    end, examined = stream.rfind(b"\n\n"), 0.0
    while end >= 0 and examined < LAST:
        before = stream.rfind(b"\n\n", 0, end)
        data, end = _payload_between(stream, before, end), before
        examined += 1 if data else 1 / LAST
        if data == b"[DONE]":
            whole = True
            continue
        event = said(data)
        if event is None:
            unread = unread or (sign(data)[1] if data else None)
            continue
        of, choices = sign_of(event, data), event.choices
        whole = whole or of == "end"
        error = error or (error_of(event, data) if of in ("error", "end") else None)
        if choices and not finishes:
            finishes = _finishes(choices)
        usage = usage_of(event) if usage is None else usage  # the last usage counts
        extension = extension or event.sglext
        # A finish reason, sent before the usage, may show that the engine abandoned the answer
        if usage is not None and whole and error is None and (finishes or choices is None):
            break
        if of == "content" and not finishes:
            break
    error = error or (unread if whole else None)  # an unread rest after a cut is no error
    usage = usage if usage is None or extension is None else _with_tiers(usage, extension)
    return Ending(error, whole, finishes, usage)


def _finishes(choices: list[SaidChoice]) -> bool:
    for choice in choices:  # noqa: SIM110 - a generator costs a call for each choice
        if choice.finish_reason:
            return True
    return False


def _payload_between(stream: bytes, before: int, end: int) -> bytes:
    """Return the payload of the event after the blank line at `before`, up to `end`; None without such an event."""
    event = stream[before + 2 if before >= 0 else 0 : end]
    return event[6:].strip() if event.startswith(b"data: ") and event.find(b"\n") < 0 else payload(event)
