"""What went wrong, what still works, what to do, and an id to quote; never a stack trace."""

import pytest
from django.db import OperationalError
from django.test import Client

from controlplane.audit import views


@pytest.fixture
def quiet(vera_client: Client) -> Client:
    vera_client.raise_request_exception = False
    return vera_client


def test_an_unknown_page(quiet):
    answer = quiet.get("/nowhere")
    assert answer.status_code == 404
    assert b"There is no page at this address" in answer.content
    assert answer.headers["X-Request-ID"].encode() in answer.content
    assert b"urlpatterns" not in answer.content


def test_a_stranger_learns_nothing_about_unknown_pages(client, db):
    assert b"/nowhere" not in client.get("/nowhere").content


@pytest.mark.parametrize("path", ["/tokens/1/revoke", "/logout"])
def test_an_address_that_takes_forms_only(quiet, path):
    answer = quiet.get(path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert b"belongs to a button or a form of another page" in answer.content
    assert answer.headers["X-Request-ID"].encode() in answer.content


def test_a_crash(quiet, monkeypatch):
    monkeypatch.setattr(views, "page", lambda *_: 1 / 0)
    answer = quiet.get("/audit/")
    assert answer.status_code == 500
    assert b"Routers and engines do not depend on it" in answer.content
    assert answer.headers["X-Request-ID"].encode() in answer.content
    assert b"ZeroDivisionError" not in answer.content


def test_a_database_that_is_away(quiet, monkeypatch):
    def fail(*_):
        raise OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(views, "page", fail)
    answer = quiet.get("/audit/")
    assert answer.status_code == 503
    assert b"Routers keep serving with their current policy" in answer.content


def test_a_database_that_goes_before_the_page_is_reached(quiet, monkeypatch):
    def fail(*_, **__):
        raise OperationalError("no connection")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", fail)
    assert quiet.get("/audit/").status_code == 503


@pytest.mark.parametrize("path", ["/audit/?actor=%00", "/policies/a%00b/", "/api/v1/audit?actor=%00"])
def test_an_address_with_a_nul_character(quiet, path):
    assert quiet.get(path).status_code == 400


def test_a_host_that_is_not_served(client, db):
    assert client.get("/login", headers={"host": "evil.example"}).status_code == 400
