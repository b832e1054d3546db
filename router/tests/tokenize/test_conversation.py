"""Convert messages and responses to a chat completion, or say why that is impossible."""

from pathlib import Path
from typing import Any

import pytest

from router.tests.tokenize.conftest import prompt_of, save, trained
from router.tokenize.conversation import CONVERSIONS, Manner, as_chat
from router.tokenize.folder import FolderTokenizer
from router.tokenize.tokenizer import NotTokenized

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


@pytest.mark.parametrize(
    ("api_path", "document", "why"),
    [
        (MESSAGES, {"messages": user({"type": "image", "source": {}})}, "a block of type 'image'"),
        (MESSAGES, {"messages": user({"type": "search_result"})}, "a block of type 'search_result'"),
        (MESSAGES, {"messages": [{"role": "system", "content": [{"type": "tool_removal"}]}]}, "tools that change"),
        (
            MESSAGES,
            {"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]})},
            "a tool result is more than text",
        ),
        (MESSAGES, {"messages": "hello"}, "the body is not a request to /v1/messages"),
        (RESPONSES, {"input": "hi", "previous_response_id": "r"}, "previous_response_id: only the engine"),
        (RESPONSES, {"input": "hi", "truncation": "auto"}, "truncation: only the engine"),
        (
            RESPONSES,
            {"input": "hi", "tools": [{"type": "custom", "format": {"type": "grammar"}}]},
            "a tool with a grammar",
        ),
        (RESPONSES, {"input": [{"type": "web_search_call"}]}, "an item of type 'web_search_call'"),
        (RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "encrypted thoughts"),
        (RESPONSES, {"input": [{"role": "assistant", "content": "so", "status": "incomplete"}]}, "to be continued"),
        (RESPONSES, {}, "the body is not a request to /v1/responses"),
        ("/v1/embeddings", {"input": "hi"}, "/v1/embeddings: only the engine"),
    ],
)
def test_a_prompt_that_depends_on_more_than_the_request_is_refused(
    api_path: str, document: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotTokenized, match=why):
        as_chat(document, api_path, Manner(), CONVERSIONS)


def test_a_conversation_has_the_same_tokens_through_each_endpoint(folder: Path) -> None:
    tokenizer = FolderTokenizer(folder)
    said = [{"role": "user", "content": "hello"}]
    chat = [{"role": "system", "content": "be brief"}, *said]
    wanted = tokenizer.tokens(prompt_of("/v1/chat/completions", messages=chat), "/v1/chat/completions")
    assert tokenizer.tokens(prompt_of(MESSAGES, system="be brief", messages=said), MESSAGES) == wanted
    assert tokenizer.tokens(prompt_of(RESPONSES, instructions="be brief", input=said), RESPONSES) == wanted


@pytest.mark.parametrize("api_path", [MESSAGES, RESPONSES, "/v1/chat/completions"])
def test_a_salt_does_not_change_the_tokens(folder: Path, api_path: str) -> None:
    said = {"input" if api_path == RESPONSES else "messages": [{"role": "user", "content": "hello"}]}
    plain, salted = prompt_of(api_path, **said), prompt_of(api_path, cache_salt="s", **said)
    tokenizer = FolderTokenizer(folder)
    assert tokenizer.tokens(salted, api_path) == tokenizer.tokens(plain, api_path)


def test_a_reminder_in_the_middle_is_moved_to_the_front_if_the_template_requires_it(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
        "[{{ m.content }}]{% endfor %}"
    )
    tokenizer = FolderTokenizer(save(tmp_path, trained(), template))
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}]
    assert tokenizer.tokens(prompt_of(MESSAGES, messages=messages), MESSAGES) == tokenizer.whole("[b][a][c]")


def test_tools_reach_the_template_as_vllm_writes_them(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(save(tmp_path, trained(), "{{ tools | tojson }}"))
    tool = {"name": "read", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    written = (
        '[{"type": "function", "function": {"name": "read", "description": null, "parameters": {"type": "object"}}}]'
    )
    said = [{"role": "user", "content": "hello"}]
    assert tokenizer.tokens(prompt_of(MESSAGES, messages=said, tools=[tool]), MESSAGES) == tokenizer.whole(written)
    chat = {"function": {"parameters": {"type": "object"}, "name": "read"}, "type": "function"}
    made = tokenizer.tokens(prompt_of("/v1/chat/completions", messages=said, tools=[chat]), "/v1/chat/completions")
    assert made == tokenizer.whole(written)
    with pytest.raises(NotTokenized, match="a tool is not a function"):
        tokenizer.tokens(prompt_of("/v1/chat/completions", messages=said, tools=["no"]), "/v1/chat/completions")
