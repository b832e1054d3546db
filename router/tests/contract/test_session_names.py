"""A session is identified by names that the client sends: the most trusted name first, wherever it is in the
request."""

import json
from pathlib import Path

import pytest

from router.contract.session_names import DEFAULT_NAMES, LONGEST, NAMES, SessionNames, parse

UUID = "4f1d2c3b-0000-4000-8000-123456789abc"
CODEX = {
    b"session-id": b"s",
    b"thread-id": b"t",
    b"x-codex-window-id": b"s:0",
    b"x-client-request-id": b"s",
}


def named(headers=None, body=None, names=DEFAULT_NAMES):
    """Return the name, and where it was found."""
    both = [name for name in (names.of_headers(headers or {}), names.of_body(body or {})) if name is not None]
    return (min(both)[1], min(both)[2].words) if both else None


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.words)
def test_each_name_of_the_table_names_a_session(row):
    if row.place == "header":
        headers = {row.path.encode(): b"s"} | ({row.beside: b"x"} if row.beside else {})
        assert named(headers) == ("x s" if row.within else "s", row.words)
        return
    body = "s"
    for field in reversed(row.path.split(".")):
        body = {field: body}
    assert named(body=body) == ("s", row.words)


def test_the_most_trusted_of_several_names_is_taken_wherever_it_is():
    headers = {row.path.encode(): row.words.encode() for row in NAMES if row.place == "header"}
    headers |= {b"x-codex-window-id": b"w"}
    body = {
        **dict.fromkeys(("session_id", "prompt_cache_key", "safety_identifier", "user"), "body"),
        "metadata": {"session_id": "body", "user_id": json.dumps({"session_id": "body"})},
        "client_metadata": {"session_id": "body"},
        "conversation": {"id": "body"},
        "conversation_params": {"conversation_id": "body"},
    }
    taken = []
    while (name := named(headers, body)) is not None:
        taken.append(name[1])
        place, _, path = name[1].partition(":")
        if place == "header":
            del headers[path.encode()]
        elif "." not in path:
            body[path] = {} if path == "conversation" else None
        else:
            first, field, *inside = path.split(".")
            body[first][field] = "plain" if inside else None
        if name[1] == "body:conversation.id":
            del body["conversation"]
    assert taken == [row.words for row in NAMES if row.words != "body:conversation"]


def test_the_agents_of_a_claude_code_session_hold_conversations_apart():
    session = {b"x-claude-code-session-id": b"s"}
    names = [named(session | {b"x-claude-code-agent-id": agent})[0] for agent in (b"explorer@team", b"", b"a1")]
    assert names == ["s explorer@team", "s", "s a1"]
    assert named({b"x-claude-code-agent-id": b"explorer@team"}) is None


def test_codex_is_identified_by_its_thread_and_its_request_id_does_not_identify_a_request():
    assert named(CODEX) == ("t", "header:thread-id")
    only = {name: CODEX[name] for name in (b"x-client-request-id", b"x-codex-window-id")}
    assert named(only) == ("s", "header:x-client-request-id")


def test_the_request_id_of_another_client_is_not_a_session_name():
    assert named({b"x-client-request-id": b"req-1"}) is None
    assert named({b"x-client-request-id": b"req-1"}, {"user": "u"}) == ("u", "body:user")


@pytest.mark.parametrize(
    "user_id",
    [
        json.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID}),
        f"user_{'0' * 64}_account__session_{UUID}",
    ],
)
def test_claude_code_names_its_session_inside_a_text(user_id):
    assert named(body={"metadata": {"user_id": user_id}}) == (UUID, "body:metadata.user_id.session_id")


@pytest.mark.parametrize("user_id", ["alice", "{broken", "{}", '{"session_id": 7}', "[]"])
def test_any_other_text_names_a_person(user_id):
    assert named(body={"metadata": {"user_id": user_id}}) == (user_id, "body:metadata.user_id")


@pytest.mark.parametrize(
    "body",
    [
        {"user": 7, "metadata": "x"},
        {"user": "", "metadata": None, "conversation": []},
        {"metadata": {"user_id": ["s"], "session_id": {}}},
        {"conversation": {"id": 3}},
    ],
)
def test_a_value_that_is_not_text_is_not_a_session_name(body):
    assert named(body=body) is None


def test_a_very_long_name_is_truncated_in_headers_and_bodies():
    assert named({b"x-session-id": b"s" * 5000}) == ("s" * LONGEST, "header:x-session-id")
    assert named(body={"user": "s" * 5000}) == ("s" * LONGEST, "body:user")


def test_an_option_replaces_the_names_and_their_order():
    names = parse("body:user, header:X-Chat,body:nvext.session")
    assert named({b"x-chat": b"c", b"x-session-id": b"s"}, {"user": "u"}, names) == ("u", "body:user")
    assert named({b"x-chat": b"c"}, None, names) == ("c", "header:x-chat")
    assert named(None, {"nvext": {"session": "n"}}, names) == ("n", "body:nvext.session")
    assert names.rows[0].of_many


@pytest.mark.parametrize("text", ["", "user", "header:", "header:a b", "body:", "body:a..b", "cookie:x", "body:a,"])
def test_an_invalid_name_is_refused_with_the_allowed_ones(text):
    with pytest.raises(ValueError, match="allowed are header:NAME or body:FIELD"):
        parse(text)


def test_too_many_session_names_are_refused():
    with pytest.raises(ValueError, match="65 names: allowed are 1 to 64"):
        parse(",".join(f"header:x-{number}" for number in range(65)))


def test_a_request_without_a_name_needs_no_search_through_the_table():
    class Unread(dict):
        def get(self, *_):
            raise AssertionError("a header was looked up")

    assert SessionNames().of_headers(Unread({b"host": b"x", b"content-type": b"y"})) is None


def test_the_document_has_the_names_in_their_order():
    page = (Path(__file__).parents[3] / "docs/router.md").read_text()
    table = page.partition("<!-- session names -->")[2].partition("<!-- /session names -->")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[3:] if line.startswith("|")]
    assert [name for cell in cells for name in cell.replace("`", "").split()] == [row.words for row in NAMES]
