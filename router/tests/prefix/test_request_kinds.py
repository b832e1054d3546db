"""One client's unpredictable requests do not affect the index that serves all others."""

import pytest

from router.pool.endpoint import Endpoint
from router.prefix.accuracy_by_kind import MOST_KINDS, MOST_NEW, AccuracyByKind
from router.prefix.belief import EXACT
from router.prefix.exact.groups import FIRST, NONE
from router.prefix.request_kind import kind_of, reads_cache
from router.prefix.shortfall import SURE
from router.tests.conftest import instance
from router.tests.engine import ANSWER, USAGE, reply

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


def judged(accuracy, doubt="", trouble=""):
    endpoint = Endpoint(instance("demo-0", "http://engine:8000"))
    endpoint.by_kind = accuracy
    endpoint.belief, endpoint.beliefs = accuracy.beliefs(trouble, doubt=doubt)
    return endpoint


def add(accuracy, kind, predicted, actual, times=64):
    for _ in range(times):
        accuracy.of(kind).exact.add(predicted, actual, 1000)
        accuracy.of(kind).approximate.add(predicted, actual, 1000)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"messages": MESSAGES}, CHAT),
        ({"messages": MESSAGES, "temperature": 0, "stream": True}, CHAT),
        ({"messages": MESSAGES, "tools": []}, f"{CHAT} tools"),
        ({"messages": [*MESSAGES, {"role": "tool", "tool_call_id": "1", "content": "x"}]}, f"{CHAT} tool_call_id"),
        ({"messages": [{"role": "assistant", "reasoning": "hm"}], "echo": True}, f"{CHAT} echo reasoning"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, CHAT),
        ({"messages": [*MESSAGES, {"content": [{"type": "image_url"}, "a type", {}]}]}, f"{CHAT} image_url"),
        ({"messages": [{"content": [{"type": "tool_result"}, {"type": "own"}]}]}, f"{CHAT} tool_result"),
        ({"messages": [{"content": [{"type": {}}, 3]}, 4]}, CHAT),
        ({"prompt": ["a", "b"]}, f"{CHAT} prompts"),
        ({"prompt": [[1, 2], [3]]}, f"{CHAT} prompts"),
        ({"prompt": [1, 2]}, CHAT),
        ({"messages": MESSAGES, "n": 2, "use_beam_search": True}, f"{CHAT} n use_beam_search"),
        ({"prompt": "a", "best_of": 3, "prompt_embeds": "x"}, f"{CHAT} best_of prompt_embeds"),
        ({"messages": MESSAGES, "n": 1, "best_of": None, "use_beam_search": False, "prompt_embeds": None}, CHAT),
        ({"messages": [3, None]}, CHAT),
        ({"messages": "x"}, CHAT),
    ],
)
def test_a_kind_is_the_api_and_the_fields_in_which_prompts_differ(body, kind):
    assert kind_of(CHAT, body) == kind


def test_wrong_predictions_for_one_kind_leave_all_other_kinds_exact():
    accuracy = AccuracyByKind()
    add(accuracy, CHAT, 928, 928)
    add(accuracy, f"{CHAT} reasoning", 928, 0, times=1000)
    endpoint = judged(accuracy)
    assert endpoint.belief.index == "exact"
    assert f"not for {CHAT} reasoning: " in endpoint.belief.why
    assert endpoint.index_for(CHAT) == "exact"
    assert endpoint.index_for("/v1/messages") == "exact"
    assert endpoint.index_for(f"{CHAT} reasoning") == "none"


def test_an_unseen_kind_is_exact_although_the_only_known_kind_is_wrong():
    accuracy = AccuracyByKind()
    add(accuracy, f"{CHAT} reasoning", 928, 0)
    endpoint = judged(accuracy)
    assert endpoint.index_for(CHAT) == "exact"
    assert endpoint.belief.index == "none"


def test_events_that_are_wrong_for_every_kind_are_exact_for_none():
    accuracy = AccuracyByKind()
    for kind in (CHAT, "/v1/completions"):
        add(accuracy, kind, 400, 0)
    endpoint = judged(accuracy)
    assert endpoint.belief.index == "approximate"
    assert "predict cached tokens wrongly" in endpoint.belief.why


def test_trouble_with_the_events_affects_every_kind():
    accuracy = AccuracyByKind()
    add(accuracy, CHAT, 928, 928)
    endpoint = judged(accuracy, trouble="it is silent")
    assert [endpoint.index_for(kind) for kind in (CHAT, "/v1/messages")] == ["approximate"] * 2
    assert endpoint.belief.why == "it is silent"


def test_an_index_that_started_late_is_exact_for_other_kinds_once_it_is_for_one():
    accuracy = AccuracyByKind()
    assert judged(accuracy, doubt="from_start").index_for("/v1/messages") == "approximate"
    for _ in range(64):
        accuracy.of(CHAT).exact.add(928, 928, 1000)
        accuracy.of(CHAT).approximate.add(500, 928, 1000)
    assert judged(accuracy, doubt="from_start").index_for("/v1/messages") == "exact"


def test_the_number_of_kinds_is_bounded_whatever_clients_send():
    accuracy = AccuracyByKind()
    for number in range(1000):
        add(accuracy, f"{CHAT} {number}", 0, 0, times=1)
    assert len(accuracy.kinds) == MOST_KINDS


def test_however_many_wrong_kinds_one_client_sends_an_ordinary_chat_and_a_kind_in_use_stay_exact():
    accuracy, tools = AccuracyByKind(), f"{CHAT} tools"
    for number in range(10 * MOST_KINDS):
        add(accuracy, f"{CHAT} {number}", 928, 0)
        for kind in (CHAT, tools) if number >= MOST_KINDS else ():  # these start later than the client's kinds
            add(accuracy, kind, 928, 928, times=1)
    endpoint = judged(accuracy)
    assert [endpoint.index_for(kind) for kind in (CHAT, tools, "/v1/messages")] == ["exact"] * 3
    assert endpoint.index_for(f"{CHAT} {10 * MOST_KINDS - 1}") == "none"
    assert accuracy.kinds[CHAT].exact.n == accuracy.kinds[tools].exact.n == 9 * MOST_KINDS


@pytest.mark.parametrize("times", [0, 1, 63])
def test_a_frequently_judged_kind_outlives_kinds_that_occur_once(times):
    accuracy, tools = AccuracyByKind(), f"{CHAT} tools"
    add(accuracy, tools, 928, 928, times=500)
    for number in range(10 * MOST_KINDS):
        accuracy.of(f"{CHAT} {number}")
        add(accuracy, f"{CHAT} {number}", 928, 0, times)
    assert accuracy.kinds[tools].exact.n == 500
    assert len(accuracy.kinds) == MOST_KINDS


def test_kinds_that_were_judged_often_but_disappeared_leave_room_for_others():
    accuracy = AccuracyByKind()
    for number in range(3 * MOST_KINDS):
        add(accuracy, f"{CHAT} {number}", 928, 928)
    for _ in range(64):
        for number in range(MOST_NEW):
            add(accuracy, f"{CHAT} new {number}", 928, 928, times=1)
    assert [accuracy.kinds[f"{CHAT} new {number}"].judged for number in range(MOST_NEW)] == [64] * MOST_NEW


def test_hits_of_one_kind_that_fall_short_do_not_shorten_hits_of_other_kinds():
    accuracy = AccuracyByKind()
    for kind, actual in ((f"{CHAT} tools", 912), (CHAT, 928)):
        for _ in range(10):
            accuracy.of(kind).shortfall.add(928, actual, 16)
    assert [accuracy.short_of(kind) for kind in (f"{CHAT} tools", CHAT, "/v1/messages")] == [16, 0, 0]


def test_a_kind_whose_answers_look_like_speculation_drops_no_block_of_other_kinds():
    kinds = AccuracyByKind()
    for _ in range(SURE):
        kinds.of("/v1/completions echo").speculation.add((160, 144, 144), 144)
    assert [kinds.of(kind).speculation.rule for kind in ("/v1/completions echo", "/v1/completions")] == [FIRST, NONE]


def test_many_wrong_kinds_are_reported_in_one_line():
    accuracy = AccuracyByKind()
    add(accuracy, CHAT, 928, 928)
    for number in range(5):
        add(accuracy, f"{CHAT} {number}", 928, 0)
    assert judged(accuracy).belief.why.endswith("; nor for 2 other kinds of requests")


def test_without_a_judgement_a_kind_is_trusted_as_its_instance_is():
    endpoint = Endpoint(instance("demo-0", "http://engine:8000"))
    endpoint.belief = EXACT
    assert endpoint.index_for(CHAT) == "exact"


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ({}, True),
        ({"logprobs": 5}, True),
        ({"echo": True}, True),
        ({"echo": False, "logprobs": 1}, True),
        ({"echo": "false", "logprobs": 1}, True),
        ({"echo": "on", "logprobs": 1}, False),
        ({"echo": True, "logprobs": False}, True),
        ({"echo": True, "logprobs": 0}, False),
        ({"echo": True, "top_logprobs": 2}, False),
        ({"prompt_logprobs": 0}, False),
        ({"prompt_logprobs": None}, True),
    ],
)
def test_a_request_for_the_probabilities_of_its_prompt_reads_no_cache(body, reads):
    assert reads_cache(body) == reads


async def test_evaluation_requests_are_predicted_to_hit_nothing_and_do_not_count_as_errors(world):
    w = await world(reply(ANSWER | {"usage": {**USAGE, "prompt_tokens": 500}}), strategy="cache_aware")
    prompt = "p" * 2000
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    for _ in range(3):
        await w.ask(prompt=prompt)
    counted = endpoint.approximate.n
    for more in ({"prompt_logprobs": 1}, {"echo": True, "logprobs": 0}):
        receipt = await w.receipt(await w.ask(prompt=prompt, **more))
        assert receipt["predicted_cached"] == 0
    assert endpoint.approximate.n == counted
    assert (await w.receipt(await w.ask(prompt=prompt)))["predicted_cached"] > 0
