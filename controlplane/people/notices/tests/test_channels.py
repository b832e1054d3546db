"""Channels: checked, audited, and never shown with their URL or secret."""

import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.people.notices import display, services
from controlplane.people.notices.models import Channel
from controlplane.people.notices.services import ChannelTerms
from controlplane.people.notices.tests.conftest import ADA
from router.contract.values.problem import InvalidInput

URL = "https://hooks.example.com/services/T0/s3cret?key=s3cret"


def test_changes_are_audited_without_url_and_secrets(make_channel) -> None:
    channel = make_channel("pager", url=URL)
    first = channel.secret
    services.change_channel(channel, services.ChannelEdit(url=URL + "2", events=["delivery.*"], name="night"), ADA)
    second = services.rotate_secret(channel, ADA)
    services.test_channel(channel, ADA)
    services.delete_channel(channel, ADA)
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", "subject"))
    assert actions == [
        ("channel.create", "channel pager"),
        ("channel.change", "channel night"),
        ("channel.rotate", "channel night"),
        ("channel.test", "channel night"),
        ("channel.delete", "channel night"),
    ]
    everything = str([vars(entry) for entry in AuditEntry.objects.all()])
    assert "hooks.example.com" in everything
    assert "url_changed" in everything
    for hidden in ("s3cret", first, second):
        assert hidden not in everything
    assert "s3cret" not in repr(channel) + str(channel)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "https://hooks.example.com/(hidden)"),
        ("http://[fd00::1]:8080/x", "http://[fd00::1]:8080/(hidden)"),
        ("https://example.com", "https://example.com"),
        ("https://example.com/", "https://example.com"),
        ("https://example.com?t=s3cret", "https://example.com/(hidden)"),
        ("slack://s3cret/B0/C0", "slack://(hidden)"),
    ],
)
def test_a_url_is_shown_without_parts_that_could_be_a_token(url, shown) -> None:
    assert display.masked_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.com", "ftp://example.com/s3cret", "https://", "https://u:s3cret@example.com/", "https://a b/"),
        *("https://example.com/#s3cret", "https://example.com:0/", "https://example.com:99999/", "https://[::1/"),
        *("https://exämple.com/", "https://example.com/" + "x" * 2000, "http://127.0.0.1/", "http://[::1]:80/x"),
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_an_unusable_url_is_refused_without_repeating_it(db, url) -> None:
    with pytest.raises(InvalidInput) as raised:
        services.create_channel("webhook", ChannelTerms(name="x", url=url), ADA)
    assert raised.value.problems[0].path == "url"
    assert "s3cret" not in str(raised.value)
    assert raised.value.problems[0].value is None


@pytest.mark.parametrize(
    ("kind", "terms", "path"),
    [
        ("fax", {}, "kind"),
        ("webhook", {"name": " "}, "name"),
        ("webhook", {"name": "x" * 81}, "name"),
        ("webhook", {"events": []}, "events"),
        ("webhook", {"events": ["delivery.*", "delivery.exploded"]}, "events.1"),
        ("webhook", {"events": ["channel.test"]}, "events.0"),
        ("webhook", {"name": "taken"}, "name"),
    ],
)
def test_invalid_settings_are_named(make_channel, kind, terms, path) -> None:
    make_channel("taken")
    with pytest.raises(InvalidInput) as raised:
        services.create_channel(kind, ChannelTerms(**{"name": "x", "url": URL, **terms}), ADA)
    assert raised.value.problems[0].path == path
    assert Channel.objects.count() == 1


def test_only_webhooks_have_a_secret(db) -> None:
    row = Channel.objects.create(name="chat", kind="apprise", url="slack://x")
    with pytest.raises(InvalidInput, match="only webhooks"):
        services.rotate_secret(row, ADA)
