"""A name that many conversations share does not count as a session, and the receipt says so."""

import json

import pytest

from router.serving.prompt.shared_names import KEPT, MOST, MOST_OF_MANY, STRETCH_S, SharedNames
from router.tests.conftest import key_entry
from router.tests.test_keys import ALICE, BOB, bearer, keyed
from router.tokenize.prompt import read

CHAT = "/v1/chat/completions"


def conversation(number, turns=1):
    said = [{"role": "user", "content": f"question {number}"}]
    for turn in range(1, turns):
        said += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"further {turn}"}]
    return read(json.dumps({"messages": [{"role": "system", "content": "s" * 5000}, *said]}).encode(), CHAT)


def test_a_conversation_has_one_beginning_however_long_it_grows():
    names = SharedNames()
    assert not any(names.is_shared("s", conversation(1, turns), 2, 0.0) for turns in range(1, 200))


def test_a_name_with_more_beginnings_than_a_session_has_is_shared_even_if_its_instructions_are_equal():
    names = SharedNames()
    told = [names.is_shared("app", conversation(number), 16, 0.0) for number in range(20)]
    assert told == [False] * 16 + [True] * 4
    assert not names.is_shared("other", conversation(0), 16, 0.0)


def test_one_persons_many_conversations_in_a_day_are_not_a_shared_name():
    names = SharedNames()
    assert not any(names.is_shared("u", conversation(i), 16, i * 60.0) for i in range(1440))


def test_a_shared_name_is_a_session_again_after_a_period_with_few_beginnings():
    names = SharedNames()
    for number in range(20):
        names.is_shared("app", conversation(number), 16, 0.0)
    assert names.is_shared("app", conversation(1), 16, STRETCH_S + 1)  # judged by the period before
    assert not names.is_shared("app", conversation(1), 16, 2 * STRETCH_S + 2)
    assert not names.is_shared("app", conversation(1), 16, 9 * STRETCH_S)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": None}),
        ("/v1/chat/completions", {"messages": [7, {"role": "system", "content": "s"}]}),
        ("/v1/completions", {"prompt": "short"}),
    ],
)
def test_a_prompt_with_a_common_beginning_is_not_counted(path, body):
    names = SharedNames()
    assert not names.is_shared("s", read(json.dumps(body).encode(), path), 0, 0.0)
    assert len(names) == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "p" * 256}),
        ("/v1/responses", {"input": "p" * 256}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "p"}]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": ["p", {"type": "text", "text": "q"}, 7]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": None}]}),
    ],
)
def test_each_api_reports_a_beginning(path, body):
    assert SharedNames().is_shared("s", read(json.dumps(body).encode(), path), 0, 0.0)


def test_the_least_recently_used_names_are_forgotten():
    names = SharedNames()
    for number in range(KEPT + 50):
        names.is_shared(f"n{number}", conversation(0), 16, 0.0)
    assert len(names) == KEPT


async def test_each_conversation_of_an_application_that_sends_its_own_name_is_a_session(world):
    w = await world(None, None, None, strategy="session_sticky")
    receipts = []
    for number in range(MOST_OF_MANY + 12):
        said = [{"role": "user", "content": f"question {number} " * 30}]
        receipts.append(await w.receipt(await w.ask(CHAT, messages=said, prompt_cache_key="my-app")))
    before, after = receipts[:MOST_OF_MANY], receipts[MOST_OF_MANY:]
    assert len({receipt["session"] for receipt in before}) == 1
    assert {receipt["session_by"] for receipt in before} == {"body:prompt_cache_key"}
    assert len({receipt["session"] for receipt in after}) == 12
    assert {receipt["session_by"] for receipt in after} == {
        f"the prompt: more than {MOST_OF_MANY} conversations share body:prompt_cache_key"
    }


async def test_a_named_session_remains_although_it_cuts_its_history(world):
    w = await world(None, None, None, strategy="session_sticky")
    instances = set()
    for turn in range(20):
        said = [{"role": "user", "content": f"what is left of turn {turn} " * 30}]
        answer = await w.ask(CHAT, messages=said, headers={"x-session-affinity": "s"})
        instances.add(answer.headers["x-weir-instance"])
    assert len(instances) == 1
    assert MOST > 20


async def test_a_prompt_that_identifies_its_session_leaves_no_names_in_its_receipt(world):
    w = await world(None)
    assert "session_by" not in await w.receipt(await w.ask(prompt="p" * 600))


async def test_the_names_of_two_keys_are_counted_separately(world):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB), required=())
    for headers in (bearer(ALICE), bearer(BOB), {}, {}):
        await w.ask(headers=headers, prompt="p" * 600, user="u")
    assert len(w.router.pools.shared_names) == 3
