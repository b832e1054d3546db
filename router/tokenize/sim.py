"""The tokenizer of simulated engines: one token per 4 bytes of the rendered prompt; the id is those bytes.

Rendered as `<|role|>\\ncontent\\n` per message, then `<|assistant|>\\n`; tools and tool calls are left out.
"""

import orjson

from router.contract.sim_media import as_message, is_media, stand_in
from router.contract.values.json_value import JsonObject
from router.tokenize import Prompt
from router.tokenize.tokenizer import NotTokenized, given_ids

_TOKEN_BYTES = 4
_TAIL = "<|assistant|>\n"
_HEADS = {"/v1/messages": "system", "/v1/responses": "instructions"}  # field that precedes the messages


class SimTokenizer:
    attention_chunk = 0
    unsalted: frozenset[str] = frozenset()
    forgetful = False

    def is_quick(self, prompt: Prompt) -> bool:
        return True

    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        if api_path == "/v1/completions":
            text = given_ids(prompt.document)
            if text is None:
                text = prompt.rendered
        else:
            text = _rendered(prompt.document, api_path).encode("utf-8", "surrogatepass")
        return text + b"\0" * (-len(text) % _TOKEN_BYTES)


def _rendered(document: JsonObject, api_path: str) -> str:
    given = document.get("input" if api_path == "/v1/responses" else "messages")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise NotTokenized("messages: missing")
    messages = map(as_message, given) if api_path == "/v1/responses" else given
    head = document.get(_HEADS.get(api_path, ""))
    parts = [] if head is None else ["<|system|>\n", _text(head), "\n"]
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(role, str):
            raise NotTokenized("a message without role")
        content = message.get("content")
        parts += ("<|", role, "|>\n", content if isinstance(content, str) else _text(content), "\n")
    parts.append(_TAIL)
    return "".join(parts)


def _text(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise NotTokenized("the content of a message is neither text nor a list")
    return "".join(part if isinstance(part, str) else _part(part) for part in content)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        raise NotTokenized("a part of a message is not an object")
    kind = str(part.get("type", "text"))
    if kind == "tool_use":
        return orjson.dumps(part.get("input")).decode()
    if kind == "tool_result":
        return _text(part.get("content"))
    if is_media(kind):
        return stand_in(part)
    text = part.get("text", part.get("thinking", ""))
    if not isinstance(text, str):
        raise NotTokenized(f"a part of type {kind!r:.40} is not text")
    return text
