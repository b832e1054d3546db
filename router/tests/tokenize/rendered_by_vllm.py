"""Prints the digests of the installed vLLM's rendering of each shape with each template; null where vLLM refuses.

.engines/bin/python router/tests/tokenize/rendered_by_vllm.py .engines/tiny-model >router/tests/tokenize/rendered.json

With `tokens` after the model, each digest is followed by that of the tokens' ids. With orjson, the unpacked wheel of
vLLM 0.33 and the installed vLLM's *.so beside its modules on PYTHONPATH, it is vLLM 0.33 that renders, alike.
"""

import asyncio
import copy
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import shapes
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.anthropic import serving
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.renderers.registry import renderer_from_config


class Rendering:
    def __init__(self, folder: str) -> None:
        config = ModelConfig(folder)
        self.online = OnlineRenderer(
            config,
            renderer_from_config(VllmConfig(model_config=config)),
            request_logger=None,
            chat_template=None,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )
        self.messages = object.__new__(AnthropicServingMessages)
        self.messages.online_renderer = self.online
        self.messages.model_config = config
        self.messages._disabled_thinking_effort = None
        self.merge = AnthropicServingMessages._should_merge_inline_system(self.online)

    async def digest(self, api_path: str, document: dict[str, object], with_ids: bool) -> str | None:
        try:
            tokens = await self.tokens(api_path, {"model": "m", **copy.deepcopy(document)})
        except Exception as error:
            print(f"{api_path} {document}: {error!r:.300}", file=sys.stderr)
            return None
        text = shapes.digest(self.online.renderer.tokenizer.decode(tokens, skip_special_tokens=False))
        return f"{text} {shapes.digest(str(tokens))}" if with_ids else text

    async def tokens(self, api_path: str, document: dict[str, object]) -> list[int]:
        if api_path == shapes.RESPONSES:
            rendered = await self.online.render_responses(ResponsesRequest(**document))
            return rendered.engine_input["prompt_token_ids"]
        request = ChatCompletionRequest(**document) if api_path == shapes.CHAT else await self.chat(document)
        _, (made,) = await self.online.render_chat(request)
        return made["prompt_token_ids"]

    async def chat(self, document: dict[str, object]) -> ChatCompletionRequest:
        request = AnthropicMessagesRequest(**document)
        if resolver := getattr(serving, "DisabledThinkingEffortResolver", None):  # since 0.33
            effort = await resolver(self.online).resolve_for(request)
        else:
            effort = await self.messages._get_disabled_thinking_effort()
        return AnthropicServingMessages.to_chat_completion_request(
            request, merge_inline_system=self.merge, disabled_thinking_effort=effort
        )


async def main(model: str, with_ids: bool) -> None:
    lines = []
    for name, template in shapes.TEMPLATES.items():
        rendering = Rendering(shapes.folder_with(template, model))
        found = {shape: await rendering.digest(*given, with_ids) for shape, given in shapes.SHAPES.items()}
        lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
    print("{" + ",\n".join(lines) + "}")


asyncio.run(main(sys.argv[1], "tokens" in sys.argv[2:]))
