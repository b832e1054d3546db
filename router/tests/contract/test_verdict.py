"""Every outcome has a row in docs/router.md, and all counters of outcomes follow that row."""

from pathlib import Path

import pytest

from router.contract.answer.verdict import VERDICTS, of_own_answer, of_routers_answer, of_status

COUNTED_AS = {"ok": "–", "client_error": "client_errors", "error": "failed", "picked": "–"}  # in use
# On Live; other labels appear nowhere
SHOWN_AS = {"client_error": "client errors", "error": "failed", "refused": "refused"}
TABLE = Path("docs/router.md").read_text().partition("### Outcomes")[2].partition("* **Content**")[0]
ROWS = {cells[0].strip("`"): cells[1:] for line in TABLE.splitlines() if (cells := line.strip("| ").split(" | "))[1:]}


@pytest.mark.parametrize("result", VERDICTS)
def test_the_document_matches_the_verdicts(result):
    outcome, fault, _, counts, charged, use, _, live = ROWS[result]
    verdict = VERDICTS[result]
    assert (outcome.strip("`"), fault) == (verdict.label, verdict.fault)
    assert (charged == "yes") is verdict.computes
    assert (counts == "yes") is (verdict.label == "error")
    assert use.strip("`") == COUNTED_AS.get(verdict.label, verdict.label)
    assert live == SHOWN_AS.get(verdict.label, "–")


@pytest.mark.parametrize(
    ("status", "result"),
    [
        *((status, "served") for status in (200, 204)),
        *((status, "client_error") for status in (400, 401, 403, 404, 405, 413, 415, 422, 501)),
        *((status, "refused") for status in (429, 503)),
        *((status, "failed_before_content") for status in (408, 500, 502, 504, 529)),
    ],
)
def test_each_status_has_its_outcome(status, result):
    assert of_status(status) == result


@pytest.mark.parametrize(
    ("status", "code", "result"),
    [
        (400, "invalid_json", "client_error"),
        (401, "missing_api_key", "client_error"),
        (404, "model_not_found", "client_error"),
        (429, "insufficient_quota", "refused"),
        (503, "no_instance_ready", "refused"),
        (504, "deadline_exceeded", "refused"),
        (502, "upstream_failed", "failed_before_content"),
        (504, "upstream_timeout", "failed_before_content"),
        (503, "router_exhausted", "router_failed"),
        (503, "shutting_down", "router_failed"),
    ],
)
def test_an_answer_made_by_the_router_has_its_outcome(status, code, result):
    assert of_own_answer(status, code) == result


@pytest.mark.parametrize(
    ("status", "code", "result"),
    [
        (502, "failed_alike", "failed_alike"),
        (504, "deadline_exceeded", "refused"),
        (503, "router_exhausted", "router_failed"),
        (400, "BadRequestError", "client_error"),
        (400, 400, "client_error"),
        (500, {"of": "another shape"}, "failed_before_content"),
        (429, None, "refused"),
    ],
)
def test_the_routers_own_answers_are_distinguished_from_those_of_engines(status, code, result):
    assert of_routers_answer(status, code) == result
