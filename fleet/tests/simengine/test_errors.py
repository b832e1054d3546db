"""The engine refuses bad requests with an error each, and continues."""

import pytest

from fleet.tests.simengine.conftest import Sim

CHAT, PLAIN, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
HI = [{"role": "user", "content": "hi"}]

REFUSED = [
    (CHAT, {}, "messages: Field required"),
    (CHAT, {"messages": []}, "messages: Field required"),
    (CHAT, {"messages": "hi"}, "messages: Field required"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0]: Input should be a message with a role"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content: Input should be a string"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "x", "text": 1}]}]}, "the model takes no part"),
    (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens must be at least 1, got 0."),
    (CHAT, {"messages": HI, "max_completion_tokens": -1}, "max_completion_tokens must be at least 1, got -1."),
    (CHAT, {"messages": HI, "max_tokens": "9"}, "max_tokens: Input should be a valid integer"),
    (CHAT, {"messages": HI, "max_tokens": 131_072}, "maximum context length is 131072 tokens. However, you requested"),
    (CHAT, {"messages": HI, "max_tokens": 5, "min_tokens": 6}, "min_tokens must be at most max_tokens=5, got 6."),
    (CHAT, {"messages": HI, "stream": "yes"}, "stream: Input should be a valid boolean"),
    (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, "only be defined when `stream=True`"),
    (CHAT, {"messages": HI, "stop": [1]}, "stop: Input should be a string or a list of strings"),
    (CHAT, {"messages": HI, "model": 5}, "model: Input should be a valid string"),
    (CHAT, {"messages": HI, "n": 0}, "n must be at least 1, got 0."),
    (CHAT, {"messages": HI, "kv_transfer_params": {"remote_port": "x"}}, "kv_transfer_params: Expected `int | null`"),
    (CHAT, {"messages": HI, "logprobs": 5}, "logprobs: Input should be a valid boolean"),
    (CHAT, {"messages": HI, "top_logprobs": 2}, "when using `top_logprobs`, `logprobs` must be set to true."),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "sample logprobs of 21, which is greater than max"),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": -1}, "top_logprobs must be at least 0, got -1."),
    (PLAIN, {"prompt": "hi", "logprobs": 21}, "sample logprobs of 21, which is greater than max allowed: 20"),
    (PLAIN, {"prompt": "hi", "logprobs": True}, "logprobs: Input should be a valid integer"),
    (CHAT, [], "Input should be a valid dictionary"),
    (PLAIN, {}, "prompt: Field required"),
    (PLAIN, {"prompt": ""}, "prompt: Field required"),
    (PLAIN, {"prompt": [1, -1]}, "prompt: token ids are whole numbers"),
    (PLAIN, {"prompt": [1, "two"]}, "prompt: token ids are whole numbers"),
    (PLAIN, {"prompt": "x" * 4 * 131_072}, "your prompt contains 131072 input tokens"),
    (PLAIN, {"prompt": "hi", "cache_salt": "a\0b"}, "cache_salt: Input should be 1 to 128 characters without '@', '/'"),
    (CHAT, {"messages": HI, "cache_salt": ""}, "cache_salt: Input should be 1 to 128 characters"),
    (MESSAGES, {"messages": HI}, "max_tokens: Field required."),
    (MESSAGES, {"messages": HI, "max_tokens": 0}, "max_tokens must be at least 1, got 0."),
    ("/v1/responses", {}, "input: Field required"),
    ("/v1/embeddings", {"model": "sim", "input": "x"}, "does not support Embeddings"),
    ("/tokenize", {}, "messages: Field required"),
    ("/detokenize", {"tokens": ["x"]}, "tokens: Input should be a list of token ids."),
]


@pytest.mark.parametrize(("path", "body", "message"), REFUSED)
def test_a_bad_request_gets_an_error_that_names_the_problem(sim: Sim, path: str, body: object, message: str) -> None:
    answer = sim.post(path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    if path == MESSAGES:
        assert (answer.json()["type"], error["type"]) == ("error", "invalid_request_error")
    else:
        assert (error["type"], error["code"]) == ("BadRequestError", 400)


@pytest.mark.parametrize("path", [CHAT, PLAIN, MESSAGES, "/v1/responses", "/v1/embeddings", "/tokenize"])
def test_an_unknown_model_is_not_found(sim: Sim, path: str) -> None:
    body = {"model": "gpt-9", "messages": HI, "prompt": "hi", "input": "hi", "max_tokens": 1}
    answer = sim.post(path, body)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "The model `gpt-9` does not exist."


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"prompt": NaN}'])
def test_a_body_that_is_not_json_is_a_bad_request(sim: Sim, body: bytes) -> None:
    answer = sim.http.post(PLAIN, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "JSON decode error" in answer.json()["error"]["message"]


def test_unknown_paths_and_wrong_methods_have_different_statuses(sim: Sim) -> None:
    assert sim.http.get("/v1/nothing").status_code == 404
    assert sim.http.get(CHAT).status_code == 405
    assert sim.http.post("/metrics").status_code == 405


def test_a_refused_request_leaves_no_trace_in_the_engine(sim: Sim) -> None:
    before = sim.metrics()["vllm:prefix_cache_queries_total"]
    sim.post(PLAIN, {"prompt": ["fine", "x" * 4 * 131_072]})
    after = sim.metrics()
    assert after["vllm:prefix_cache_queries_total"] == before
    assert (after["vllm:num_requests_waiting"], after["vllm:kv_cache_usage_perc"]) == (0, 0)
