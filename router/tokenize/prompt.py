"""Reads a request's body: model, prompt, session, stream options. Pure."""

import array
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import orjson
import xxhash

from router.contract.api_paths import MEDIA, UNCOMPUTED
from router.contract.engine_fields import FIELDS, INTERVAL, per_event
from router.contract.values import lax, multipart
from router.contract.values.json_value import JsonObject
from router.contract.values.multipart import InvalidMultipart
from router.policy.value import replace
from router.tokenize import Prompt, billing, bounds, salt
from router.tokenize.billing import LINE, without_billing, without_line

MESSAGE = "<|%s|>\n%s\n"  # role and content, as templates write them
# Fields controlled by the router: the order of requests, and their ids in vLLM and SGLang
ROUTERS: Final = frozenset({"priority", "request_id", "rid"})
# Names of the single text, and of the texts that scoring and reranking compare with it
_SIDES: Final = (("query", "queries", "text_1", "data_1"), ("documents", "items", "text_2", "data_2"))
# Fields whose parts refer to media
_WITH_MEDIA: Final = frozenset(("messages", *_SIDES[0], *_SIDES[1]))
_LOOKED_AT: Final = ROUTERS.union(salt.FIELDS, (INTERVAL,))
MANY: Final = 4_096  # messages, parts, token ids and brackets; larger numbers take over a millisecond
_APART = "\0"  # separator from a key's id, which never contains it
TOO_DEEP = "the body is nested too deeply: 200 levels are always read"


class InvalidBody(ValueError):
    """An invalid body; the message says what is wrong."""

    code: ClassVar[str] = "invalid_json"


class TooComplex(InvalidBody):
    code: ClassVar[str] = "json_too_complex"


class BadParts(InvalidBody):
    code: ClassVar[str] = "invalid_multipart"


def read(body: bytes, api_path: str, content_types: Sequence[bytes] = (), document: JsonObject | None = None) -> Prompt:
    """Read a body. `content_types` is given for paths that take files, `document` if the body has been parsed."""
    if content_types and any(map(multipart.is_multipart, content_types)):
        return _with_files(body, content_types)
    if content_types and any(map(multipart.is_urlencoded, content_types)):
        raise BadParts("content-type: send a form as multipart/form-data")
    if document is None:
        document = parsed(body)
    model = document.get("model", "")
    if not isinstance(model, str):
        raise InvalidBody("model: must be text")
    try:
        rendered, token_ids, plain = RENDERERS[api_path](document)
    except orjson.JSONEncodeError:  # the serializer supports less depth than the parser
        raise TooComplex(TOO_DEEP) from None
    options = document.get("stream_options")
    usage_asked = isinstance(options, dict) and lax.is_true(options.get("include_usage"))
    stream = "stream" in document and lax.is_true(document["stream"])
    return Prompt(model, rendered, token_ids, stream, usage_asked, document, None, False, plain)


def _with_files(body: bytes, content_types: Sequence[bytes]) -> Prompt:
    """Read only the fields of a form, not the content of its files."""
    try:
        parts = multipart.parts(body, multipart.boundary_of(content_types))
        model = multipart.text_of(body, parts, b"model")
        stream = multipart.text_of(body, parts, b"stream")
        answers = multipart.text_of(body, parts, b"n")
    except InvalidMultipart as error:
        raise BadParts(str(error)) from None
    streams = stream is not None and lax.is_true(stream[0])
    document: JsonObject = {}
    if answers is not None:
        document = {"n": answers[0]}
    document |= dict.fromkeys(FIELDS.intersection(part.name.decode() for part in parts))
    return Prompt(model[0] if model is not None else "", b"", 0, streams, False, document)


def parsed(body: bytes) -> JsonObject:
    """Return the document of a body. Raise InvalidBody."""
    if len(body) > bounds.SMALL and (why := bounds.exceeded(body)):
        raise TooComplex(why)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidBody("the body must be a JSON object")
    return document


def has_many(document: JsonObject) -> bool:
    """Return whether the document has more than MANY values that are rendered one by one."""
    count = 0
    for value in document.values():
        if type(value) is not list:
            continue
        count += len(value)
        for item in value if count <= MANY else ():
            if type(item) is dict and type(content := item.get("content")) is list:
                count += len(content)
    return count > MANY


def with_usage(body: bytes, document: JsonObject) -> bytes:
    """Return a stream's body with `stream_options.include_usage`, inserted if possible, otherwise serialized from
    `document`."""
    if "stream_options" not in document:
        start = body.index(b"{") + 1
        return b"%b%b%b" % (body[:start], _ASKS_USAGE, body[start:])
    options = document["stream_options"]
    given = {**options} if isinstance(options, dict) else {}
    given.pop("continuous_usage_stats", None)  # without `include_usage`, engines ignore it
    try:
        return orjson.dumps({**document, "stream_options": {**given, "include_usage": True}})
    except orjson.JSONEncodeError:
        raise TooComplex(TOO_DEEP) from None


def of_key(read: Prompt, body: bytes, key_id: str, *, asks_usage: bool) -> tuple[Prompt, bytes]:
    """Return the request with its API key's salt, inserted if it had no salt, otherwise serialized again."""
    given = read.document.get("cache_salt")
    salted = salt.of_key(given, key_id)
    if salted == given:
        return read, body
    made = replace(read, document={**read.document, "cache_salt": salted}, rewritten=True)
    if "cache_salt" in read.document:
        return made, _written_anew(made.document, asks_usage)
    start = body.index(b"{") + 1
    return made, b'%b"cache_salt":%b,%b' % (body[:start], orjson.dumps(salted), body[start:])


def without_billing_line(read: Prompt, body: bytes, *, asks_usage: bool) -> tuple[Prompt, bytes]:
    document = billing.removed(body, read.document)
    if document is None:
        return read, body
    return replace(read, document=document, rewritten=True), _written_anew(document, asks_usage)


def _written_anew(document: JsonObject, asks_usage: bool) -> bytes:
    try:
        body = orjson.dumps(document)
    except orjson.JSONEncodeError:
        raise TooComplex(TOO_DEEP) from None
    return with_usage(body, document) if asks_usage else body


def apart(key_id: str, name: str) -> str:
    """Make a client's name distinct per API key; `key_id` is empty without a key."""
    return f"{key_id}{_APART}{name}" if key_id or _APART in name else name


def is_for_engine(read: Prompt, key_id: str) -> bool:
    """Return whether the body goes to the engine unchanged."""
    document = read.document
    if not _LOOKED_AT.isdisjoint(document) and not (
        ROUTERS.isdisjoint(document) and INTERVAL not in document and salt.is_apart(document, key_id)
    ):
        return False
    if read.plain:
        return True
    for name in _WITH_MEDIA.intersection(document):
        messages = document[name]
        for message in messages if type(messages) is list else (messages,):  # a generator would cost a call per message
            # isinstance takes longer, and the parser creates no subclasses
            content = message.get("content") if type(message) is dict else None
            if type(content) is list and _names_media(content, key_id):
                return False
    return True


def _names_media(content: list[Any], key_id: str) -> bool:
    return any("uuid" in part and _own_part(part, key_id) is not part for part in content if isinstance(part, dict))


def for_engine(read: Prompt, key_id: str) -> tuple[Prompt, bytes]:
    """Return the request without the router's fields, and with cache names made distinct per key. The router orders
    requests, and engines without priorities refuse that field. The router also sets request ids: an engine that
    receives an id twice refuses the second request, overwrites the first one's answer, or uses the other's KV.
    """
    document = {name: value for name, value in read.document.items() if name not in ROUTERS}
    if document.get(INTERVAL) is not None:
        document[INTERVAL] = per_event(document)
    _set_apart(document, key_id)
    try:
        body = orjson.dumps(document)
    except orjson.JSONEncodeError:
        raise TooComplex(TOO_DEEP) from None
    return replace(read, document=document, priority=read.document.get("priority"), rewritten=True), body


def _set_apart(document: JsonObject, key_id: str) -> None:
    """Make salts and `uuid`s distinct per key. An engine identifies a prompt's KV by the salt, and a processed image
    or sound by its `uuid`, without comparing contents."""
    salt.set_apart(document, key_id)
    for name in _WITH_MEDIA.intersection(document):
        document[name] = _with_own_media(document[name], key_id)


def _with_own_media(messages: Any, key_id: str) -> Any:
    if isinstance(messages, list):
        return [_own_message(message, key_id) for message in messages]
    return _own_message(messages, key_id)


def _own_message(message: Any, key_id: str) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_own_part(part, key_id) for part in content]}


def _own_part(part: Any, key_id: str) -> Any:
    name = part.get("uuid") if isinstance(part, dict) else None
    if isinstance(name, list | dict):
        raise InvalidBody("the uuid of a part must be a text")
    own = apart(key_id, str(name)) if name not in (None, "") else name
    return part if own == str(name) or own is name else {**part, "uuid": own}


def renamed(body: bytes, name: str, model: str) -> bytes:
    """Return the body with `model` instead of `name`, inserted if possible, otherwise serialized again. Quotes within
    JSON strings are escaped, so a match is a key with its value.
    """
    if body.startswith(b"--"):
        return _renamed_field(body, model)
    quoted, first = orjson.dumps(name), _MODEL_FIRST.match(body)
    # Most clients begin like this, which avoids a search
    if first is not None and body.startswith(quoted, first.end()):
        return b"%b%b%b" % (body[: first.end()], orjson.dumps(model), body[first.end() + len(quoted) :])
    found = [*itertools.islice(re.finditer(_MODEL % re.escape(quoted), body), 2)]
    if len(found) == 1:
        start, end = found[0].span(1)
        return b"%b%b%b" % (body[:start], orjson.dumps(model), body[end:])
    try:
        return orjson.dumps({**orjson.loads(body), "model": model})
    except orjson.JSONEncodeError:
        raise TooComplex(TOO_DEEP) from None


def _renamed_field(body: bytes, model: str) -> bytes:
    """Rename the model field of a form that has already been read."""
    boundary = body[2 : body.index(b"\r\n")]
    found = multipart.text_of(body, multipart.parts(body, boundary), b"model")
    return b"%b%b%b" % (body[: found[1]], model.encode(), body[found[2] :]) if found is not None else body


_ASKS_USAGE = b'"stream_options":{"include_usage":true},'
_MODEL_FIRST = re.compile(rb'\s*\{(?:%b)?\s*"model"\s*:\s*' % re.escape(_ASKS_USAGE))
_MODEL = rb'"model"\s*:\s*(%b)'

Ids = int | None  # number of a prompt's token ids, if it has any
Rendered = tuple[bytes, Ids, bool]  # prompt, and `Prompt.plain`


def _chat(document: JsonObject) -> Rendered:
    parts: list[str] = _tools(document) if "tools" in document else []
    plain = _add_messages(parts, document.get("messages"))
    return "".join(parts).encode(), None, plain  # as in `_joined`


def _messages_api(document: JsonObject) -> Rendered:
    system = document.get("system")
    system = without_billing(system) if isinstance(system, list) else without_line(system)
    head = [MESSAGE % ("system", _content(system))] if system else ()
    parts = [*_tools(document), *head]
    plain = _add_messages(parts, document.get("messages"))
    return _joined(parts), None, plain


def _responses(document: JsonObject) -> Rendered:
    instructions = document.get("instructions")
    head = [MESSAGE % ("system", _content(instructions))] if instructions else ()
    given = document.get("input")
    parts = [*_tools(document), *head]
    if isinstance(given, str):
        parts.append(MESSAGE % ("user", given))
    else:
        _add_messages(parts, given)
    return _joined(parts), None, False


def _decisions(document: JsonObject) -> Rendered:
    """Render an input, then the questions about it."""
    return _responses(document)[0] + _written(document.get("questions")).encode(), None, False


def _scores(document: JsonObject) -> Rendered:
    """Render one text and several others, under any name of the rerank and score APIs."""
    sides = (next(filter(None, map(document.get, names)), None) for names in _SIDES)
    texts = [text for side in sides for text in (side if isinstance(side, list) else [side])]
    return _joined([f"{_content(text)}\n" for text in texts]), None, False


def _pooled(document: JsonObject) -> Rendered:
    return _chat(document) if "messages" in document else _text_or_ids(document.get("input"))


RENDERERS: Final[dict[str, Callable[[JsonObject], Rendered]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": lambda document: _text_or_ids(document.get("prompt")),
    "/v1/responses": _responses,
    "/v1/messages": _messages_api,
    "/v1/embeddings": _pooled,
    **dict.fromkeys(("/pooling", "/classify", "/v1/classify"), _pooled),
    "/v1/decisions": _decisions,
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"), _scores),
    **dict.fromkeys((*UNCOMPUTED, *MEDIA), lambda document: (b"", 0, False)),
}


def _text_or_ids(prompt: object) -> Rendered:
    """Render one or several prompts."""
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return *_one_prompt(prompt), False
    parts = [_one_prompt(part) for part in prompt]
    counts = [count for _, count in parts if count is not None]
    return b"".join(rendered for rendered, _ in parts), sum(counts) if len(counts) == len(parts) else None, False


def _one_prompt(prompt: object) -> tuple[bytes, Ids]:
    if isinstance(prompt, str):
        return prompt.encode(), None
    if not isinstance(prompt, list) or not prompt:
        return b"", None
    if isinstance(prompt[0], int):
        return _packed(prompt), len(prompt)
    return orjson.dumps(prompt), None  # the engine will report the fault


def _packed(ids: list[Any]) -> bytes:
    try:
        return array.array("I", ids).tobytes()
    except (TypeError, OverflowError):  # the engine will report the fault
        return orjson.dumps(ids)


def _joined(parts: list[str]) -> bytes:
    return "".join(parts).encode()  # the parser rejects lone surrogates


def _tools(document: JsonObject) -> list[str]:
    """Render the tools, which templates put before the conversation."""
    tools = document.get("tools")
    return [_written(tools)] if tools else []


def _add_messages(parts: list[str], messages: object) -> bool:
    """Add the rendered messages to the parts; return whether they are plain."""
    plain = True
    for message in messages if isinstance(messages, list) else ():
        if type(message) is not dict:  # isinstance takes longer
            plain = False
            parts.append(_written(message))
            continue
        role, content = message.get("role"), message.get("content")
        if role == "system" and (type(content) is list or (type(content) is str and content.startswith(LINE))):
            content = without_line(content)
        text = content if type(content) is str else _content(content)
        parts += "<|", role if type(role) is str else "", "|>\n", text, "\n"  # MESSAGE in pieces
        if text is not content or role is None or len(message) != 2:
            plain = False
            if content is None or "tool_calls" in message:
                parts += _besides(message)
    return plain and bool(messages)


def _besides(message: JsonObject) -> list[str]:
    """Render tool calls, and other fields of a message without content."""
    calls = message.get("tool_calls") or (message if "content" not in message else None)
    return [_written(calls)] if calls else []


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join([_part(part) for part in content])
    return "" if content is None else _written(content)


def _part(part: object) -> str:
    """Render text unchanged, and other large parts by their hash, because an image's size does not determine its
    tokens."""
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(text, str):
        return text
    written = orjson.dumps(part)
    return written.decode() if len(written) <= 1024 else xxhash.xxh64_hexdigest(written)


def _written(found: object) -> str:
    return orjson.dumps(found).decode()
