"""The requests that the two instances of an offload receive."""

from typing import Any

import orjson
import pytest

from router.flows import bodies

CHAT = "/v1/chat/completions"


def prefill(body: dict[str, Any], api_path: str = CHAT) -> dict[str, Any]:
    return dict(orjson.loads(bodies.prefill(body, api_path, {"do_remote_decode": True})))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"n": 2}, "several answers to one prompt"),
        ({"best_of": 3}, "several answers to one prompt"),
        ({"use_beam_search": True}, "beam search keeps several answers"),
        ({"prompt": ["a", "b"]}, "several prompts in one request"),
        ({"prompt": [[1], [2]]}, "several prompts in one request"),
        ({"echo": True}, "echo: the prompt is part of the answer"),
        ({"prompt_logprobs": 0}, "prompt_logprobs are known where the prompt is computed"),
        ({"tool_choice": "required"}, "tool_choice forces a call, which does not fit into one token"),
        ({"tool_choice": {"type": "function"}}, "tool_choice forces a call, which does not fit into one token"),
        ({"previous_response_id": "r"}, "previous_response_id: one instance stores the response"),
        ({"kv_transfer_params": None}, "the client sent its own kv_transfer_params"),
        ({"disaggregated_params": {}}, "the client sent its own disaggregated_params"),
        ({"n": 1, "prompt": [1, 2], "tool_choice": "auto", "logprobs": True, "tools": [{}]}, ""),
        ({"n": None, "tool_choice": {"type": "auto"}, "stream": True}, ""),
    ],
)
def test_a_body_that_cannot_be_offloaded_is_explained(body: dict[str, Any], why: str) -> None:
    assert bodies.unsuited(body, CHAT, "nixl") == why


def test_endpoints_without_decoding_are_not_offloaded() -> None:
    assert bodies.unsuited({}, "/v1/embeddings", "nixl") == "/v1/embeddings decodes nothing"
    assert bodies.unsuited({}, "/v1/messages", "nixl") == ""
    assert bodies.unsuited({}, "/v1/messages", "neuron") == "/v1/messages cannot be offloaded between neuron instances"


def test_the_prefill_request_asks_for_one_token_of_the_same_prompt() -> None:
    asked = prefill(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function"}],
            "chat_template_kwargs": {"enable_thinking": False},
            "temperature": 0.5,
            "max_tokens": 100,
            "min_tokens": 50,
            "stop": ["."],
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_object"},
        }
    )
    assert asked == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.5,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"do_remote_decode": True},
    }


@pytest.mark.parametrize(
    ("api_path", "limits"),
    [
        ("/v1/completions", {"max_tokens": 1}),
        ("/v1/responses", {"max_output_tokens": 1}),
        ("/v1/messages", {"max_tokens": 1}),
    ],
)
def test_the_limit_of_one_token_is_written_in_the_fields_of_each_api(api_path: str, limits: dict[str, int]) -> None:
    asked = prefill({}, api_path)
    assert {name: value for name, value in asked.items() if name.startswith("max")} == limits


def test_the_decode_request_is_the_client_s_plus_the_location_of_the_kv() -> None:
    body = b' {"model":"m","prompt":"{x}","stream":true}'
    assert orjson.loads(bodies.decode(body, {"remote_port": 5})) == {
        "kv_transfer_params": {"remote_port": 5},
        "model": "m",
        "prompt": "{x}",
        "stream": True,
    }
