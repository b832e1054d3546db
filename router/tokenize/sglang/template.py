"""A model's chat template, rendered as SGLang 0.5.23 renders it."""

from pathlib import Path
from typing import Any

import jinja2

from router.contract.values.json_value import JsonObject
from router.tokenize import template_source
from router.tokenize.conversation import as_chat
from router.tokenize.sglang.chat import normal, tools
from router.tokenize.sglang.conversation import CONVERSIONS, SglangManner
from router.tokenize.template import CALLERS, Template
from router.tokenize.tokenizer import NotTokenized

_EFFORTS = frozenset(("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"))
_OWN = ("input_ids", "continue_final_message", "task")  # options that only the engine can apply to the prompt
_CALLERS = CALLERS | {"add_generation_prompt"}
# Names under which the engine's reasoning parser asks a template to think or not
_NO_THINK: list[JsonObject] = [{"reasoning_effort": "no_think"}]  # Hunyuan's
_TOGGLES: dict[bool, list[JsonObject]] = {
    True: [{"thinking": True}, {"enable_thinking": True}, {"reasoning_effort": "high"}, {"reasoning_effort": "medium"}],
    False: [{"thinking": False}, {"enable_thinking": False}, {"reasoning_effort": "none"}, *_NO_THINK],
}
_CALL: JsonObject = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
_TALK: JsonObject = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "t"},
    ],
    "tools": [{"function": {"name": "f", "parameters": {}}}],
}
_MODELS_IN_CODE = ("minimax_m3", "hunyuan", "GlmMoeDsa", "Glm5Next", "DeepseekV41")  # beginnings of model names


class SglangTemplate(Template):
    plain_beginning = frozenset()
    unsalted = frozenset(("/v1/messages",))

    def _is_rendered_in_code(self, name: str) -> bool:
        return super()._is_rendered_in_code(name) or name.startswith(_MODELS_IN_CODE)

    def _mistral(self, folder: Path) -> str:
        """Return Tekken's file if it is the only tokenizer; only then does SGLang use mistral-common."""
        return "tekken.json" if (folder / "tekken.json").exists() and not (folder / "tokenizer.json").exists() else ""

    def _study(self, sources: dict[str, str]) -> None:
        source = next(iter(sources.values()), "")  # the first of several
        self._template = next(iter(self._templates.values()), None)
        self._parts = _wants_parts(source)
        self._manner = SglangManner(template_source.keeps_later_system(source), "</think>" in source)
        self._knows_low_effort = "low_effort" in source
        plain = self._said(_TALK)
        self._thinking_matters = {
            thinks: any(self._said(_TALK, **toggle) != plain for toggle in toggles)
            for thinks, toggles in _TOGGLES.items()
        }

    def prompt(self, document: JsonObject, api_path: str) -> str:
        self._refuse(document, _OWN)
        chat = as_chat(document, api_path, self._manner, CONVERSIONS)
        if (thinks := chat.get("thinks")) is not None and self._thinking_matters[thinks]:
            raise NotTokenized("thinking: only the engine knows how its reasoning parser tells the template")
        return self._rendered(chat, self._arguments(chat))

    def _said(self, document: JsonObject, **arguments: Any) -> str | None:
        try:
            return self._rendered(document, arguments)
        except NotTokenized:
            return None

    def _rendered(self, chat: JsonObject, arguments: JsonObject) -> str:
        template = self._template
        if template is None:
            raise NotTokenized("the model has no chat template")
        listed = tools(chat)
        given = {
            **self._tokens,
            "messages": normal(chat.get("messages"), in_parts=self._parts),
            "tools": listed,
            "documents": None,
            "add_generation_prompt": True,
            **arguments,
        }
        try:
            return template.render(given)
        except Exception:  # SGLang retries with plain functions after any error
            plain = [tool["function"] for tool in listed] if listed else None
            try:
                return template.render({**given, "tools": plain})
            except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
                raise NotTokenized(f"the chat template failed: {error}"[:200]) from None

    def _arguments(self, chat: JsonObject) -> JsonObject:
        """Return the template's arguments; the client's take precedence. Raise NotTokenized for an argument that
        cannot be applied."""
        given = chat.get("chat_template_kwargs") or {}
        if not isinstance(given, dict) or not _CALLERS.isdisjoint(given):
            raise NotTokenized("chat_template_kwargs: only the engine can apply them")
        asked = chat.get("reasoning")
        asked = asked if isinstance(asked, dict) else {}
        effort = asked.get("effort") or asked.get("reasoning_effort") or chat.get("reasoning_effort")
        if effort is None:
            thinks = True if asked.get("enabled") or asked.get("enable") else None
            return _toggled(thinks) | given
        if effort not in _EFFORTS or (effort == "low" and self._knows_low_effort):
            raise NotTokenized(f"the effort {effort!r:.40}: only the engine can apply it")
        # The effort of `/v1/messages` is set later; other efforts become a toggle
        thinks = None if "thinks" in chat else effort != "none"
        return {"reasoning_effort": effort} | _toggled(thinks) | given


def _toggled(thinks: bool | None) -> JsonObject:
    return {} if thinks is None else {"thinking": thinks, "enable_thinking": thinks}


def _wants_parts(source: str) -> bool:
    """Return whether messages contain a list of parts: for templates with images and sound, and for loops over the
    content."""
    if any(word in source for word in ("image", "audio", "video", "vision")):
        return True
    return template_source.loops_over_content(source, {"message", "msg", "m"})
