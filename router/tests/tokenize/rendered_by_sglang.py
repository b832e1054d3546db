"""Prints the digests of SGLang's rendering of each shape with each template; null where SGLang refuses.

.engines/bin/python router/tests/tokenize/rendered_by_sglang.py WHEEL .engines/tiny-model

The code is taken from the wheel, and runs without the parts that need a GPU.
"""

import asyncio
import copy
import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import shapes

ABSENT = ("IPython", "torchvision", "gguf", "uvloop", "pybase64", "soundfile", "orjson")  # replaced if absent


class Anything(type):
    def __getattr__(cls, name: str) -> Any:
        return _nothing(name)

    def __or__(cls, other: object) -> Any:
        return object

    __ror__ = __or__


class Nothing(metaclass=Anything):
    """A stand-in that has every attribute, none of which does anything."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *given: Any, **_: object) -> Any:
        return given[0] if given and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        return Nothing()


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        is_absent = name.partition(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = types.ModuleType(spec.name)
        made.__path__, made.__version__ = [], "99.0"
        made.__getattr__ = lambda name: _nothing(name)  # type: ignore[method-assign]
        if spec.name == "orjson":
            made.loads, made.JSONDecodeError = json.loads, json.JSONDecodeError
            made.dumps = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        return made

    def exec_module(self, module: types.ModuleType) -> None: ...


def _nothing(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Nothing,), {})


def serving(folder: str) -> Any:
    """Return SGLang's handlers of responses and chats with the parts needed for rendering."""
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
    from sglang.srt.parser.reasoning_parser import ReasoningParser
    from sglang.srt.parser.template_manager import TemplateManager
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if isinstance(tokenizer.chat_template, dict):  # use the first; the server has an option for others
        tokenizer.chat_template = next(iter(tokenizer.chat_template.values()))
    of_model = SimpleNamespace(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    model = SimpleNamespace(hf_config=of_model, is_multimodal=False)
    templates = TemplateManager()
    made: Any = object.__new__(OpenAIServingResponses)
    made.tokenizer_manager = SimpleNamespace(tokenizer=tokenizer, processor=None, model_config=model)
    templates.load_chat_template(made.tokenizer_manager, None, folder)
    made.template_manager = templates
    made.tool_call_parser, made.reasoning_parser = None, "qwen3"
    made._reasoning_detector = ReasoningParser("qwen3").detector
    made.default_chat_template_kwargs, made.msg_store = {}, {}
    made.is_gpt_oss = made.is_gemma4 = made.is_minimax_m3 = made.use_harmony = False
    made.chat_encoding_spec = made._encoding_adapter = made._response_parser = None
    made.supports_inline_system = made._resolve_inline_system_support()
    made._tokenizer_auto_adds_specials = len(tokenizer.encode("")) > 0
    made._prompt_text_round_trip_is_lossy = made._probe_prompt_text_round_trip()
    made._template_reads_reasoning_content = made._chat_template_reads_reasoning_content()
    made._chat_template_cache = OrderedDict()
    return made


def tokens(server: Any, api_path: str, document: dict[str, Any]) -> list[int]:
    from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest

    if api_path == shapes.RESPONSES:
        made = asyncio.run(server._make_request(ResponsesRequest(**document), None, server.tokenizer_manager.tokenizer))
        return list(made[3].prompt_ids)
    if api_path == shapes.MESSAGES:
        request = AnthropicServing(server)._convert_to_chat_completion_request(AnthropicMessagesRequest(**document))
    else:
        request = ChatCompletionRequest(**document)
    return list(server._process_messages(request, False).prompt_ids)


def text(server: Any, api_path: str, document: dict[str, Any]) -> str | None:
    try:
        ids = tokens(server, api_path, {"model": "m", **copy.deepcopy(document)})
    except Exception as error:
        print(f"{api_path} {document}: {error!r:.300}", file=sys.stderr)
        return None
    return str(server.tokenizer_manager.tokenizer.decode(ids, skip_special_tokens=False))


def main(wheel: str, model: str, *shown: str) -> None:
    """Print all digests; `shown` names a template and a shape, whose text is printed instead."""
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place, [name for name in archive.namelist() if name.startswith("sglang/")])
        sys.path.insert(0, place)
        sys.meta_path.append(Absent())
        lines = []
        for name, template in shapes.TEMPLATES.items():
            server = serving(shapes.folder_with(template, model))
            if not shown:
                found = {shape: text(server, *given) for shape, given in shapes.SHAPES.items()}
                digests = {shape: None if said is None else shapes.digest(said) for shape, said in found.items()}
                lines.append(f"{json.dumps(name)}: {json.dumps(digests)}")
            elif name == shown[0]:
                lines.append(str(text(server, *shapes.SHAPES[shown[1]])))
        print("\n".join(lines) if shown else "{" + ",\n".join(lines) + "}")


main(*sys.argv[1:])
