"""Read prompts from bodies: growing conversations share a prefix, whatever API they use."""

import json

import pytest

from router.tokenize.billing import without_billing
from router.tokenize.prompt import RENDERERS, InvalidBody, read, with_usage


def rendered(api_path, **document):
    return read(json.dumps(document).encode(), api_path).rendered


def test_a_completions_prompt_is_used_unchanged():
    assert rendered("/v1/completions", prompt="héllo") == "héllo".encode()


def test_token_ids_are_counted_and_packed():
    prompt = read(b'{"prompt": [1, 2, 3]}', "/v1/completions")
    assert (prompt.token_ids, len(prompt.rendered)) == (3, 12)


def test_several_prompts_are_joined():
    assert read(b'{"prompt": [[1, 2], [3]]}', "/v1/completions").token_ids == 3
    assert read(b'{"prompt": ["ab", "cd"]}', "/v1/completions").rendered == b"abcd"
    assert read(b'{"prompt": ["ab", [1]]}', "/v1/completions").token_ids is None


@pytest.mark.parametrize("prompt", [None, 7, [], {}, [None], [1, "x"], [1, -1], [1, 2**40], [1.5], [True, {}]])
@pytest.mark.parametrize("api_path", RENDERERS)
def test_malformed_values_are_left_for_the_engine_to_refuse(api_path, prompt):
    body = {"prompt": prompt, "input": prompt, "messages": prompt, "system": prompt, "tools": prompt}
    read(json.dumps(body).encode(), api_path)


@pytest.mark.parametrize("api_path", ["/v1/chat/completions", "/v1/messages"])
def test_a_longer_conversation_begins_with_the_shorter(api_path):
    first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    more = [
        *first,
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "?"}]},
    ]
    assert rendered(api_path, messages=more).startswith(rendered(api_path, messages=first))


def test_plain_text_and_text_parts_are_equivalent():
    whole = rendered("/v1/chat/completions", messages=[{"role": "user", "content": "ab"}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert rendered("/v1/chat/completions", messages=[{"role": "user", "content": parts}]) == whole


def test_responses_input_is_text_or_turns():
    text = rendered("/v1/responses", instructions="be brief", input="hello")
    turns = rendered("/v1/responses", instructions="be brief", input=[{"role": "user", "content": "hello"}])
    assert text == turns


def test_tools_and_tool_calls_are_part_of_the_prompt():
    plain = rendered("/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
    tools = rendered("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], tools=[{"name": "f"}])
    calls = rendered("/v1/chat/completions", messages=[{"role": "user", "content": "x", "tool_calls": [{"id": 1}]}])
    assert len({plain, tools, calls}) == 3


def test_an_image_counts_by_its_identity_and_not_by_its_bytes():
    def image(data):
        part = {"type": "image_url", "image_url": {"url": "data:" + data}}
        return rendered("/v1/chat/completions", messages=[{"role": "user", "content": [part]}])

    assert len(image("a" * 100_000)) < 100
    assert image("a" * 100_000) != image("b" * 100_000)


def test_anthropics_system_is_text_or_blocks():
    blocks = [{"type": "text", "text": "be brief"}]
    assert rendered("/v1/messages", system="be brief", messages=[]) == rendered(
        "/v1/messages", system=blocks, messages=[]
    )


def test_the_changing_billing_lines_of_claude_code_do_not_prevent_shared_prefixes():
    def turn(cch, said):
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={cch};"}
        system = [line, {"type": "text", "text": "You are Claude Code."}]
        messages = [{"role": "user", "content": text} for text in said]
        tools = [{"name": "f", "input_schema": {}}]
        return rendered("/v1/messages", system=system, messages=messages, tools=tools)

    assert turn("0aaa9", ["hello", "more"]).startswith(turn("36ee5", ["hello"]))
    assert turn("1", ["x"]) == rendered(
        "/v1/messages",
        system=[{"type": "text", "text": "You are Claude Code."}],
        messages=[{"role": "user", "content": "x"}],
        tools=[{"name": "f", "input_schema": {}}],
    )


@pytest.mark.parametrize("api_path", ["/v1/messages", "/v1/chat/completions"])
def test_billing_lines_that_are_a_text_or_a_message_do_not_prevent_shared_prefixes_either(api_path):
    line, brief = "x-anthropic-billing-header: cch=1;", {"type": "text", "text": "Be brief."}
    parts = [{"type": "text", "text": line}, brief]
    for content in (f"{line}\nBe brief.", parts, parts[::-1], [{"type": "text", "text": f"{line}\nBe brief."}]):
        for role in ("system", "user"):
            made = rendered(api_path, messages=[{"role": role, "content": content}])
            assert (b"cch=1" in made, b"Be brief." in made) == (role == "user", True)
    made = rendered("/v1/messages", system=f"{line}\nBe brief.", messages=[])
    assert (b"cch=1" in made, b"Be brief." in made) == (False, True)


@pytest.mark.parametrize("system", [None, 7, [7, None, {"text": 3}], {"type": "text", "text": "s"}])
def test_a_system_prompt_of_unknown_shape_is_used_unchanged(system):
    assert without_billing(system) == system


def test_text_with_lone_surrogates_does_not_fail():
    with pytest.raises(InvalidBody):
        read(b'{"prompt": "\\ud800"}', "/v1/completions")


def test_the_request_for_usage_is_inserted_and_the_rest_kept():
    body = b' {"a": 1.0, "stream": true, "b":"\\u00e9"}'
    made = with_usage(body, json.loads(body))
    assert json.loads(made) == {**json.loads(body), "stream_options": {"include_usage": True}}
    assert made.endswith(b'"a": 1.0, "stream": true, "b":"\\u00e9"}')


def test_stream_options_named_in_a_prompt_are_not_read_as_such():
    body = json.dumps({"stream": True, "prompt": 'say "stream_options"'}).encode()
    assert json.loads(with_usage(body, json.loads(body)))["stream_options"] == {"include_usage": True}


def test_a_score_pairs_one_text_with_several_whatever_the_two_fields_are_called():
    others = ["hare", {"content": []}]
    reranked = rendered("/rerank", query="fox", documents=others)
    assert reranked.startswith(b"fox\nhare\n")
    for one, several in (("queries", "items"), ("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2")):
        assert reranked == rendered("/v1/score", **{one: "fox", several: others})


def test_questions_about_one_text_begin_with_that_text():
    first, second = (rendered("/v1/decisions", input="fox", questions=[{"type": kind}]) for kind in ("score", "choice"))
    assert first != second
    assert {made.partition(b"[")[0] for made in (first, second)} == {rendered("/v1/responses", input="fox")}


def test_a_pooled_prompt_is_text_or_a_conversation():
    messages = [{"role": "user", "content": "fox"}]
    assert rendered("/pooling", messages=messages) == rendered("/v1/chat/completions", messages=messages)
    assert rendered("/classify", input="fox") == b"fox"
