"""A new page is closed to strangers by default."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

OPEN = {"login", "logout", "healthz", "api/v1/openapi.json"}


def patterns(resolver: URLResolver, prefix: str = "") -> list[str]:
    found = []
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        found += [route] if isinstance(entry, URLPattern) else patterns(entry, route)
    return found


def concrete(route: str) -> str:
    """Return an address for a route; every variable part is a value that its converter accepts."""
    parts = []
    for part in route.split("/"):
        if "<int:" in part or "_id>" in part:
            parts.append("1")
        elif "<" in part:
            parts.append("default" + part.partition(">")[2])
        else:
            parts.append(part)
    return "/" + "/".join(parts)


def test_no_page_answers_a_stranger(db):
    client = Client()
    answers = {
        route: client.get(concrete(route)).status_code for route in patterns(get_resolver()) if route not in OPEN
    }
    assert answers
    leaking = {route: status for route, status in answers.items() if status not in (301, 302, 401, 404, 405)}
    assert leaking == {}


@pytest.mark.parametrize("path", ["/policies/", "/audit/", "/tokens/", "/users/"])
def test_a_stranger_is_sent_to_the_sign_in_page_and_then_back(db, client, path):
    assert client.get(path).headers["Location"] == f"/login?next={path}"


def test_a_fragment_request_without_a_session_gets_a_signed_out_event_and_no_content(db, client):
    answer = client.get("/policies/", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["HX-Trigger"]) == (204, "weir:signed-out")
    assert not answer.content


def test_a_person_without_a_role_can_see_nothing(db, client):
    client.force_login(User.objects.create_user("nemo"))
    answer = client.get("/policies/")
    assert answer.status_code == 403
    assert b"viewer" in answer.content
