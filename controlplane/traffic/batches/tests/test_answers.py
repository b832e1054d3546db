"""The effect of a router's answer on its line."""

import json
from typing import Any

import pytest

from controlplane.traffic.batches import lines
from controlplane.traffic.batches.lines import LineAnswer
from router.contract.api_paths import BATCHED

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"


def meant(status: int, document: Any, api_path: str = CHAT) -> lines.Meaning:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return lines.meaning(LineAnswer(status, "r", body), api_path)


WHOLE: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"choices": [{"finish_reason": end, "message": {"content": "x"}}]})
    for end in ("stop", "length", "tool_calls", None)
]
CUT = {"error": None, "incomplete_details": {"reason": "max_output_tokens"}}
WHOLE += [
    (RESPONSES, {"object": "response", "status": "completed", "output": [], "error": None}),
    (RESPONSES, {"object": "response", "status": "incomplete", "output": [], **CUT}),
    (EMBEDDINGS, {"object": "list", "data": [{"embedding": [0.1]}]}),
]


@pytest.mark.parametrize(("is_final", "outcome"), [(True, "failed"), (False, "again")])
def test_a_line_that_may_have_crashed_its_engines_is_not_repeated(is_final: bool, outcome: str) -> None:
    body = b'{"error": {"code": "upstream_failed", "message": "it is tried on no other"}}'
    assert lines.meaning(LineAnswer(502, "r", body, is_final=is_final), CHAT).outcome == outcome


@pytest.mark.parametrize(("path", "document"), WHOLE)
def test_a_complete_answer_counts_as_answered(path: str, document: Any) -> None:
    assert (meant(200, document, path).outcome, meant(200, document, path).error) == ("answered", None)


@pytest.mark.parametrize("path", BATCHED)
def test_an_answer_without_its_values_is_tried_again(path: str) -> None:
    for name in ("choices", "output", "data"):
        answer = {"id": "x", "object": "list", name: [], "usage": {"prompt_tokens": 3}}
        assert meant(200, answer, path).outcome == "again"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"error": {"message": "EngineCore died", "code": 500}}, "EngineCore died"),
        ({"error": "out of memory"}, "out of memory"),
        ({"error": {"message": "CUDA error: no", "code": 400}}, "CUDA error"),
        ({"error": {}}, "no field of an answer"),
        ({"object": "error", "message": "no", "code": 500}, "no"),
        ({"object": "response", "status": "failed", "error": None}, "the response failed"),
        ({"object": "response", "status": "cancelled"}, "the response was cancelled"),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "error"}]}, "finish_reason error"),
        ({"choices": [{"finish_reason": "abort", "message": {"content": "half"}}]}, "finish_reason abort"),
        ([], "not a JSON object"),
        (b"<html>", "not valid JSON"),
        (b"", "empty"),
        ({}, "no field of an answer"),
    ],
)
def test_an_error_with_status_200_is_retried_and_does_not_count_as_an_answer(document: Any, text: str) -> None:
    made = meant(200, document)
    assert made.outcome == "again"
    assert made.error is not None
    assert text in made.error["message"]


def test_an_error_with_status_200_that_blames_the_request_is_not_retried() -> None:
    for document in ({"error": {"code": 400, "message": "too long"}}, {"object": "error", "code": 422}):
        assert meant(200, document).outcome == "failed"


def test_a_temporary_refusal_is_recognised_whatever_its_status() -> None:
    busy = meant(200, {"error": {"code": 429, "message": "busy"}})
    assert (busy.outcome, busy.reason) == ("later", lines.Reason("status_200", "busy"))


STATUSES = {201: "failed", 400: "failed", 404: "failed", 408: "again", 500: "again", 502: "again", 504: "again"}


@pytest.mark.parametrize(("status", "outcome"), STATUSES.items())
def test_other_statuses_fail_or_are_retried(status: int, outcome: str) -> None:
    assert (meant(status, {}).outcome, meant(status, {}).reason) == (outcome, None)


def test_a_line_that_fails_equally_on_two_engines_is_not_retried() -> None:
    assert meant(502, {"error": {"message": "failed on two", "code": "failed_alike"}}).outcome == "failed"
    assert meant(502, {"error": {"message": "failed", "code": "upstream_failed"}}).outcome == "again"


def test_a_temporary_refusal_has_a_reason() -> None:
    refusal = {"error": {"code": "insufficient_quota", "message": "the budget is used up"}}
    assert meant(429, refusal).reason == lines.Reason("insufficient_quota", "the budget is used up")
    assert meant(503, b"busy").reason == lines.Reason("status_503", "status 503")
    assert meant(503, {"error": "engine busy"}).reason == lines.Reason("status_503", "engine busy")
    long = meant(503, {"error": {"code": 7, "message": "x" * 1_000}}).reason
    assert long is not None
    assert (long.code, len(long.message)) == ("status_503", lines.LONGEST_TEXT)
