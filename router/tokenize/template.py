"""A model's chat template, rendered as vLLM and Hugging Face's `apply_chat_template` do."""

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import orjson

from router.contract.json_value import JsonObject
from router.tokenize.conversation import function_tool
from router.tokenize.tokenizer import NotTokenized

# Options that only the engine can apply to the prompt.
_OWN = (
    "chat_template",
    "continue_final_message",
    "documents",
    "mm_processor_kwargs",
    "reasoning_effort",
    "truncate_prompt_tokens",
)
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# As in vLLM: a template that loops over the parts of a message gets parts, any other gets one text.
_PARTS = re.compile(r"for\s+\w+\s+in\s+\w+(\.content|\[['\"]content['\"]\])")


class Template:
    """Reads the folder's files once. Raises OSError, ValueError or jinja2.TemplateError for unusable files."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        config = orjson.loads(file.read_bytes()) if file.exists() else {}
        self._tokens = {name: _content(config[name]) for name in _NAMED if config.get(name)}
        sources = _sources(folder, config.get("chat_template"))
        made = _environment()
        self._templates = {name: made.from_string(source) for name, source in sources.items()}
        self._in_parts = {name: bool(_PARTS.search(source)) for name, source in sources.items()}
        self.system_first = not sources or any(map(_wants_system_first, sources.values()))

    def render(self, document: JsonObject) -> str:
        """Raises NotTokenized."""
        used = next((name for name in _OWN if document.get(name)), None)
        if used is not None:
            raise NotTokenized(f"{used}: only the engine can apply it")
        tools = _tools(document.get("tools"))
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise NotTokenized("the model has no chat template")
        values = document.get("chat_template_kwargs")
        try:
            return template.render(
                **self._tokens,
                messages=_messages(document.get("messages"), in_parts=self._in_parts[name]),
                tools=tools,
                documents=None,
                add_generation_prompt=document.get("add_generation_prompt") is not False,
                **(values if isinstance(values, dict) else {}),
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise NotTokenized(f"the chat template failed: {error}"[:200]) from None


def _sources(folder: Path, configured: Any) -> dict[str, str]:
    file = folder / "chat_template.jinja"
    given = file.read_text() if file.exists() else configured
    if isinstance(given, str):
        return {"default": given}
    return {one["name"]: one["template"] for one in given or ()}


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _sandbox() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    made = _sandbox()
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda layout: dt.datetime.now().strftime(layout)
    return made


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """Without Jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _wants_system_first(source: str) -> bool:
    """Whether it refuses a system message in the middle; tested as vLLM does."""
    messages = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        _sandbox().from_string(source).render(messages=messages, add_generation_prompt=False)
    except (jinja2.TemplateError, TypeError):
        return True
    return False


def _tools(given: Any) -> list[JsonObject] | None:
    if not given:
        return None
    try:
        return [function_tool(tool["function"]) for tool in given]
    except (TypeError, KeyError, AttributeError):
        raise NotTokenized("a tool is not a function") from None


def _messages(given: object, *, in_parts: bool) -> list[JsonObject]:
    if not isinstance(given, list):
        raise NotTokenized("messages: missing")
    return [_message(message, in_parts=in_parts) for message in given]


def _message(given: object, *, in_parts: bool) -> JsonObject:
    if not isinstance(given, dict):
        raise NotTokenized("a message is not an object")
    made = {**given, "content": _text(given.get("content"), in_parts=in_parts)}
    if isinstance(given.get("tool_calls"), list):
        made["tool_calls"] = [_call(call) for call in given["tool_calls"]]
    return made


def _text(content: object, *, in_parts: bool) -> str | list[dict[str, str]]:
    parts = [content] if isinstance(content, str) else content or []
    if not isinstance(parts, list):
        raise NotTokenized("the content of a message is neither text nor a list")
    texts = [_part(part) for part in parts]
    return [{"type": "text", "text": text} for text in texts] if in_parts else "\n".join(texts)


def _part(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    if not isinstance(text, str):
        raise NotTokenized("a part of a message is not text")
    return text


def _call(call: Any) -> Any:
    """Templates expect the arguments as an object, clients send them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        raise NotTokenized("the arguments of a tool call are not JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}
