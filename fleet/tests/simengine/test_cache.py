"""The prefix cache as clients see it."""

import pytest

from fleet.tests.simengine.conftest import Sim, StartSim
from fleet.tests.simengine.metrics_page import events


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("size", "found"), [(400, 96), (384, 80), (388, 96), (60, 0)])
def test_a_repeated_prompt_is_cached_except_its_last_block_or_token(sim: Sim, size: int, found: int) -> None:
    """The prompts have 100, 96, 97 and 15 tokens, in blocks of 16; the engine always computes at least one token."""
    prompt = f"{size:04d}" * (size // 4)
    assert cached(sim.complete(prompt, max_tokens=1)) == 0
    assert cached(sim.complete(prompt, max_tokens=1)) == found


def test_the_next_turn_of_a_conversation_hits_prompt_and_answer(sim: Sim) -> None:
    messages = [{"role": "user", "content": "tell me something long " * 20}]
    body = {"messages": messages, "max_tokens": 200, "ignore_eos": True}
    first = sim.post("/v1/chat/completions", body).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    second = sim.post("/v1/chat/completions", body).json()
    # All but the answer's last token were computed; the block where prompt and answer meet may differ.
    known = first["usage"]["total_tokens"] - 1
    assert known - 31 <= cached(second) <= known
    assert cached(second) % 16 == 0


def test_streams_and_other_apis_report_the_cached_tokens_too(sim: Sim) -> None:
    messages = [{"role": "user", "content": "again and again " * 40}]
    body = {"messages": messages, "max_tokens": 4, "ignore_eos": True}
    whole = sim.post("/v1/chat/completions", body).json()
    expected = (whole["usage"]["prompt_tokens"] - 1) // 16 * 16
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with sim.http.stream("POST", "/v1/chat/completions", json=streamed) as stream:
        assert cached(events(stream.iter_lines())[-1]) == expected
    usage = sim.post("/v1/messages", body).json()["usage"]
    assert usage["cache_read_input_tokens"] == expected
    assert usage["input_tokens"] + expected == whole["usage"]["prompt_tokens"]
    ask = {"input": messages, "max_output_tokens": 4}
    assert sim.post("/v1/responses", ask).json()["usage"]["input_tokens_details"]["cached_tokens"] == expected


def test_the_counters_agree_with_what_answers_report(start_sim: StartSim) -> None:
    sim = start_sim()
    answers = [sim.complete("shared" * 100 + tail * 10) for tail in ("one", "two", "one")]
    metrics = sim.metrics()
    assert metrics["vllm:prefix_cache_hits_total"] == sum(map(cached, answers)) > 0
    assert metrics["vllm:prefix_cache_queries_total"] == sum(a["usage"]["prompt_tokens"] for a in answers)
    assert metrics["vllm:prompt_tokens_by_source_total{source=local_cache_hit}"] == sum(map(cached, answers))
    assert metrics["vllm:prompt_tokens_cached_by_source_total{source=device}"] == sum(map(cached, answers))


def test_a_reset_forgets_everything(start_sim: StartSim) -> None:
    sim = start_sim()
    sim.complete("forget" * 100)
    assert sim.post("/reset_prefix_cache", None).json() == {"success": True}
    assert cached(sim.complete("forget" * 100)) == 0


def test_a_small_cache_evicts_the_least_recently_used_block(start_sim: StartSim) -> None:
    sim = start_sim(kv_blocks=64)
    for name in ("aaaa", "bbbb", "aaaa", "cccc"):
        sim.complete(name * 400, max_tokens=1)
    assert cached(sim.complete("aaaa" * 400, max_tokens=1)) == 384
    assert cached(sim.complete("bbbb" * 400, max_tokens=1)) < 384


def test_a_small_cache_limits_the_context_window(start_sim: StartSim) -> None:
    sim = start_sim(kv_blocks=64)
    assert sim.http.get("/v1/models").json()["data"][0]["max_model_len"] == 1024
    assert sim.post("/v1/completions", {"prompt": "x" * 4096, "max_tokens": 1}).status_code == 400
