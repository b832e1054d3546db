"""A model's chat template, rendered as by vLLM and Hugging Face's `apply_chat_template`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import orjson

from router.contract.values.json_value import JsonObject
from router.tokenize import template_source
from router.tokenize.chat_messages import normal, system_for, tool
from router.tokenize.conversation import CONVERSIONS, Manner, as_chat
from router.tokenize.tokenizer import EngineRenders, NotTokenized

# Options that only the engine can apply to the prompt
_OWN = (
    "chat_template",
    "continue_final_message",
    "mm_processor_kwargs",
    "truncate_prompt_tokens",
    "add_special_tokens",
)
# Arguments of the function that renders the template, not of the template itself
CALLERS = frozenset(
    (
        *("chat_template", "tokenize", "continue_final_message", "conversation", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "tools", "messages"),
    )
)
_UNSET = (None, "auto")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")  # efforts of `/v1/messages`
# Model types and architectures whose prompts engines render in code
_WITHOUT_TEMPLATE = frozenset(
    (
        *("gpt_oss", "KimiK3ForConditionalGeneration", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM"),
        *("DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM", "InklingForCausalLM"),
        *("InklingForConditionalGeneration", "MoonshotKimiaForCausalLM"),
    )
)
_HI: JsonObject = {"messages": [{"role": "user", "content": "Hi"}]}


class Template:
    """A template. It reads the folder's files once. Raise OSError, ValueError or jinja2.TemplateError for unusable
    files."""

    plain_beginning = frozenset(("/v1/responses",))  # APIs whose prompts begin with the same tokens as a plain text
    unsalted: frozenset[str] = frozenset()  # APIs for which the engine ignores a salt

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        config = orjson.loads(file.read_bytes()) if file.exists() else {}
        self._tokens = {name: _content(config[name]) for name in _NAMED if config.get(name)}
        sources = _sources(folder, config.get("chat_template"))
        made = template_source.environment()
        self._templates = {name: made.from_string(source) for name, source in sources.items()}
        self._own_renderer = next(filter(self._is_rendered_in_code, _names(folder)), self._mistral(folder))
        self._study(sources)

    def _is_rendered_in_code(self, name: str) -> bool:
        return name in _WITHOUT_TEMPLATE

    def _mistral(self, folder: Path) -> str:
        """Return mistral-common's file, with which engines render chats if the weights are in Mistral's own format."""
        found = (file.name for name in ("tekken.json", "tokenizer.model.v*") for file in folder.glob(name))
        return next(found, "") if next(folder.glob("consolidated*.safetensors"), None) else ""

    def _study(self, sources: dict[str, str]) -> None:
        """Detect the features that the templates support."""
        self._in_parts = {name: template_source.wants_parts(source) for name, source in sources.items()}
        self._with_developers = {name: template_source.knows_developers(source) for name, source in sources.items()}
        system_first = not sources or any(map(template_source.wants_system_first, sources.values()))
        self.manner = Manner(system_first, self._least_effort())

    def _least_effort(self) -> str:
        """Return vLLM's effort for disabled thinking: `none`, unless the template refuses it or treats it like another
        effort."""
        none, *others = [self._says(effort) for effort in ("none", *_EFFORTS)]
        return "low" if none is None or none in others else "none"

    def _says(self, effort: str) -> str | None:
        try:
            return self.render({**_HI, "reasoning_effort": effort})
        except NotTokenized:
            return None

    def prompt(self, document: JsonObject, api_path: str) -> str:
        """Return the text of a request's prompt. Raise NotTokenized."""
        return self.render(as_chat(document, api_path, self.manner, CONVERSIONS), as_built=api_path == "/v1/responses")

    def _refuse(self, document: JsonObject, own: Sequence[str]) -> None:
        """Raise EngineRenders for a model that engines render in code, and for fields that only engines can apply."""
        if self._own_renderer:
            raise EngineRenders(f"{self._own_renderer}: engines render it without its template")
        used = next((name for name in own if document.get(name)), None)
        if used is not None:
            raise EngineRenders(f"{used}: only the engine can apply it")

    def render(self, document: JsonObject, *, as_built: bool = False) -> str:
        """Render the prompt. For `as_built`, see chat_messages.normal. Raise NotTokenized."""
        self._refuse(document, _OWN)
        tools = _tools(document.get("tools"))
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise EngineRenders("the model has no chat template")
        rendered = set()
        for in_parts in self._in_parts[name]:
            messages = normal(document.get("messages"), in_parts=in_parts, as_built=as_built)
            messages = messages if self._with_developers[name] else system_for(messages)
            given = {**self._tokens, "messages": messages, "tools": tools, **_arguments(document)}
            try:
                rendered.add(template.render(**given))
            except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
                raise NotTokenized(f"the chat template failed: {error}"[:200]) from None
        if len(rendered) > 1:
            raise EngineRenders("vLLM gives the template a text or parts, depending on its version")
        return rendered.pop()


def _arguments(document: JsonObject) -> JsonObject:
    """Return the template's arguments, including the client's. Raise NotTokenized for an argument unknown to the
    template."""
    given = document.get("chat_template_kwargs") or {}
    if not isinstance(given, dict) or not CALLERS.isdisjoint(given):
        raise NotTokenized("chat_template_kwargs: only the engine can apply them")
    effort = document.get("reasoning_effort")
    made = {
        "documents": document.get("documents"),
        "add_generation_prompt": document.get("add_generation_prompt") is not False,
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in given:
        made["enable_thinking"] = effort != "none"
    return {"documents": None, **given, **{name: value for name, value in made.items() if value not in _UNSET}}


def _sources(folder: Path, configured: Any) -> dict[str, str]:
    file = folder / "chat_template.jinja"
    given = file.read_text() if file.exists() else configured
    if isinstance(given, str):
        return {"default": given}
    return {one["name"]: one["template"] for one in given or ()}


def model_config(folder: Path) -> dict[str, Any]:
    """Return the model's configuration; empty if the folder has only a tokenizer. Raise ValueError."""
    file = folder / "config.json"
    config = orjson.loads(file.read_bytes()) if file.exists() else {}
    if not isinstance(config, dict):
        raise ValueError(f"{file}: not an object")
    return config


def _names(folder: Path) -> list[str]:
    """Return the names by which engines select the model's code."""
    config = model_config(folder)
    return [str(name) for name in (config.get("model_type"), *(config.get("architectures") or ())) if name]


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _tools(given: Any) -> list[JsonObject] | None:
    if given is None:
        return None
    try:
        return [tool(one) for one in given]
    except (TypeError, KeyError, AttributeError):
        raise NotTokenized("a tool is not a function") from None
