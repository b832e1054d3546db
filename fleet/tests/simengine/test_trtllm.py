"""Two engines work as a pair over `disaggregated_params`, like TensorRT-LLM's context and generation servers."""

from collections.abc import Iterator
from typing import Any

import pytest

from fleet.tests.simengine.conftest import Sim, start

PROMPT = "the quick brown fox " * 400 + "odd"  # 2,001 tokens, the last of them padded
PATH = "/v1/completions"
CONTEXT = {"request_type": "context_only", "disagg_request_id": 2**62 + 5}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Sim, Sim]]:
    first, second = start(kv="trtllm", kv_hold_s=2000), start(kv="trtllm")
    yield first, second
    first.close()
    second.close()


def context(sim: Sim, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "disaggregated_params": CONTEXT, **fields}
    return dict(sim.post(PATH, body).json())


def test_a_context_server_ends_after_one_token_and_reports_where_the_kv_is(pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    answer = context(one)
    (choice,) = answer["choices"]
    params = choice["disaggregated_params"]
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 1)
    assert (params["ctx_request_id"], len(params["first_gen_tokens"])) == (2**62 + 5, 1)
    assert len(answer["prompt_token_ids"]) == 2001
    body = {"prompt": answer["prompt_token_ids"], "max_tokens": 20, "ignore_eos": True}
    used = {"prompt_tokens": 2001, "prompt_tokens_details": {"cached_tokens": 5}}
    params |= {"request_type": "generation_only", "ctx_usage": used}
    continued = other.post(PATH, body | {"disaggregated_params": params}).json()
    assert continued["choices"][0]["text"].startswith(choice["text"])
    assert continued["choices"][0]["text"] == one.complete(PROMPT, 20)["choices"][0]["text"]  # type: ignore[index]
    assert continued["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert continued["usage"]["total_tokens"] == 2021
    lost = other.post(PATH, body | {"disaggregated_params": params})
    assert (lost.status_code, "no blocks are held" in lost.text) == (500, True)


def test_an_answer_of_one_token_needs_no_generation_server(pair: tuple[Sim, Sim]) -> None:
    first = context(pair[0])["choices"][0]["text"]
    (choice,) = context(pair[0], stop=[first])["choices"]
    assert (choice["finish_reason"], choice["disaggregated_params"]) == ("stop", None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"request_type": "prefill"}, "Unknown request type: prefill. Must be context_only, generation_only or"),
        ({"request_type": "generation_only"}, "ctx_request_id and encoded_opaque_state of a context answer"),
        ({"request_type": "generation_only", "ctx_request_id": 1, "encoded_opaque_state": "!"}, "of a context answer"),
    ],
)
def test_params_of_another_kind_are_refused(pair: tuple[Sim, Sim], params: dict[str, Any], message: str) -> None:
    answer = pair[0].post(PATH, {"prompt": "hi", "disaggregated_params": params})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"].startswith("disaggregated_params")
