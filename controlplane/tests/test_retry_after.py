"""Every answer of the web process that means "not now" says when to try again."""

import http

import pytest
from django.http import HttpResponse

from controlplane.doors import health
from controlplane.doors.api.problems import ApiProblem
from controlplane.doors.errors import RetryAfter
from controlplane.doors.web import protocol
from router.contract.net.retry_after import DEFAULT_S, NOT_NOW

ERRORS = sorted(status.value for status in http.HTTPStatus if status >= 400)


@pytest.mark.parametrize("status", ERRORS)
def test_each_problem_that_means_not_now_has_retry_after(status):
    assert ApiProblem(status).headers == ({"Retry-After": str(DEFAULT_S)} if status in NOT_NOW else {})


@pytest.mark.parametrize("status", ERRORS)
def test_each_page_that_means_not_now_has_retry_after(rf, status):
    answer = RetryAfter(lambda request: HttpResponse(status=status))(rf.get("/"))
    assert ("Retry-After" in answer.headers) is (status in NOT_NOW)


def test_retry_after_given_by_a_page_is_kept(rf):
    answer = RetryAfter(lambda request: HttpResponse(status=429, headers={"Retry-After": "900"}))(rf.get("/"))
    assert answer.headers["Retry-After"] == "900"


@pytest.mark.django_db
def test_the_health_page_without_a_database_has_retry_after(client, monkeypatch):
    monkeypatch.setattr(health, "database_reason", lambda: "the database does not answer")
    answer = client.get("/healthz")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, str(DEFAULT_S))


@pytest.mark.parametrize("status", sorted(protocol._REFUSALS))
def test_each_refusal_in_front_of_django_has_retry_after(status):
    assert (b"\r\nretry-after: 5\r\n" in protocol.refusal(status)) is (status in NOT_NOW)
