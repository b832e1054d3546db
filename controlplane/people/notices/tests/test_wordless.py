"""Channels whose receivers may not read text that people wrote."""

import json
from collections.abc import Callable

import pytest
from django.test import Client

from controlplane.people.audit.services import Actor
from controlplane.people.notices import services, step, wordless
from controlplane.people.notices.events import EVENTS
from controlplane.people.notices.models import Channel, Notice
from controlplane.people.notices.senders.webhooks import body_of
from controlplane.testing import ApiCaller
from fleet.models import InstanceEvent, Pool

SECRET = "two secret words"
ANNA = Actor("user", SECRET)


def sent() -> list[str]:
    """The bodies that the channels receive."""
    rows = Notice.objects.order_by("pk")
    return [body_of(row.pk, row.event, row.subject, row.text, row.facts, "").decode() for row in rows]


@pytest.mark.django_db
def test_a_channel_without_words_gets_no_text_that_people_wrote(make_channel: Callable[..., Channel]) -> None:
    channel = make_channel("status page", words=False)
    facts = {"by": SECRET, "why": SECRET, "pools": [SECRET], "policy": SECRET, "state": SECRET, "plan": {SECRET: 1}}
    for event in EVENTS:
        services.enqueue(event, SECRET, SECRET, {**facts, "version": 44})
    pool = Pool.objects.create(name="demo", model="m", kind="sim", policy="default", replicas=1)
    services.write_note(pool, SECRET, ANNA)
    services.test_channel(channel, ANNA)
    step._enqueue(
        InstanceEvent.objects.create(instance="demo-0", pool="demo", kind="failed", text=SECRET, reason=SECRET)
    )
    assert Notice.objects.count() == len(EVENTS) + 3
    assert [body for body in sent() if SECRET in body] == []
    last = json.loads(sent()[-1])["data"]
    assert last["text"] == "instance demo-0: an instance failed or cannot be reached"
    assert last["facts"] == {"instance": "demo-0", "pool": "demo", "state": "failed"}


@pytest.mark.django_db
def test_other_channels_get_the_words(make_channel: Callable[..., Channel]) -> None:
    make_channel("on call")
    services.enqueue("delivery.aborted", "policy default v44", SECRET, {"by": SECRET})
    assert SECRET in sent()[0]


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("policy default v44", "policy default v44"),
        ("Models v3", "Models v3"),
        ("node gpu-1", "node gpu-1"),
        ("API key anna", ""),
        ("channel of anna", ""),
        ("policy default v44 by anna", ""),
    ],
)
def test_a_subject_is_sent_if_it_is_the_name_of_a_thing(subject: str, told: str) -> None:
    assert wordless.subject_of(subject) == told


def test_facts_keep_numbers_and_names() -> None:
    facts = {"version": 2, "share": 0.5, "by": "anna", "pools": ["a", "b"], "policy": "default", "why": "slow"}
    assert wordless.facts_of(facts) == {"version": 2, "share": 0.5, "pools": ["a", "b"], "policy": "default"}
    assert wordless.facts_of({"pools": ["a", SECRET], "key": 7, "unit": "tokens"}) == {"key": 7, "unit": "tokens"}


def test_the_page_and_rest_show_whether_a_channel_has_words(ada_client: Client, ada_api: ApiCaller) -> None:
    made = ada_api.post("/channels", {"name": "status page", "url": "https://example.com/hook", "words": False}).json()
    assert made["words"] is False
    assert ada_api.patch(f"/channels/{made['id']}", {"events": ["node.silent"]}).json()["words"] is False
    address = f"/channels/{made['id']}"
    page = ada_client.get(address)
    assert page.context["form"]["words"].value() is False
    form = {"name": "status page", "url": "", "events": ["*"], "words": "on"}
    assert ada_client.post(address, form).status_code == 302
    assert Channel.objects.get().words is True
