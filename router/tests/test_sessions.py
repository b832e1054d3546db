"""A session keeps its instance, however it is named and whichever router it uses."""

import time
from typing import Any

import pytest

from router.contract.redis import redis_keys
from router.contract.session_names import LONGEST
from router.pool.affinity import Affinity
from router.serving.prompt.sessions import calls_of
from router.sync import redis_source
from router.sync.reporter import SESSIONS_BATCH
from router.tests.conftest import running


@pytest.mark.parametrize(
    "named",
    [
        {"headers": {"x-session-id": "s"}},
        {"headers": {"x-claude-code-session-id": "s"}},
        {"headers": {"session-id": "s"}},
        {"user": "s"},
        {"session_id": "s"},
        {"metadata": {"session_id": "s"}},
        {"metadata": {"user_id": "s"}},
        {"prompt_cache_key": "s"},
    ],
)
async def test_a_session_stays_on_its_instance(world, named):
    w = await world(None, None, None, strategy="session_sticky")
    instances = {(await w.ask(**named)).headers["x-weir-instance"] for _ in range(6)}
    assert len(instances) == 1


async def test_the_header_takes_precedence_over_the_body(world):
    w = await world(None, None, strategy="session_sticky")
    await w.ask(headers={"x-session-id": "a"}, user="b")
    affinity = w.router.pools.get("demo").affinity
    assert affinity.get("a", 0, 60)
    assert not affinity.get("b", 0, 60)


async def test_a_growing_conversation_without_a_name_is_recognised(world):
    w = await world(None, None, None, strategy="session_sticky")
    messages = [{"role": "user", "content": "tell me " * 100}]
    instances = set()
    for turn in range(5):
        response = await w.ask("/v1/chat/completions", messages=messages)
        instances.add(response.headers["x-weir-instance"])
        messages += [
            {"role": "assistant", "content": f"answer {turn} " * 50},
            {"role": "user", "content": "more " * 80},
        ]
    assert len(instances) == 1


STYLES = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]


def agents_turns(style: str, call: str, text: str) -> list[dict[str, Any]]:
    """Return a tool call and its result in each API's form."""
    if style == "/v1/responses":
        made = {"type": "function_call", "call_id": call, "name": "read", "arguments": "{}"}
        return [made, {"type": "function_call_output", "call_id": call, "output": text}]
    if style == "/v1/messages":
        use, result = {"type": "tool_use", "id": call, "name": "read", "input": {}}, {"tool_use_id": call}
        return [
            {"role": "assistant", "content": [{"type": "text", "text": "so"}, use]},
            {"role": "user", "content": [{"type": "tool_result", **result, "content": text}]},
        ]
    made = {"id": call, "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call, "content": text},
    ]


@pytest.mark.parametrize("style", STYLES)
async def test_an_agent_that_rewrites_or_drops_its_first_turn_is_recognised_by_its_calls(world, style):
    """Qwen Code moves a reminder into the latest question."""
    w = await world(None, None, None, strategy="session_sticky")
    field = "input" if style == "/v1/responses" else "messages"

    async def ask(turns, **more):
        body = {field: turns, "tools": [], "max_tokens": 1, **more}
        return (await w.receipt(await w.ask(style, **body)))["session"]

    def question(text):
        return {"role": "user", "content": f"{text} " * 200}

    sessions = set()
    for conversation in range(4):
        ids = [f"call_{conversation:02}{turn:02}0123456789ab" for turn in range(4)]
        first, turns = question(f"the date is Sunday; question of {conversation}"), []
        found = {await ask([first])}
        for turn, one in enumerate(ids):
            turns += [*agents_turns(style, one, f"result {turn} " * 30)]
            found.add(await ask([first, *turns]))
            first = question(f"question {turn} of {conversation}")
            turns = turns[-4:]  # earlier turns are dropped
        assert len(found) == 1
        sessions |= found
    assert len(sessions) == 4


@pytest.mark.parametrize("call", ["call_1", "functions.read_file:0", "", 7, None, {}])
def test_a_sequential_call_id_does_not_identify_its_conversation(call):
    for style in STYLES:
        assert [*calls_of({"messages": agents_turns(style, call, "x")}, None)] == []
    assert [*calls_of({"messages": "x"}, None)] == []
    assert [*calls_of({"messages": [3, {"role": "user", "content": ["a"]}]}, None)] == []


class Chunked:
    """A conversation whose prompts have one hash per turn, as if each turn filled a chunk."""

    def __init__(self, affinity: Affinity, turns: list[dict[str, Any]]) -> None:
        self.affinity, self.turns = affinity, turns

    def says(self, *turns: dict[str, Any]) -> str | None:
        self.turns = [*self.turns, *turns]
        hashes = [hash(repr(self.turns[: end + 1])) for end in range(len(self.turns))]
        return self.affinity.session_of_calls(hashes, calls_of({"messages": self.turns}, None))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CALL = "call_0123456789abcdef"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("together", [True, False])
def test_conversations_that_begin_with_the_same_example_calls_are_separate_sessions(style, together):
    affinity, examples = Affinity(), [user("as here:"), *agents_turns(style, CALL, "x"), user("and so on")]
    all_of_them = [Chunked(affinity, examples) for _ in range(1000)]
    names: list[set[str | None]] = [set() for _ in all_of_them]
    turns = [
        lambda n, one: one.says(user(f"question {n}")),
        lambda n, one: one.says(*agents_turns(style, f"{CALL}-{n}", f"result {n}")),
        lambda n, one: one.says(user("so"), user(f"further question {n}")),
    ]
    steps = [(n, turn) for turn in turns for n in range(1000)] if together else []
    for n, turn in steps or [(n, turn) for n in range(1000) for turn in turns]:
        names[n].add(turn(n, all_of_them[n]))
    assert all(len(name) == 1 for name in names)
    assert len(set[str | None]().union(*names)) == 1000


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("calls", [True, False])
def test_forks_of_a_conversation_are_separate_sessions(style, calls):
    affinity = Affinity()
    root = Chunked(affinity, [user("question")])
    names = {root.says(*agents_turns(style, CALL, "x"))}
    forks = [Chunked(affinity, root.turns) for _ in range(50)]
    for n, fork in enumerate(forks):
        grown = agents_turns(style, f"{CALL}-{n}", f"result {n}") if calls else [user("so"), user(f"try {n}")]
        found = {fork.says(*grown), fork.says(*agents_turns(style, f"{CALL}-{n}-2", "y"))}
        assert len(found) == 1
        names |= found
    assert len(names) == 50  # the first fork continues the root


def test_an_agent_that_rewrites_its_first_turn_is_recognised_without_a_new_call_and_when_it_repeats_a_prompt():
    affinity = Affinity()
    agent = Chunked(affinity, [user("the date is Sunday; question")])
    names = {agent.says(*agents_turns("/v1/chat/completions", CALL, "x"))}
    for number in range(5):
        agent.turns[0] = user(f"question without the date {number}")
        names |= {agent.says(user("so"), user(f"the date is Sunday; question {number}")), agent.says()}
    agent.turns[0] = user("anew")
    names.add(agent.says(*agents_turns("/v1/chat/completions", f"{CALL}-2", "x")))
    assert len(names) == 1


async def test_a_prompt_shorter_than_a_chunk_has_no_session_until_it_grows_or_has_a_name(world):
    w = await world(None)
    short, longer = {"prompt": "p" * 255}, {"prompt": "p" * 256}
    assert [(await w.receipt(await w.ask(**body)))["session"] is None for body in (short, longer)] == [True, False]
    assert (await w.receipt(await w.ask(**short, user="u")))["session"] is not None


async def test_conversations_that_share_only_a_system_prompt_are_separate_sessions():
    affinity = Affinity()
    first = affinity.session_of_chain([1, 2, 3])
    assert affinity.session_of_chain([1, 2, 4]) != first
    assert affinity.session_of_chain([1, 2, 3]) == first  # the same prompt, or one that is longer by less than a chunk
    assert affinity.session_of_chain([1, 2, 3, 5]) == first
    assert affinity.session_of_chain([]) is None


async def test_a_short_prompt_does_not_merge_all_that_begin_like_it_into_one_session():
    affinity = Affinity()
    first = affinity.session_of_chain([1, 2])  # instructions that all share, and one word
    assert affinity.session_of_chain([1, 2, 3]) == first
    others = [affinity.session_of_chain([1, 2, number]) for number in range(10, 60)]
    assert len({first, *others}) == 51
    assert affinity.session_of_chain([1, 2]) is None
    assert affinity.session_of_chain([1, 2, 60]) not in {first, *others}
    assert [affinity.session_of_chain([1, 2, number, -number]) for number in range(10, 60)] == others
    assert affinity.session_of_chain([1, 2, 3, 4]) == first


@pytest.mark.slow
async def test_another_router_knows_a_session(world, redis_url):
    w = await world(None, None, None, strategy="session_sticky")
    home = (await w.ask(user="s")).headers["x-weir-instance"]
    await w.until(lambda: w.published.client.get(redis_keys.affinity_key("demo", "s")) == home.encode())
    async with running(redis_url, "router-2") as (_, client):
        for _ in range(3):
            response = await client.post("/v1/completions", json={"model": "llama", "prompt": "x", "user": "s"})
            assert response.headers["x-weir-instance"] == home


@pytest.mark.slow
async def test_a_starting_router_learns_where_sessions_are_bound(world, redis_url):
    w = await world(None, None, None, strategy="session_sticky")
    for number in range(3):
        w.published.client.set(redis_keys.affinity_key("demo", f"s{number}"), "demo-2")
    async with running(redis_url, "router-1") as (router, client):
        affinity = router.pools.get("demo").affinity
        await w.until(lambda: len(affinity) == 3)
        await w.until(lambda: router.pools.get("demo") in router.source.directory._taken_up)
        body = {"model": "llama", "prompt": "x"}
        asked = [await client.post("/v1/completions", json={**body, "user": user}) for user in ("s0", "s2")]
        assert {response.headers["x-weir-instance"] for response in asked} == {"demo-2"}


async def test_a_binding_in_redis_ends_with_its_time_to_live(world):
    w = await world(None, affinity__ttl_s=100)
    await w.ask(user="s")
    await w.until(lambda: 0 < w.published.client.ttl(redis_keys.affinity_key("demo", "s")) <= 100)


async def test_more_sessions_than_one_batch_are_all_written(world):
    w = await world(None)
    affinity = w.router.pools.get("demo").affinity
    now, many = time.time(), 2 * SESSIONS_BATCH + 1
    for number in range(many):
        affinity.bind(f"s{number}", "demo-0", now, ttl_s=100)
    keys = [redis_keys.affinity_key("demo", f"s{number}") for number in range(many)]
    await w.until(lambda: w.published.client.mget(keys) == [b"demo-0"] * many)
    assert affinity.changed == {}


async def test_a_pool_that_is_added_while_sessions_are_written_is_not_an_error(world, monkeypatch):
    monkeypatch.setattr(redis_source, "FLUSH_S", 3600.0)
    w = await world(None)
    reporter, pools = w.router.source.reporter, w.router.pools
    write = reporter._flush_sessions

    async def write_while_one_is_added(pool):
        pools.get_or_add("another")
        await write(pool)

    monkeypatch.setattr(reporter, "_flush_sessions", write_while_one_is_added)
    affinity = pools.get("demo").affinity
    affinity.bind("s", "demo-0", time.time(), ttl_s=100)
    await reporter.flush()
    assert affinity.changed == {}


def test_unwritten_sessions_are_kept_unless_they_changed_since(monkeypatch):
    monkeypatch.setattr("router.pool.affinity.KEPT", 3)
    affinity = Affinity()
    for session in ("a", "b", "c", "d"):
        affinity.bind(session, "demo-0", now=0, ttl_s=100)
    taken = affinity.take_changed(2)
    assert list(taken) == ["a", "b"]
    affinity.bind("a", "demo-1", now=1, ttl_s=100)
    affinity.give_back(taken)
    assert affinity.changed == {"d": ("demo-0", 100), "a": ("demo-1", 100), "b": ("demo-0", 100)}


def test_a_binding_ends_with_its_time_to_live():
    affinity = Affinity()
    affinity.bind("s", "demo-0", now=1000, ttl_s=60)
    assert affinity.get("s", 1060, 60).instance == "demo-0"
    assert affinity.get("s", 1061, 60) is None


def test_a_binding_is_written_when_it_moves_and_then_only_occasionally():
    affinity = Affinity()
    affinity.bind("s", "demo-0", now=0, ttl_s=100)
    assert affinity.changed == {"s": ("demo-0", 100)}
    affinity.changed = {}
    affinity.bind("s", "demo-0", now=20, ttl_s=100)
    assert affinity.changed == {}
    affinity.bind("s", "demo-0", now=30, ttl_s=100)
    assert affinity.changed == {"s": ("demo-0", 100)}
    affinity.changed = {}
    affinity.bind("s", "demo-1", now=31, ttl_s=100)
    assert affinity.changed == {"s": ("demo-1", 100)}


def test_the_number_of_sessions_is_bounded(monkeypatch):
    monkeypatch.setattr("router.pool.affinity.KEPT", 10)
    affinity = Affinity()
    for i in range(50):
        affinity.bind(f"s{i}", "demo-0", now=i, ttl_s=100)
        affinity.session_of_chain([i])
    assert len(affinity) == 10
    assert affinity.get("s49", 49, 100)


async def test_an_overlong_session_name_is_truncated(world):
    w = await world(None)
    await w.ask(headers={"x-session-id": "s" * 5000})
    assert w.router.pools.get("demo").affinity.get("s" * LONGEST, 0, 60)
