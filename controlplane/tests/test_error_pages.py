"""Error pages name the problem, the parts that still work, a remedy and an id to quote; never a stack trace."""

import pickle

import pytest
from django.db import OperationalError
from django.test import Client

from controlplane.common import computing
from controlplane.common.computing import Busy
from controlplane.people.audit import views
from controlplane.testing import api_caller
from fleet.subprocess import SubprocessFailed


@pytest.fixture
def quiet(vera_client: Client) -> Client:
    vera_client.raise_request_exception = False
    return vera_client


def test_an_unknown_page_says_what_to_do(quiet):
    answer = quiet.get("/nowhere")
    assert answer.status_code == 404
    assert b"There is no page at this address" in answer.content
    assert answer.headers["X-Request-ID"].encode() in answer.content
    assert b"urlpatterns" not in answer.content


def test_a_missing_object_links_to_its_list(quiet):
    shown = quiet.get("/deliveries/999/").content.decode()
    assert "There is no delivery 999." in shown
    assert '<a class="button" href="/deliveries/">Deliveries</a>' in shown


def test_a_stranger_learns_nothing_about_unknown_pages(client, db):
    assert b"/nowhere" not in client.get("/nowhere").content


@pytest.mark.parametrize("path", ["/tokens/1/revoke", "/logout"])
def test_a_get_of_an_address_that_takes_only_posts_is_explained(quiet, path):
    answer = quiet.get(path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert b"belongs to a button or a form of another page" in answer.content
    assert answer.headers["X-Request-ID"].encode() in answer.content


@pytest.fixture
def busy(monkeypatch):
    """Refuse computations, as if the same user already had too many."""

    def refuses(*_):
        raise Busy("you already have 3 computations running or waiting: ask again when they end")

    computing.REMEMBERING.clear()
    monkeypatch.setattr(computing, "_made", refuses)


@pytest.mark.parametrize("path", ["/systems/tutti/", "/systems/neuron/figures/"])
def test_a_page_that_asks_for_too_much_at_once_explains_that_and_when_to_retry(quiet, busy, path):
    answer = quiet.get(path)
    assert (answer.status_code, answer.headers["Retry-After"], answer.headers["Refresh"]) == (429, "5", "5")
    assert b"You already have 3 computations running or waiting" in answer.content
    assert b"This page asks again by itself." in answer.content


@pytest.fixture
def killed(monkeypatch):
    """Fail computations, as on a host without memory, which kills their process."""

    def fails(*_, **__):
        raise SubprocessFailed("its process ended with status -9: is there enough memory?")

    computing.REMEMBERING.clear()
    monkeypatch.setattr(computing, "run_in_subprocess", fails)


def test_a_computation_whose_process_is_killed_says_so_on_pages_and_over_rest(quiet, vera, killed):
    page, answer = quiet.get("/systems/tutti/"), api_caller(vera).post("/systems/tutti", {"inputs": {}})
    said = "could not be computed: its process ended with status -9: is there enough memory?"
    assert (page.status_code, answer.status_code) == (503, 503)
    assert f"This {said}. Nothing was changed." in page.content.decode()
    assert answer.json()["detail"] == f"this {said}"


def test_an_operation_that_asks_for_too_much_at_once_explains_that_and_when_to_retry(vera, busy):
    answer = api_caller(vera).post("/systems/tutti", {"inputs": {}})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
    assert answer.json()["detail"].startswith("you already have 3 computations")


def test_a_users_session_and_tokens_compute_as_one_user_and_a_stranger_computes_nothing(vera, quiet, monkeypatch):
    askers = []
    monkeypatch.setattr(computing, "_made", lambda *_: askers.append(computing.ASKER.get()()) or pickle.dumps(()))
    computing.REMEMBERING.clear()
    quiet.get("/systems/neuron/figures/")
    api_caller(vera).get("/systems/neuron/figures")
    Client().get("/systems/neuron/figures/")
    assert askers == [str(vera.pk)] * 2
    assert computing.ASKER.get() is None


def test_a_crash_shows_an_id_to_quote(quiet, monkeypatch):
    monkeypatch.setattr(views, "page", lambda *_: 1 / 0)
    answer = quiet.get("/audit/")
    assert answer.status_code == 500
    assert b"Routers and engines do not depend on it" in answer.content
    assert answer.headers["X-Request-ID"].encode() in answer.content
    assert b"ZeroDivisionError" not in answer.content


def test_an_unreachable_database_is_reported(quiet, monkeypatch):
    def fail(*_):
        raise OperationalError("database is locked")

    monkeypatch.setattr(views, "page", fail)
    answer = quiet.get("/audit/")
    assert answer.status_code == 503
    assert b"Routers keep serving with their current policy" in answer.content


def test_a_database_that_is_lost_before_the_view_is_reported(quiet, monkeypatch):
    def fail(*_, **__):
        raise OperationalError("no connection")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", fail)
    assert quiet.get("/audit/").status_code == 503


@pytest.mark.parametrize("path", ["/audit/?actor=%00", "/policies/a%00b/", "/api/v1/audit?actor=%00"])
def test_a_nul_character_in_an_address_is_refused(quiet, path):
    assert quiet.get(path).status_code == 400


def test_a_host_that_is_not_allowed_is_refused(client, db):
    assert client.get("/login", headers={"host": "evil.example"}).status_code == 400
