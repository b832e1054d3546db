"""The router's tokens of a prompt are those that the simulated engine computes."""

import json
from typing import Any

import pytest

from fleet.simengine import generation
from fleet.simengine.http.app import FORMATS
from router.tokenize import Prompt
from router.tokenize.prompt import read
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import NotTokenized

PARTS = [{"type": "text", "text": "two "}, "parts"]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "some text, é"}),
    ("/v1/completions", {"prompt": [1, 2, 2**32 - 1]}),
    ("/v1/completions", {"prompt": [[1, 2, 3]]}),
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": PARTS}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}], "tools": [{"type": "function"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]}),
    ("/v1/messages", {"system": "be", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}),
    (
        "/v1/messages",
        {
            "max_tokens": 1,
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "content": PARTS}]},
            ],
        },
    ),
    ("/v1/responses", {"instructions": "be", "input": "hello"}),
    ("/v1/responses", {"input": [{"role": "user", "content": PARTS}]}),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": None},
                {"type": "function_call", "call_id": "c", "name": "shell", "arguments": '{"command": "ls"}'},
                {"type": "function_call_output", "call_id": "c", "output": PARTS},
                {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "+1"},
                {"type": "custom_tool_call_output", "call_id": "d", "output": "done"},
            ]
        },
    ),
]


def prompt_of(endpoint: str, body: dict[str, Any]) -> Prompt:
    return read(json.dumps(body).encode(), endpoint)


@pytest.mark.parametrize(("endpoint", "body"), BODIES)
def test_the_routers_tokens_are_the_engines_own(endpoint: str, body: dict[str, Any]) -> None:
    (asked,) = FORMATS[endpoint].parse(dict(body)).prompts
    made = SimTokenizer().tokens(prompt_of(endpoint, body), endpoint)
    assert made == generation.from_ids(generation.to_ids(asked))


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"messages": [{"content": "no role"}]}),
        ("/v1/chat/completions", {"messages": [{"type": "reasoning", "content": "no role"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [7]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "x", "text": 1}]}]}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("/v1/embeddings", {"input": "hello"}),
    ],
)
def test_prompts_that_the_engine_would_refuse_are_not_tokenised(endpoint: str, body: dict[str, Any]) -> None:
    with pytest.raises(NotTokenized):
        SimTokenizer().tokens(prompt_of(endpoint, body), endpoint)
