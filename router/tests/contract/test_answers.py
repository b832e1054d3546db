"""The first content, an error and the end of an answer are distinguished in every API."""

import json
from codecs import BOM_UTF8

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.answer import answers
from router.flows import first_token
from router.upstream.answer.beginning import LARGEST, Beginning
from router.upstream.answer.stream_tail import StreamTail
from router.upstream.answer.usage import Strip, parse

QUIET = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"delta": {"role": "assistant", "content": None, "tool_calls": [], "reasoning": None}}]},
    {"choices": [], "usage": {"prompt_tokens": 3}},
    {"choices": [{"text": "", "finish_reason": None}]},
    {"type": "response.created", "response": {"status": "in_progress", "error": None}},
    {"type": "response.in_progress", "response": {"status": "in_progress"}},
    *({"type": "response.output_item.added", "item": item} for item in ({"type": "reasoning"}, {"type": "message"})),
    *(
        {"type": f"response.output_item.{at}", "item": {"type": "mcp_list_tools", "tools": [{"name": "f"}]}}
        for at in ("added", "done")
    ),
    *({"type": "response.output_item.added", "item": item} for item in (None, "x", {"type": ["function_call"]})),
    {"type": "response.content_part.added", "part": {"text": ""}},
    {"type": "response.output_text.delta", "delta": ""},
    {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
    {"type": "ping"},
    {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
    {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 0}},
    {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": ""}]},
    {"choices": [{"delta": {"content": "", "provider_specific_fields": {"citations": None}, "annotations": [{}]}}]},
    {"type": "keepalive", "sequence_number": 2},
    {"type": "heartbeat", "status": "queued", "position": 3},
    {"usage": {"prompt_tokens": 3}},
    {},
]
CONTENT = [
    *(
        {"choices": [{"delta": delta}]}
        for delta in (
            {"content": "a"},
            {"reasoning": "a"},
            {"reasoning_content": "a"},
            {"refusal": "a"},
            {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
            {"audio": {"data": "AA=="}},
        )
    ),
    {"choices": [{"delta": {}}, {"index": 1, "delta": {"content": "b"}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [{"text": "a"}]},
    {"type": "response.output_text.delta", "delta": "a"},
    {"type": "response.reasoning_text.delta", "delta": "a"},
    *(
        {"type": "response.output_item.added", "item": {"type": f"{kind}_call", "name": "f"}}
        for kind in ("function", "custom_tool", "mcp", "web_search")
    ),
    {"type": "response.output_item.done", "item": {"type": "reasoning", "encrypted_content": "gAAA"}},
    {"type": "response.function_call_arguments.delta", "delta": "{"},
    {"type": "response.refusal.delta", "delta": "a"},
    {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}},
    {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
    {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f", "input": {}}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "transcript.text.delta", "delta": "a"},
    {"something": "of an API that is not known"},
    {"something": [{"else": "there"}]},
]
ENGINES = [
    {"error": {"message": "EngineCore is dead", "type": "InternalServerError", "code": 500}},
    {"error": "a text"},
    {"object": "error", "message": "EngineCore is dead", "type": "InternalServerError", "code": 500},
    {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
    {"type": "error", "code": "server_error", "message": "no"},
    {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "no"}}},
    {"choices": [{"delta": {}, "finish_reason": "error"}]},
    {"choices": [{"delta": {"content": ""}, "finish_reason": "stop", "error": {"message": "no", "code": 500}}]},
    {"errors": [{"message": "EngineCore is dead"}]},
    {"type": "response.completed", "response": {"status": "cancelled"}},
    {"type": "response.completed", "response": {"status": "failed", "error": None}},
    *(
        {"choices": [{"finish_reason": {"type": "abort", "message": "x", **more}}]}
        for more in ({}, {"status_code": 500})
    ),
    {"choices": [{"text": "", "finish_reason": "abort"}]},
    {"message": "EngineCore is dead", "type": "InternalServerError", "param": None, "code": 500},
    {"type": "message_delta", "delta": {"stop_reason": "abort"}},
]
ABORT = {"type": "abort", "message": "Failed to compile json grammar"}
CLIENTS = [
    {"choices": [{"delta": {}, "finish_reason": {**ABORT, "status_code": 400, "err_type": "BadRequestError"}}]},
    {"error": {"message": "too long", "type": "BadRequestError", "code": 400}},
    {"error": {"message": "too long", "type": "invalid_request_error"}},
    {"error": {"message": "too long", "code": "context_length_exceeded"}},
    {"error": {"message": "too long", "code": "413"}},
    {"error": {"message": "unknown model", "code": 404}},
    {"type": "error", "error": {"type": "not_found_error", "message": "unknown model"}},
    {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}},
]
ENDS = [{"type": "message_stop"}, {"type": "response.completed", "response": {"status": "completed"}}]


def written(document):
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("document", "sign"),
    [
        *((document, "quiet") for document in QUIET),
        *((document, "content") for document in CONTENT),
        *((document, "error") for document in (*ENGINES, *CLIENTS)),
        *((document, "end") for document in ENDS),
    ],
)
def test_each_event_is_classified(document, sign):
    assert answers.sign(written(document))[0] == sign


@pytest.mark.parametrize("clients", [True, False])
def test_every_error_is_attributed_to_its_cause(clients):
    for document in CLIENTS if clients else ENGINES:
        _, error = answers.sign(written(document))
        assert error.is_clients is clients, document


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_the_beginning_is_read_up_to_the_first_content_however_the_bytes_are_split(end):
    stream = b"".join(
        b": ping" + end if document is None else b"event: x\ndata: " + written(document) + end
        for document in (None, *QUIET, CONTENT[0])
    )
    for cut in range(1, len(stream)):
        beginning = Beginning()
        signs = [beginning.feed(stream[:cut]), beginning.feed(stream[cut:])]
        assert signs == ["quiet", "content"]


@pytest.mark.parametrize("size", [1000, 65_536, LARGEST])
def test_leading_events_that_repeat_a_clients_many_tools_are_not_content(size):
    response = {"status": "in_progress", "tools": [{"name": "x" * 1000}] * 900}
    stream = b"".join(
        b"data: " + written({"type": f"response.{kind}", "response": response}) + b"\n\n"
        for kind in ("created", "in_progress")
    )
    beginning = Beginning()
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert {beginning.feed(part) for part in parts} == {"quiet"}
    assert (beginning.quiet, beginning.feed(b"data: " + written(CONTENT[0]) + b"\n\n")) == (2, "content")


@pytest.mark.parametrize(
    ("end", "sign"),
    [
        (b"[DONE]", "error"),
        (b'{"type": "message_stop"}', "error"),
        (b'{"type": "response.completed", "response": {"status": "completed"}}', "end"),
    ],
)
def test_an_answer_that_ends_at_once_has_no_content_unless_it_is_complete(end, sign):
    beginning = Beginning()
    assert beginning.feed(b"data: " + written(QUIET[0]) + b"\n\ndata: " + end + b"\n\n") == sign


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize(
    ("said", "message"),
    [(b"It died", "It died"), (b"", ""), (b"[1]", "[1]"), (b'{"message": "dead"}', "dead"), (b"{}", "{}")],
)
def test_an_event_named_error_is_an_error_whatever_its_data(end, said, message):
    event = (b"event: error\ndata: %b" % said).replace(b"\n", end[: len(end) // 2]) + end
    beginning = Beginning()
    assert (beginning.feed(event), beginning.error.is_clients) == ("error", False)
    assert message in beginning.error.message
    text = b"data: " + written(CONTENT[0]) + end
    for stream in (text + event, text + event + b"data: [DONE]" + end):
        assert answers.ending(stream).error.message == beginning.error.message


@pytest.mark.parametrize(
    "event",
    [
        b"data: %b\nid: 1\n\n",
        b"id: 1\r\ndata:%b\r\nevent: x\r\n\r\n",
        b": a\ndata: %b\nretry: 9\n: note\n\n",
        b"data:\nid: 1\ndata: %b\n\n",
    ],
)
def test_the_fields_of_an_event_may_be_in_any_order(event):
    chunk = event % written({"choices": [], "usage": {"prompt_tokens": 9}})
    assert answers.ending(chunk + event % b"[DONE]").usage == {"prompt_tokens": 9}
    assert answers.ending(chunk + event % b"[DONE]").is_whole
    assert Strip().feed(chunk) == b""
    beginning = Beginning()
    assert (beginning.feed(event % written(ENGINES[0])), beginning.error.status) == ("error", 500)
    assert next(first_token.chunks(event % written(CONTENT[0]))).made == CONTENT[0]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_an_event_named_error_without_data_is_an_error(end):
    beginning = Beginning()
    assert beginning.feed(b"event: error" + end) == "error"
    tail = StreamTail()
    for event in (written(CONTENT[0]), b"[DONE]"):
        tail.add(b"event: error" + end if event == b"[DONE]" else b"")
        tail.add(b"data: " + event + end)
    assert tail.ended().error is not None


@pytest.mark.parametrize("said", [b"Internal Server Error", b'[{"error": {"message": "dead"}}]', b"null"])
def test_a_complete_stream_whose_last_events_include_a_non_object_is_an_error(said):
    begun = b"data: %b\n\ndata: %b\n\n" % (written(CONTENT[0]), said)
    assert answers.ending(begun + b"data: [DONE]\n\n").error is not None
    assert answers.ending(begun) == answers.Ending(), "a cut"


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "error", [{"code": [1]}, {"code": {"a": 1}, "type": {}}, {"code": "²²²"}, {"code": 10**30}, {"a": nested(300)}, [1]]
)
def test_an_error_of_any_shape_counts_as_the_engines(error):
    documents = ({"error": error}, {"type": "response.failed", "response": {"error": error}})
    for document in (*documents, {"type": ["x"], "error": error}, {"message": "x", "code": error}):
        sign, found = answers.sign(written(document))
        assert (sign, found.status, found.is_clients) == ("error", None, False)
    assert answers.sign(answers.payload(b"event: error\ndata: " + written(error)))[0] == "error"


FIELDS = (
    *("type", "object", "id", "choices", "delta", "error", "response", "message", "code", "status", "usage", "text"),
    *("finish_reason", "index", "content", "tool_calls", "prompt_tokens", "prompt_tokens_details", "cached_tokens"),
)
VALUES = (None, True, 0, -1, 10**30, float("nan"), "", "x", "error", "response.failed", "message_delta", "abort", "²²²")
SHAPES = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(FIELDS), SHAPES, max_size=4))
def test_an_answer_of_any_shape_is_read_without_an_exception(document):
    data = written(document)
    stream = b"data: %b\n\ndata: [DONE]\n\n" % data
    for path in (*answers.WHOSE_END, "/v1/embeddings", "/tokenize"):
        answers.wrong_with(answers.said(data), data, path)
    Beginning().feed(stream)
    tail = StreamTail(reports_twice=True)
    tail.add(stream)
    parse(tail.ended().usage or {})
    first_token.Without(first_token.first_token(stream)).feed(stream)


def test_an_event_of_an_unknown_kind_may_be_nested_however_deeply():
    assert answers.sign(written({"type": "x", "of": nested(900)}))[0] == "content"


@pytest.mark.parametrize(
    ("error", "status"),
    [({"type": "overloaded_error"}, 503), ({"code": "rate_limit_exceeded"}, 429), ({"type": "RateLimitError"}, 429)],
)
def test_a_full_engine_is_recognised_by_a_word_in_its_error(error, status):
    assert answers.sign(written({"type": "error", "error": error}))[1].status == status


def test_an_object_of_unknown_shape_counts_as_content_and_anything_else_as_a_failure():
    for data in (b'{"choices": 3}', b'{"choices": [{"logprob": -Infinity}]}'):
        assert answers.sign(data)[0] == "content"
    for data in (b"text", b"<html>busy</html>", b'{"choices": [{"te\xc3', b"null", b"[1]", b'"it failed"'):
        assert answers.sign(data)[0] == "error"


@pytest.mark.parametrize("remark", [{"detail": "the engine is dead"}, {"message": "busy"}, {"status": "x", "msg": "y"}])
def test_an_event_with_only_a_remark_is_not_content(remark):
    assert answers.sign(written(remark))[0] == "quiet"
    assert answers.sign(written({**remark, "text": "hello"}))[0] == "content"


ASKED = b'{"prompt": "how does \\u0043UDA\\nrun?", "tools": [{"code": 500}]}'
QUOTED = (
    "how does CUDA\nrun?",
    "it says 'how does CUDA\nrun?' there",
    'input: "how does CUDA\\nrun?"',
    'run?", "tools": [{"code": 500}]}',
)
BLAMING = (
    "it failed:\nCUDA error: an illegal memory access",
    'it failed: "CUDA" error',
    "it failed:\\nNCCL error",
    '{"error": {"message": "no", "code": 502}}',
    '{"error": "{\\"status_code\\": \\"503\\"}"}',
    'said: "Internal\\u0020Server Error"',
    "Traceback (most recent call last)",
    "[TensorRT-LLM][ERROR] CUDA runtime error in cudaGetLastError(): invalid configuration argument",
    "CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx",
    "Background loop has errored already.",
    "Decode transfer failed for request rank=0: KVTransferError(bootstrap_room=1)",
)


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize(("message", "blames"), [*((one, True) for one in BLAMING), *((one, False) for one in QUOTED)])
def test_escapes_and_charsets_hide_no_words_that_blame_the_engine(message, blames, charset, ascii_only):
    refusal = {"error": {"message": f"{message} ü", "type": "BadRequestError", "code": 400}}
    body = json.dumps(refusal, ensure_ascii=ascii_only).encode(charset)
    assert answers.blames_engine(body, ASKED) is blames


def test_a_long_run_of_backslashes_is_read_once():
    body = b'{"error": {"message": "CUDA error", "code": 400}}'
    assert answers.blames_engine(body, b'{"prompt": "%b"}' % (b"\\" * 1_000_000))
    assert answers.blames_engine(body.replace(b"error", b"error" + b"\\" * 1_000_000), b"{}")


def test_only_the_first_of_many_words_are_searched_for_in_the_request():
    quoted = "".join(f" CUDA {number:07d}" for number in range(answers.MOST_WORDS))
    asked = json.dumps({"prompt": quoted}).encode()
    for message, blames in ((f"input:{quoted}: NCCL error", False), (f"NCCL error: input:{quoted}", True)):
        assert answers.blames_engine(json.dumps({"error": {"message": message, "code": 400}}).encode(), asked) is blames


@pytest.mark.parametrize(("before", "after", "blames"), [(0, 2, False), (2, 0, False), (1, 1, True)])
def test_of_a_long_request_only_the_beginning_and_the_end_are_searched_for_words(before, after, blames):
    text = "x" * answers.MOST_ASKED
    asked = json.dumps({"prompt": f"{text * before}why does a CUDA error occur?{text * after}"}).encode()
    body = json.dumps({"error": {"message": "input: why does a CUDA error occur?", "code": 400}}).encode()
    assert answers.blames_engine(body, asked) is blames


def test_only_one_byte_order_mark_is_taken_off():
    assert answers.said(BOM_UTF8 + b'{"error": "it failed"}').error == "it failed"
    for marks in (2, 3_000):
        assert answers.said(BOM_UTF8 * marks + b'{"error": "it failed"}') is None


CHAT, COMPLETIONS, MESSAGES, RESPONSES = answers.WHOSE_END
DONE = {"object": "response", "status": "completed", "output": []}
SAID = {"type": "message", "content": []}


@pytest.mark.parametrize(
    ("path", "document", "is_error"),
    [
        (CHAT, {"object": "chat.completion", "choices": [{"finish_reason": "stop"}], "error": None}, False),
        (CHAT, {"choices": [{"message": {"content": ""}}, {"index": 1}]}, False),
        *((CHAT, {"choices": [{"finish_reason": "stop"}], "error": no}, False) for no in ("", {}, False, [])),
        (CHAT, {"choices": [{"message": {"role": "assistant", "content": None}, "finish_reason": None}]}, True),
        (CHAT, {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "error": {"message": "no"}}]}, True),
        (RESPONSES, DONE | {"output": [{"type": "mcp_call", "error": "no"}]}, False),
        (COMPLETIONS, {"choices": [{"text": "x", "logprobs": float("nan")}]}, False),
        (COMPLETIONS, {"choices": [{"text": ""}]}, False),
        (RESPONSES, DONE | {"error": None}, False),
        (RESPONSES, DONE | {"status": "incomplete"}, False),
        (RESPONSES, DONE | {"status": "failed", "error": None}, True),
        (RESPONSES, DONE | {"status": "failed", "error": {"code": "server_error", "message": "no"}}, True),
        (RESPONSES, DONE | {"status": "cancelled"}, True),
        (RESPONSES, DONE | {"status": "queued"}, True),
        (RESPONSES, DONE | {"status": "in_progress", "output": [{"type": "message"}]}, True),
        (RESPONSES, DONE | {"status": None}, True),
        (RESPONSES, {"id": "x", "object": "response", "usage": {}}, True),
        (MESSAGES, SAID | {"stop_reason": "max_tokens"}, False),
        (MESSAGES, SAID | {"content": [{"type": "text", "text": "x"}]}, False),
        (MESSAGES, SAID | {"usage": {}}, True),
        (MESSAGES, SAID | {"stop_reason": "abort"}, True),
        (MESSAGES, {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}, True),
        (CHAT, {"error": {"message": "no"}}, True),
        (CHAT, {"choices": [{"message": {}, "finish_reason": "abort"}]}, True),
        (CHAT, {"choices": [{"message": {}, "finish_reason": "timeout"}]}, True),
        (CHAT, {"error": {}}, True),
        (CHAT, {"message": "no", "code": 500, "type": "InternalServerError"}, True),
        (CHAT, {"object": "chat.completion", "choices": []}, True),
        (CHAT, {"id": "x", "choices": [{"index": 0}], "usage": {"prompt_tokens": 3}}, True),
        (CHAT, {"id": "x", "object": "chat.completion", "usage": {"prompt_tokens": 3}}, True),
        (CHAT, {"choices": "none"}, True),
        (COMPLETIONS, {"object": "text_completion", "choices": None}, True),
        (CHAT, {"detail": "Internal Server Error"}, True),
        (CHAT, {"id": "x", "msg": "It died"}, True),
        (CHAT, {}, True),
        (CHAT, None, True),
        (CHAT, [], True),
        (CHAT, "text", True),
    ],
)
def test_an_error_in_a_whole_answer_is_found(path, document, is_error):
    data = written(document)
    assert (answers.wrong_with(answers.said(data), data, path) is not None) is is_error


BESIDE = {"id": "x", "model": "llama", "created": 1, "usage": {"prompt_tokens": 3}}


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/embeddings", {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.0]}]}),
        ("/v1/embeddings", {"data": [{"embedding": "AAAA"}]}),
        ("/v1/rerank", {"results": [{"index": 0, "relevance_score": 0.0}]}),
        ("/v1/score", {"scores": [[0.5]]}),
        ("/v1/images/generations", {"data": [{"b64_json": "AAAA"}]}),
        ("/classify", {"data": [{"label": "LABEL_0"}]}),
        ("/v1/decisions", {"answers": {"status": {"reason": {"choice": "yes"}}}}),
        ("/pooling", {"data": [{"object": "pooling", "data": [[0.5]]}]}),
    ],
)
def test_an_answer_with_empty_values_is_reported_as_wrong(path, document):
    def emptied(value):
        return [] if isinstance(value, list) else {} if isinstance(value, dict) else value

    whole, empty = written(document), written(BESIDE | {name: emptied(value) for name, value in document.items()})
    assert answers.wrong_with(answers.said(whole), whole, path) is None
    assert answers.wrong_with(answers.said(empty), empty, path) is not None
    for wrong in (
        b"",
        b"null",
        b"[]",
        b'{"a": ',
        b"<html>",
        b'{"detail": {"msg": "no"}}',
        b'{"status": "dead"}',
        b"{}",
    ):
        assert answers.wrong_with(answers.said(wrong), wrong, path) is not None


@pytest.mark.parametrize(
    ("path", "data"),
    [
        *(("/tokenize", data) for data in (b'{"count": 0, "tokens": []}', b'{"count": 3}')),
        ("/detokenize", b'{"prompt": ""}'),
        ("/rerank", b'[{"index": 0, "score": 0.1}]'),
        ("/v1/audio/transcriptions", b'{"text": ""}'),
        ("/v1/embeddings", b'{"data": [], "more": "%b"}' % (b"x" * 5_000)),
    ],
)
def test_an_empty_text_and_a_silence_have_an_answer(path, data):
    assert answers.wrong_with(answers.said(data), data, path) is None


NAN = "AADAfwAAwH8AAMB/"  # three numbers of 32 bits, in base64


def vector(embedding):
    return {"object": "embedding", "index": 0, "embedding": embedding}


@pytest.mark.parametrize(
    ("path", "document"),
    [
        *((path, [{"error": "no"}]) for path in ("/rerank", "/v1/embeddings", "/classify")),
        *(("/v1/embeddings", {"data": [{"embedding": [0.5] * size}, {"error": {"code": 500}}]}) for size in (1, 9_999)),
        *((path, {"data": [{"index": 0, "error": "no"}]}) for path in ("/score", "/v1/images/generations")),
        ("/v1/rerank", {"results": [{"index": 0, "error": "no"}], "usage": {"total_tokens": 3}}),
        *(
            ("/v1/embeddings", {"data": [vector([nothing] * size)]})
            for nothing in (float("nan"), None)
            for size in (2, 999)
        ),
        *((path, {"data": [vector([0.5]), vector(None)]}) for path in ("/v1/embeddings", "/pooling", "/v1/score")),
        ("/v1/embeddings", {"data": [vector([])], "usage": {"total_tokens": 3}}),
        ("/v1/rerank", {"results": [{"index": 0, "document": {"text": "fox"}, "relevance_score": None}]}),
        ("/rerank", [{"score": None, "document": "fox", "index": 0}]),
        *(
            ("/classify", {"data": [{"index": 0, "label": label, "probs": [None, None], "num_classes": 2}]})
            for label in (None, "LABEL_0")
        ),
        *(("/v1/rerank", {"results": [{"relevance_score": None, "index": 0}] * size}) for size in (1, 999)),
        *(("/v1/score", {"data": [{"index": 0, "score": nothing}] * 999}) for nothing in (float("nan"), None)),
        ("/v1/embeddings", {"data": [vector([0.5] * 999), vector(None)]}),
        ("/v1/embeddings", {"data": [vector([None])] * 999}),
        *(("/v1/embeddings", {"data": [vector("AAAA" * size), vector(NAN * size)]}) for size in (4, 9_999)),
        ("/v1/images/generations", {"data": [{"b64_json": None, "revised_prompt": "a fox"}]}),
    ],
)
def test_an_error_in_place_of_a_result_is_an_error_of_the_answer(path, document):
    for separators in ((",", ":"), (", ", ": ")):
        data = json.dumps(document, separators=separators).encode()
        assert answers.wrong_with(answers.said(data), data, path) is not None


NO_TOKENS = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": None}


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/classify", {"id": "x", "object": "list", "created": 1, "model": "m", "data": []}),
        ("/v1/score", {"scores": [], "pooled_hidden_states": None, "token_logprobs": None, "model": "m"}),
        ("/rerank", {"id": "x", "model": "m", "results": []}),
    ],
)
def test_an_empty_list_is_an_answer_if_the_usage_reports_no_tokens(path, document):
    def is_answer(document, path=path):
        data = written(document)
        return answers.wrong_with(answers.said(data), data, path) is None

    assert is_answer(document | {"usage": NO_TOKENS})
    assert not is_answer(document)
    assert not is_answer(document | {"usage": NO_TOKENS | {"total_tokens": 3}})
    assert not is_answer({"id": "x", "usage": NO_TOKENS}), "without a list"
    assert not is_answer(document | {"usage": NO_TOKENS}, "/v1/images/generations")


TIERS = {"device": 4, "host": 1, "storage": 2, "storage_backend": "file"}
REPORTED = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 7}}
TOLD = {**REPORTED, "prompt_tokens_details": {"cached_tokens": 7, "cached_tokens_details": TIERS}}


def test_tiers_of_a_hit_that_sglang_reports_beside_the_usage_belong_to_it():
    beside = {"cached_tokens_details": TIERS}
    ends = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = (ends, {"choices": [], "sglext": beside}, {"choices": [], "usage": REPORTED})
    stream = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    assert answers.ending(stream).usage == TOLD
    for extension, usage in ((beside, TOLD), ({}, REPORTED), ([], REPORTED), (None, REPORTED)):
        whole = answers.said(json.dumps({"choices": [], "usage": REPORTED, "sglext": extension}).encode())
        assert answers.usage_of(whole) == usage
    assert parse(TOLD).cached_tiers == (4, 1, 2)
    assert answers.ending(stream.replace(b'"usage"', b'"used"')).usage is None
