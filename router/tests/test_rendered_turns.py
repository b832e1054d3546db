"""For conversations that only engines render, a further turn costs only its new part and yields the same tokens."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.serving.prompt import rendered_turns
from router.serving.prompt.rendered_turns import KEPT_S, RenderedTurns, TurnsOfRequest, continued
from router.tests.tokenize.conftest import TEXT as SENTENCES
from router.tests.tokenize.conftest import save, trained
from router.tests.tokenize.shapes import CHAT, MESSAGES, RESPONSES, TEMPLATES
from router.tokenize.folder import FolderTokenizer
from router.tokenize.template import Template
from router.tokenize.tokenizer import NotTokenized

Document = dict[str, Any]
TEXT = SENTENCES * 3
TOOLS = [{"type": "function", "function": {"name": "read", "description": TEXT, "parameters": {"type": "object"}}}]
THOUGHT: Document = {"role": "assistant", "content": "so", "reasoning_content": TEXT}


def turn(number: int) -> list[Document]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    return [
        {"role": "user", "content": f"question {number}: {TEXT}"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": f"hm {number}"},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"{TEXT} {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def chat(turns: int, last: str = "and now?") -> Document:
    said = [message for number in range(turns) for message in turn(number)]
    system: Document = {"role": "system", "content": f"be brief. {TEXT * 3}"}
    return {"model": "m", "tools": TOOLS, "messages": [system, *said, {"role": "user", "content": last}]}


class Engine:
    """An engine that renders what a request asks for and counts the bytes."""

    def __init__(self, folder: Path, template: object) -> None:
        save(folder, trained())
        config = {"chat_template": template, "bos_token": "<|end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        self.template, self.tokenizer = Template(folder), FolderTokenizer(folder)
        self.asked = 0

    def render(self, body: bytes, api_path: str = CHAT) -> bytes:
        self.asked += len(body)
        return self.tokenizer.whole(self.template.prompt(orjson.loads(body), api_path))


def further(engine: Engine, before: Document, after: Document, api_path: str = CHAT) -> bytes | None:
    """Return the tokens of a conversation whose beginning was rendered before."""
    kept = RenderedTurns()
    first = TurnsOfRequest(before, api_path, "demo")
    kept.keep(first.digests[-1], 0.0, engine.render(orjson.dumps(before), api_path))
    turns, engine.asked = TurnsOfRequest(after, api_path, "demo"), 0
    known, _, tokens = kept.longest(turns.digests, 1.0)
    assert known == len(first.digests)
    return continued(
        tokens, engine.render(turns.short(known, known), api_path), engine.render(turns.short(known), api_path)
    )


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("thinks", [True, False])
def test_a_further_turn_has_the_same_tokens_as_the_whole_conversation(name: str, thinks: bool, tmp_path: Path) -> None:
    engine, before, after = Engine(tmp_path, TEMPLATES[name]), chat(3), chat(3)
    after["messages"] += [*([THOUGHT] if thinks else []), {"role": "user", "content": "go on"}]
    try:
        made, asked = further(engine, before, after), engine.asked
    except NotTokenized:
        pytest.skip("the template refuses such a conversation")
    if name in WITH_TOOLS_BEHIND:
        assert made is None
        return
    assert made == engine.render(orjson.dumps(after))
    assert asked < len(orjson.dumps(after)) / 2


@pytest.mark.parametrize("name", ["plain", "thoughts", "parts"])
def test_further_turns_of_claude_code_differ_in_cache_marks_and_billing_lines(name: str, tmp_path: Path) -> None:
    def marked(text: str) -> dict[str, object]:
        return {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}

    def asked(line: str, *turns: object) -> Document:
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={line}"}, {"type": "text", "text": TEXT}]
        return {"system": system, "max_tokens": 9, "messages": list(turns)}

    plain = {"role": "user", "content": [{"type": "text", "text": TEXT}]}
    engine, answer = Engine(tmp_path, TEMPLATES[name]), {"role": "assistant", "content": "so"}
    before, after = asked("1", marked(TEXT)), asked("2", plain, answer, marked("go on"))
    assert further(engine, before, after, MESSAGES) == engine.render(orjson.dumps(after), MESSAGES)


def test_a_further_turn_of_responses_has_the_tokens_of_the_whole_conversation(tmp_path: Path) -> None:
    engine, asked = Engine(tmp_path, TEMPLATES["plain"]), {"type": "message", "role": "user", "content": TEXT}
    before: Document = {"instructions": TEXT, "input": [asked], "reasoning": {"effort": "low"}}
    after: Document = {**before, "input": [asked, {"role": "assistant", "content": "so"}, asked]}
    assert further(engine, before, after, RESPONSES) == engine.render(orjson.dumps(after), RESPONSES)


@pytest.mark.parametrize("wrong", [b"", b"abcd", bytes(4_000), bytes(400_000)])
def test_a_prompt_that_differs_from_the_known_tokens_continues_no_session(wrong: bytes, tmp_path: Path) -> None:
    engine, after = Engine(tmp_path, TEMPLATES["plain"]), chat(2)
    turns = TurnsOfRequest(after, CHAT, "demo")
    before, whole = engine.render(turns.short(5, 5)), engine.render(turns.short(5))
    assert continued(wrong, before, whole) is None
    assert continued(before, before, whole) == whole


@pytest.mark.parametrize(
    "document",
    [
        {"messages": "x"},
        {},
        {"messages": [], "truncation": "auto"},
        {"messages": [{"role": "user"}], "truncate_prompt_tokens": 9},
        {"messages": [orjson.loads(b"[" * 300 + b"]" * 300)]},
    ],
)
def test_a_request_without_turns_or_cut_by_length_has_no_known_beginnings(document: Document) -> None:
    assert TurnsOfRequest(document, CHAT, "demo").digests == []


def test_another_tool_pool_or_api_is_another_conversation() -> None:
    asked = chat(1)
    one = TurnsOfRequest(asked, CHAT, "demo").digests
    assert one == TurnsOfRequest({**asked, "max_tokens": 7, "stream": True}, CHAT, "demo").digests
    others = [(asked, CHAT, "other"), (asked, MESSAGES, "demo"), ({**asked, "tools": []}, CHAT, "demo")]
    for other in [*others, ({**asked, "cache_salt": "mine"}, CHAT, "demo")]:
        assert set(one).isdisjoint(TurnsOfRequest(*other).digests)


def test_old_beginnings_and_the_oldest_of_many_are_forgotten() -> None:
    kept = RenderedTurns(most=4_000)
    for number in range(10):
        kept.keep(b"%d" % number, float(number), bytes(700))
        kept.keep(b"%d" % number, float(number), bytes(700))
    assert [kept.longest([b"%d" % number], 10.0)[0] for number in range(10)] == [0] * 6 + [1] * 4
    assert kept.size == 4 * 1_000
    assert kept.longest([b"6", b"9", b"none"], 10.0) == (2, 9.0, bytes(700))
    assert kept.longest([b"9"], 9.0 + KEPT_S)[0] == 1
    assert kept.longest([b"9"], 9.1 + KEPT_S)[0] == 0


def test_arguments_of_a_call_stay_json_in_the_short_form() -> None:
    written = json.dumps({"path": "a" * 5_000})
    call = {"type": "function", "function": {"name": "write", "arguments": written}}
    document: Document = {"messages": [{"role": "assistant", "tool_calls": [call], "content": TEXT}]}
    (message,) = orjson.loads(TurnsOfRequest(document, CHAT, "demo").short(1))["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == written
    assert len(message["content"]) == 2 * rendered_turns.END_CHARS


WITH_TOOLS_BEHIND = {"everything", "system first"}  # these write the known part again, so it is rendered again
