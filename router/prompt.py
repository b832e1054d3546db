"""What the router reads in a request's body: model, prompt, session, stream options. Pure."""

import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash


class InvalidBody(ValueError):
    """The message says what the body should have been."""


@dataclass(frozen=True, slots=True)
class Prompt:
    model: str  # empty when the body names none
    rendered: bytes  # equal prefixes of conversations give equal prefixes of these bytes
    token_ids: int | None  # how many, when the prompt came as token ids; else the number of tokens is an estimate
    session: str | None
    stream: bool
    usage_asked: bool  # the client wants the usage chunk of a stream
    document: dict[str, Any] = field(default_factory=dict)  # the body


def read(body: bytes, endpoint: str) -> Prompt:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidBody("the body must be a JSON object")
    model = document.get("model", "")
    if not isinstance(model, str):
        raise InvalidBody("model must be text")
    rendered, token_ids = RENDERERS[endpoint](document)
    options = document.get("stream_options")
    return Prompt(
        model=model,
        rendered=rendered,
        token_ids=token_ids,
        session=session_of(document),
        stream=document.get("stream") is True,
        usage_asked=isinstance(options, dict) and options.get("include_usage") is True,
        document=document,
    )


def session_of(document: dict[str, Any]) -> str | None:
    for name in (document.get("user"), document.get("session_id")):
        if isinstance(name, str) and name:
            return name
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return None
    named = (metadata.get("session_id"), metadata.get("user_id"))
    return next((name for name in named if isinstance(name, str) and name), None)


def with_usage(body: bytes, document: dict[str, Any]) -> bytes:
    """The body of a stream with `stream_options.include_usage`: spliced in where that is enough, else written again.
    `document` is the body as it was read."""
    if "stream_options" not in document:
        start = body.index(b"{") + 1
        return b"%b%b%b" % (body[:start], b'"stream_options":{"include_usage":true},', body[start:])
    options = document["stream_options"]
    given = options if isinstance(options, dict) else {}
    return orjson.dumps({**document, "stream_options": {**given, "include_usage": True}})


# One function per endpoint: (rendered prompt, number of token ids or None)


def _completions(document: dict[str, Any]) -> tuple[bytes, int | None]:
    return _text_or_ids(document.get("prompt"))


def _embeddings(document: dict[str, Any]) -> tuple[bytes, int | None]:
    return _text_or_ids(document.get("input"))


def _chat(document: dict[str, Any]) -> tuple[bytes, int | None]:
    return b"".join([*_tools(document), *_messages(document.get("messages"))]), None


def _messages_api(document: dict[str, Any]) -> tuple[bytes, int | None]:
    system = document.get("system")
    head = _message("system", _content(system)) if system else ()
    return b"".join([*_tools(document), *head, *_messages(document.get("messages"))]), None


def _responses(document: dict[str, Any]) -> tuple[bytes, int | None]:
    instructions = document.get("instructions")
    head = _message("system", _content(instructions)) if instructions else ()
    given = document.get("input")
    turns = [*_message("user", _content(given))] if isinstance(given, str) else _messages(given)
    return b"".join([*_tools(document), *head, *turns]), None


RENDERERS: dict[str, Callable[[dict[str, Any]], tuple[bytes, int | None]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/responses": _responses,
    "/v1/messages": _messages_api,
    "/v1/embeddings": _embeddings,
}


def _text_or_ids(prompt: object) -> tuple[bytes, int | None]:
    if isinstance(prompt, str):
        return _utf8(prompt), None
    if not isinstance(prompt, list) or not prompt:
        return b"", None
    if isinstance(prompt[0], int):
        return _packed(prompt), len(prompt)
    parts = [_text_or_ids(part) for part in prompt]
    counts = [count for _, count in parts if count is not None]
    return b"".join(rendered for rendered, _ in parts), sum(counts) if len(counts) == len(parts) else None


def _packed(ids: list[Any]) -> bytes:
    try:
        return array.array("I", ids).tobytes()
    except (TypeError, OverflowError):  # the engine will say what is wrong with them
        return orjson.dumps(ids)


def _tools(document: dict[str, Any]) -> list[bytes]:
    """Templates put the tools before the conversation."""
    tools = document.get("tools")
    return [orjson.dumps(tools)] if tools else []


def _messages(messages: object) -> list[bytes]:
    parts: list[bytes] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            parts.append(orjson.dumps(message))
            continue
        role = message.get("role")
        parts += _message(role if isinstance(role, str) else "", _content(message.get("content")))
        calls = message.get("tool_calls") or (message if "content" not in message else None)
        if calls:
            parts.append(orjson.dumps(calls))
    return parts


def _message(role: str, content: bytes) -> tuple[bytes, ...]:
    return b"<|", _utf8(role), b"|>\n", content, b"\n"


def _content(content: object) -> bytes:
    if isinstance(content, str):
        return _utf8(content)
    if isinstance(content, list):
        return b"".join([_part(part) for part in content])
    return b"" if content is None else orjson.dumps(content)


def _part(part: object) -> bytes:
    """A text as it is. Anything else by its hash: an image's base64 says nothing about its number of tokens."""
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(text, str):
        return _utf8(text)
    written = orjson.dumps(part)
    return written if len(written) <= 1024 else xxhash.xxh64_hexdigest(written).encode()


def _utf8(text: str) -> bytes:
    return text.encode()  # no lone surrogates: the parser takes none
