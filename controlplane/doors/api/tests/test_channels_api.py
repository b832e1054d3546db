"""Channels of notices and people's notes over REST."""

import pytest

from controlplane.people.notices.models import Channel, Notice
from controlplane.testing import api_caller
from fleet.models import InstanceEvent, Pool

URL = "https://hooks.example.com/s3cret"


@pytest.fixture
def made(ada_api):
    return ada_api.post("/channels", {"name": "pager", "url": URL, "events": ["delivery.*"]}).json()


def test_an_administrator_makes_lists_changes_rotates_tests_and_deletes_a_channel(ada_api, made):
    path = f"/channels/{made['id']}"
    assert made["secret"].startswith("whsec_")
    assert made["url"] == "https://hooks.example.com/(hidden)"
    changed = ada_api.patch(path, {"events": ["*"], "enabled": False, "name": None}).json()
    assert (changed["name"], changed["events"], changed["enabled"]) == ("pager", ["*"], False)
    rotated = ada_api.post(f"{path}/rotate")
    assert rotated.headers["Cache-Control"] == "no-store"
    assert rotated.json()["secret"] not in ("", made["secret"])
    assert rotated.json()["rotated_until"]
    tested = ada_api.post(f"{path}/test")
    assert tested.status_code == 202
    (notice,) = ada_api.get(f"{path}/notices").json()
    assert notice == tested.json()
    assert (notice["event"], notice["status"]) == ("channel.test", "waiting")
    assert ada_api.get(f"{path}/notices?before={notice['id']}").json() == []
    (listed,) = ada_api.get("/channels").json()
    assert listed == ada_api.get(path).json()
    assert "secret" not in listed
    assert ada_api.delete(path).status_code == 204
    assert not Channel.objects.exists()


def test_only_the_first_answer_contains_the_secret_and_none_contains_the_url(ada_api, made):
    path = f"/channels/{made['id']}"
    ada_api.post(f"{path}/test")
    answers = [ada_api.get(p).content.decode() for p in ("/channels", path, f"{path}/notices", "/audit")]
    answers.append(ada_api.patch(path, {"url": URL + "2"}).content.decode())
    assert [text for text in answers if "s3cret" in text or made["secret"] in text] == []


def test_a_repeated_key_makes_one_channel_and_does_not_keep_its_secret(ada_api):
    body = {"name": "pager", "url": URL}
    first = ada_api.post("/channels", body, Idempotency_Key="k")
    again = ada_api.post("/channels", body, Idempotency_Key="k")
    assert (first.status_code, again.status_code) == (201, 409)
    assert Channel.objects.count() == 1


CALLS = [
    ("GET", "/channels", None),
    ("POST", "/channels", {"name": "x", "url": URL}),
    ("GET", "/channels/1", None),
    ("PATCH", "/channels/1", {"name": "x"}),
    ("DELETE", "/channels/1", None),
    ("POST", "/channels/1/rotate", None),
    ("POST", "/channels/1/test", None),
    ("GET", "/channels/1/notices", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_only_the_admin_scope_reaches_channels(ada, otto, vera, method, path, body):
    others = [api_caller(ada, "policy:publish", "keys:write", "fleet:write"), api_caller(otto), api_caller(vera)]
    assert [caller.call(method, path, body).status_code for caller in others] == [403, 403, 403]
    assert api_caller(ada, "admin").call(method, path, body).status_code in (200, 201, 404)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": " "}, "name"),
        ({"kind": "fax"}, "kind"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://10.0.0.1/"}, "url"),
        ({"events": []}, "events"),
        ({"events": ["delivery.exploded"]}, "events.0"),
        ({"kind": "apprise", "url": "json://localhost"}, "url"),
        ({"secret": "mine"}, "secret"),
    ],
)
def test_a_wrong_field_is_named(ada_api, body, path):
    answer = ada_api.post("/channels", {"name": "x", "url": URL, **body})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


def test_a_second_channel_of_a_name_is_refused(ada_api, made):
    assert ada_api.post("/channels", {"name": "pager", "url": URL}).status_code == 422


@pytest.mark.parametrize(("method", "path", "body"), [call for call in CALLS if "/1" in call[1]])
def test_an_unknown_channel_is_404(ada_api, method, path, body):
    assert ada_api.call(method, path, body).json()["detail"] == "there is no channel 1"


# Notes


@pytest.fixture
def chat(db):
    return Pool.objects.create(name="chat")


def test_an_operators_note_is_a_mark_and_a_notice(ci, chat, made):
    Channel.objects.update(events=["note.written"])
    assert ci.post("/notes", {"pool": "chat", "text": "switch 3 is replaced"}).status_code == 204
    assert InstanceEvent.objects.get().text == "switch 3 is replaced"
    assert Notice.objects.get().text == "ci (otto): switch 3 is replaced"


def test_a_note_needs_its_scope(chat, vera, otto):
    body = {"pool": "chat", "text": "x"}
    assert api_caller(vera).post("/notes", body).status_code == 403
    assert api_caller(otto, "policy:publish").post("/notes", body).status_code == 403
    assert api_caller(otto, "notes:write").post("/notes", body).status_code == 204


@pytest.mark.parametrize(
    ("body", "status"),
    [({"pool": "gone", "text": "x"}, 404), ({"pool": "chat", "text": " "}, 422), ({"pool": "chat"}, 422)],
)
def test_a_note_that_cannot_be_written_says_why(ci, chat, body, status):
    assert ci.post("/notes", body).status_code == status
