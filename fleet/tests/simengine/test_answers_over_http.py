"""Answers of the endpoints, whole and streamed."""

import pytest

from fleet.tests.simengine.conftest import Sim
from fleet.tests.simengine.metrics_page import events

ASKS: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "x" * 400, "max_tokens": 30},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "y" * 400}], "max_tokens": 30},
    "/v1/messages": {"system": "z", "messages": [{"role": "user", "content": "z" * 400}], "max_tokens": 30},
    "/v1/responses": {"instructions": "w", "input": "w" * 400, "max_output_tokens": 30},
}


def text_of(path: str, answer: dict) -> str:
    return {
        "/v1/completions": lambda: answer["choices"][0]["text"],
        "/v1/chat/completions": lambda: answer["choices"][0]["message"]["content"],
        "/v1/messages": lambda: answer["content"][0]["text"],
        "/v1/responses": lambda: answer["output"][0]["content"][0]["text"],
    }[path]()


def delta_of(path: str, event: dict) -> str:
    if path == "/v1/messages":
        return event["delta"]["text"] if event["type"] == "content_block_delta" else ""
    if path == "/v1/responses":
        return event["delta"] if event["type"] == "response.output_text.delta" else ""
    choice = (event["choices"] or [{"text": "", "delta": {}}])[0]
    return choice["text"] if path == "/v1/completions" else choice["delta"].get("content", "")


@pytest.mark.parametrize("path", ASKS)
def test_a_streamed_answer_equals_a_whole_one(sim: Sim, path: str) -> None:
    body = {**ASKS[path], "model": "sim", "ignore_eos": True, "unknown": {"is": "ignored"}}
    whole = sim.post(path, body)
    assert whole.headers["content-type"] == "application/json"
    with sim.http.stream("POST", path, json={**body, "stream": True}) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        heard = events(streamed.iter_lines())
    said = "".join(delta_of(path, event) for event in heard)
    assert len(said) == 120
    assert said == text_of(path, whole.json())


def test_plain_completions_count_their_tokens_and_give_a_finish_reason(sim: Sim) -> None:
    answer = sim.complete("four" * 25, max_tokens=12)
    assert answer["usage"] == {
        "prompt_tokens": 25,
        "total_tokens": 37,
        "completion_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (answer["object"], answer["model"]) == ("text_completion", "sim")
    assert answer["choices"][0]["finish_reason"] == "length"


def test_token_ids_and_text_are_two_forms_of_one_prompt(sim: Sim) -> None:
    ids = sim.post("/tokenize", {"prompt": "spelling" * 20}).json()
    assert (ids["count"], ids["max_model_len"]) == (40, 131_072)
    assert sim.post("/detokenize", {"tokens": ids["tokens"]}).json() == {"prompt": "spelling" * 20}
    by_text, by_ids = sim.complete("spelling" * 20), sim.complete(ids["tokens"])
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]


def test_chat_is_rendered_by_the_template(sim: Sim) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    rendered = "<|user|>\nhi\n<|assistant|>\n"
    tokens = sim.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert tokens == sim.post("/tokenize", {"prompt": rendered}).json()["tokens"]
    answer = sim.post("/v1/chat/completions", {"messages": messages, "max_completion_tokens": 3, "ignore_eos": True})
    assert answer.json()["usage"]["prompt_tokens"] == len(tokens)
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"


def test_several_prompts_and_several_answers_each_have_their_index(sim: Sim) -> None:
    answer = sim.complete(["first" * 8, "other" * 8], max_tokens=5, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) == 4
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (20, 20)


def test_the_usage_of_a_stream_is_sent_last_and_only_on_request(sim: Sim) -> None:
    body = {"prompt": "usage" * 40, "max_tokens": 9, "ignore_eos": True, "stream": True}
    for options, last_has_usage in ((None, False), ({"include_usage": True}, True)):
        with sim.http.stream("POST", "/v1/completions", json={**body, "stream_options": options}) as streamed:
            lines = list(streamed.iter_lines())
        heard = events(lines)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert ("usage" in heard[-1]) is last_has_usage
        assert not any("usage" in event for event in heard[:-1])
        finishes = [event["choices"][0]["finish_reason"] for event in heard if event["choices"]]
        assert finishes[-1] == "length"
        assert set(finishes[:-1]) <= {None}
    assert (heard[-1]["choices"], heard[-1]["usage"]["completion_tokens"]) == ([], 9)


def test_usage_can_be_sent_with_every_chunk(sim: Sim) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "every" * 40, "max_tokens": 9, "ignore_eos": True, "stream": True, "stream_options": options}
    with sim.http.stream("POST", "/v1/completions", json=body) as streamed:
        heard = events(streamed.iter_lines())
    assert [event["usage"]["completion_tokens"] for event in heard][-1] == 9
    assert all(event["usage"]["prompt_tokens"] == 50 for event in heard)


def test_a_chat_stream_begins_with_the_role(sim: Sim) -> None:
    body = {"messages": [{"role": "user", "content": "role"}], "max_tokens": 2, "ignore_eos": True, "stream": True}
    with sim.http.stream("POST", "/v1/chat/completions", json=body) as streamed:
        first = events(streamed.iter_lines())[0]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"


def test_anthropic_events_arrive_in_order(sim: Sim) -> None:
    body = {"messages": [{"role": "user", "content": "order"}], "max_tokens": 40, "ignore_eos": True, "stream": True}
    with sim.http.stream("POST", "/v1/messages", json=body) as streamed:
        heard = events(streamed.iter_lines())
    kinds = [event["type"] for event in heard]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert heard[-2]["delta"]["stop_reason"] == "max_tokens"
    assert heard[-2]["usage"]["output_tokens"] == 40


def test_a_stop_sequence_is_reported_if_the_api_has_a_field_for_it(sim: Sim) -> None:
    said = sim.complete("stop me" * 9, max_tokens=20)["choices"][0]["text"]
    stop = said[30:36]
    choice = sim.complete("stop me" * 9, max_tokens=20, stop=[stop])["choices"][0]
    assert choice["text"] == said[: said.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_the_callers_request_id_is_kept(sim: Sim) -> None:
    body = {"prompt": "named", "max_tokens": 1}
    assert sim.post("/v1/completions", body, **{"x-request-id": "abc-1"}).json()["id"] == "cmpl-abc-1"
    ids = {sim.post("/v1/completions", body).json()["id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_body_of_half_a_megabyte_is_served(sim: Sim) -> None:
    answer = sim.complete("long" * 125_000, max_tokens=2)
    assert answer["usage"]["prompt_tokens"] == 125_000


def test_the_model_is_listed_with_its_context_window(sim: Sim) -> None:
    (model,) = sim.http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("sim", "model", 131_072)


def test_health_version_and_load_answer(sim: Sim) -> None:
    assert sim.http.get("/health").status_code == 200
    assert sim.http.get("/version").json()["version"]
    assert sim.http.get("/load").json() == {"server_load": 0}
