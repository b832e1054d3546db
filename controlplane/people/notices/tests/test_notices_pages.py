"""The Notices pages, for administrators."""

import re

import pytest
from django.utils import timezone

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.people.notices import services, step
from controlplane.people.notices.models import Channel, Notice
from fleet.models import InstanceEvent, Pool

URL = "https://hooks.example.com/s3cret"
SECRET = rb"whsec_[\w+/=]{44}"


def make(client, **more):
    return client.post("/channels/", {"name": "pager", "kind": "webhook", "url": URL, "events": ["*"], **more})


def test_a_new_channels_secret_is_shown_once_and_its_url_never(ada_client) -> None:
    answer = make(ada_client)
    assert re.search(SECRET, answer.content)
    assert answer.headers["Cache-Control"] == "no-store"
    pk = Channel.objects.get().pk
    for page in (answer, ada_client.get("/channels/"), ada_client.get(f"/channels/{pk}")):
        assert b"s3cret" not in page.content
        assert b"https://hooks.example.com/(hidden)" in page.content
    assert not re.search(SECRET, ada_client.get("/channels/").content)
    assert not re.search(SECRET, ada_client.get(f"/channels/{pk}").content)


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", " "), ("url", "ftp://s3cret"), ("url", ""), ("events", []), ("events", ["nonsense"]), ("kind", "fax")],
)
def test_a_refused_field_says_why_and_the_url_is_not_sent_back(ada_client, field, value) -> None:
    answer = make(ada_client, **{field: value})
    assert answer.status_code == 422
    assert b'class="error"' in answer.content
    assert b"s3cret" not in answer.content
    assert not Channel.objects.exists()


def test_settings_can_be_changed_and_an_empty_url_keeps_the_old_one(ada_client, receiver) -> None:
    make(ada_client)
    row = Channel.objects.get()
    change = {"name": "night", "events": ["delivery.*"], "url": ""}
    assert ada_client.post(f"/channels/{row.pk}", change).status_code == 302
    row.refresh_from_db()
    assert (row.name, row.events, row.url) == ("night", ["delivery.*"], URL)
    ada_client.post(f"/channels/{row.pk}", {**change, "url": receiver.url})
    row.refresh_from_db()
    assert row.url == receiver.url
    refused = ada_client.post(f"/channels/{row.pk}", {**change, "url": "http://10.0.0.1/"})
    assert refused.status_code == 422
    assert b"not public" in refused.content
    assert ada_client.post(f"/channels/{row.pk}", {**change, "name": ""}).status_code == 422


def test_a_test_is_sent_and_its_outcome_is_in_the_log(ada_client, channel, receiver) -> None:
    receiver.status = 503
    page = ada_client.post(f"/channels/{channel.pk}/test", follow=True)
    assert b"A test notice for ops is on its way" in page.content
    step.step(timezone.now())
    for path in ("/channels/", f"/channels/{channel.pk}"):
        assert b"the receiver answered 503" in ada_client.get(path).content


def test_a_channel_is_disabled_and_enabled_again(ada_client, channel) -> None:
    services.notify("delivery.aborted", "s", "t")
    ada_client.post(f"/channels/{channel.pk}/enable", {"enabled": "0"})
    assert not Channel.objects.get().enabled
    assert Notice.objects.get().status == "given up"
    ada_client.post(f"/channels/{channel.pk}/enable", {"enabled": "1"})
    assert Channel.objects.get().enabled


def test_rotating_shows_the_new_secret_once(ada_client, channel) -> None:
    answer = ada_client.post(f"/channels/{channel.pk}/rotate")
    shown = re.search(SECRET, answer.content)[0].decode()
    assert Channel.objects.get().secret == shown != channel.secret
    assert Channel.objects.get().old_secret == channel.secret


def test_an_apprise_channel_has_nothing_to_rotate(ada_client, db) -> None:
    row = Channel.objects.create(name="chat", kind="apprise", url="slack://s3cret", events=["*"])
    page = ada_client.get(f"/channels/{row.pk}")
    assert b"Rotate secret" not in page.content
    assert b"s3cret" not in page.content
    answer = ada_client.post(f"/channels/{row.pk}/rotate", follow=True)
    assert b"only webhooks have a secret" in answer.content


def test_deleting_removes_the_channel_and_its_log(ada_client, channel) -> None:
    services.notify("delivery.aborted", "s", "t")
    ada_client.post(f"/channels/{channel.pk}/delete")
    assert not Channel.objects.exists()
    assert not Notice.objects.exists()


@pytest.mark.parametrize("path", ["", "1", "1/test", "1/enable", "1/rotate", "1/delete"])
def test_only_administrators_can_open_the_pages(otto_client, vera_client, path) -> None:
    for client in (otto_client, vera_client):
        assert client.post(f"/channels/{path}").status_code == 403
        assert client.get(f"/channels/{path}").status_code in (403, 405)


def test_administrators_have_the_page_in_their_menu(ada_client, otto_client) -> None:
    assert [b'href="/channels/"' in client.get("/tokens/").content for client in (ada_client, otto_client)] == [
        True,
        False,
    ]


# Notes, from Live


def test_an_operator_writes_a_note_on_live(otto_client, live_redis) -> None:
    FakeFleet(live_redis, size=1).write()
    Pool.objects.create(name="demo")
    assert b"Write note" in otto_client.get("/live").content
    page = otto_client.post("/notes/", {"pool": "demo", "text": "switch 3 is replaced"}, follow=True)
    assert b"The note is on the charts" in page.content
    assert InstanceEvent.objects.get().text == "switch 3 is replaced"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"pool": "gone", "text": "x"}, b"there is no such pool"),
        ({"pool": "demo", "text": " "}, b"1 to 500 characters"),
        ({}, b"no such pool"),
    ],
)
def test_a_note_that_cannot_be_written_says_why(otto_client, form, said) -> None:
    Pool.objects.create(name="demo")
    page = otto_client.post("/notes/", form, follow=True)
    assert b"Not written: " in page.content
    assert said in page.content
    assert not InstanceEvent.objects.exists()


def test_a_viewer_cannot_write_a_note_and_sees_no_form(vera_client, live_redis) -> None:
    FakeFleet(live_redis, size=1).write()
    Pool.objects.create(name="demo")
    assert b"Write note" not in vera_client.get("/live").content
    assert vera_client.post("/notes/", {"pool": "demo", "text": "x"}).status_code == 403
