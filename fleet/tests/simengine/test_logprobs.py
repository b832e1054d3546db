"""Log probabilities of tokens in chats and raw completions, whole and streamed."""

import math
from typing import Any

import pytest

from fleet.tests.simengine.conftest import Sim
from fleet.tests.simengine.metrics_page import events

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "y" * 80}], "logprobs": True, "top_logprobs": 3},
    PLAIN: {"prompt": "x" * 80, "logprobs": 3},
}


def joined(pieces: list[dict[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, values in piece.items():
            found.setdefault(name, []).extend(values)
    return found


@pytest.mark.parametrize("path", ASKS)
def test_a_stream_carries_the_same_log_probabilities_as_a_whole_answer(sim: Sim, path: str) -> None:
    body = {**ASKS[path], "max_tokens": 12, "ignore_eos": True}
    (choice,) = sim.post(path, body).json()["choices"]
    assert sim.post(path, body).json()["choices"] == [choice]
    with sim.http.stream("POST", path, json={**body, "stream": True}) as streamed:
        heard = [each for event in events(streamed.iter_lines()) for each in event["choices"]]
    assert joined([each["logprobs"] for each in heard if each["logprobs"]]) == choice["logprobs"]


def test_chat_lists_each_token_with_its_bytes_and_the_likeliest(sim: Sim) -> None:
    (choice,) = sim.post(CHAT, {**ASKS[CHAT], "max_tokens": 12, "ignore_eos": True}).json()["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    assert len(content) == 12
    for token in content:
        top = token["top_logprobs"]
        assert bytes(token["bytes"]).decode() == token["token"]
        assert top[0] == {name: token[name] for name in ("token", "logprob", "bytes")}
        assert len({one["token"] for one in top}) == 3
        shares = [math.exp(one["logprob"]) for one in top]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) < 1


def test_completions_list_offsets_and_at_least_the_token_itself(sim: Sim) -> None:
    body = {"prompt": "x" * 80, "max_tokens": 6, "ignore_eos": True, "n": 2}
    for asked, listed in ((0, 1), (1, 1), (5, 5)):
        for choice in sim.post(PLAIN, {**body, "logprobs": asked}).json()["choices"]:
            found = choice["logprobs"]
            assert "".join(found["tokens"]) == choice["text"]
            assert found["text_offset"] == [0, 4, 8, 12, 16, 20]
            assert [len(top) for top in found["top_logprobs"]] == [listed] * 6
            own = [top[token] for token, top in zip(found["tokens"], found["top_logprobs"], strict=True)]
            assert own == found["token_logprobs"]


def test_tokens_after_a_stop_string_are_empty(sim: Sim) -> None:
    body = {"prompt": "x" * 80, "max_tokens": 6, "ignore_eos": True, "logprobs": 0}
    text = sim.post(PLAIN, body).json()["choices"][0]["text"]
    (choice,) = sim.post(PLAIN, {**body, "stop": text[6:12]}).json()["choices"]
    assert choice["logprobs"]["tokens"] == [text[:4], text[4:6], ""]
    assert choice["logprobs"]["text_offset"] == [0, 4, 6]


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": ASKS[CHAT]["messages"], "logprobs": False}), (PLAIN, {"prompt": "x"})]
)
def test_log_probabilities_are_absent_unless_requested(sim: Sim, path: str, body: dict[str, Any]) -> None:
    assert sim.post(path, {**body, "max_tokens": 2}).json()["choices"][0]["logprobs"] is None
