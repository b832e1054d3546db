"""Apprise is optional: if it is not installed, Weir says how to install it."""

import importlib.machinery
import sys
import types
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.people.notices import services, step
from controlplane.people.notices.models import Notice, Status
from controlplane.people.notices.senders import apprise_urls
from controlplane.people.notices.services import ChannelTerms
from controlplane.people.notices.tests.conftest import ADA
from router.contract.values.problem import InvalidInput

URL = "slack://s3cret/B0/C0"


class Fake:
    """The part of apprise.Apprise that Weir uses."""

    sent: list[tuple[str, str, str]] = []
    answer = True

    def __init__(self) -> None:
        self.urls: list[str] = []

    @staticmethod
    def instantiate(url: str, suppress_exceptions: bool) -> object | None:
        return None if url.startswith("nonsense") else object()

    def add(self, url: str) -> bool:
        self.urls.append(url)
        return not url.startswith("nonsense")

    async def async_notify(self, title: str, body: str) -> bool:
        self.sent.extend((url, title, body) for url in self.urls)
        return self.answer


@pytest.fixture
def apprise(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    module = types.ModuleType("apprise")
    module.__spec__ = importlib.machinery.ModuleSpec("apprise", None)
    monkeypatch.setitem(sys.modules, "apprise", module)
    monkeypatch.setattr(Fake, "sent", [])
    monkeypatch.setattr(Fake, "answer", True)
    module.Apprise = Fake
    return Fake


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apprise_urls, "is_installed", lambda: False)


def make(url: str = URL):
    return services.create_channel("apprise", ChannelTerms(name="chat", url=url), ADA)


def sent(after: timedelta = timedelta(0)) -> Notice:
    services.notify("delivery.aborted", "policy default v44", "Heavy TTFT is worse.")
    step.step(timezone.now() + after)
    return Notice.objects.get()


def test_a_notice_is_sent_to_the_service(db, apprise) -> None:
    _, secret = make()
    assert secret == ""
    assert sent().status == Status.SENT
    assert apprise.sent == [(URL, "delivery.aborted: policy default v44", "Heavy TTFT is worse.")]


def test_a_refusal_is_retried(db, apprise, monkeypatch) -> None:
    make()
    monkeypatch.setattr(apprise, "answer", False)
    notice = sent()
    assert notice.status == Status.WAITING
    assert "refused or did not answer" in notice.outcome


def test_without_the_package_a_channel_is_refused_with_the_command(db, without) -> None:
    with pytest.raises(InvalidInput, match=r"not installed: pip install .+requirements-notices\.txt") as raised:
        make()
    assert raised.value.problems[0].path == "kind"


def test_a_worker_without_the_package_reports_it_in_the_outcome(db, apprise, monkeypatch) -> None:
    make()
    monkeypatch.setattr(apprise_urls, "is_installed", lambda: False)
    assert sent().outcome.startswith("Apprise is not installed")


@pytest.mark.parametrize("scheme", ["json", "jsons", "xml", "XMLS", "form", "forms", "dbus", "syslog", "windows"])
def test_urls_that_lead_to_webhooks_or_this_machine_are_refused(db, apprise, scheme) -> None:
    with pytest.raises(InvalidInput, match="is not allowed"):
        make(f"{scheme}://localhost/s3cret")


@pytest.mark.parametrize("url", ["s3cret", "", "nonsense://s3cret", "slack://s3cret\n", "slack://" + "x" * 2000])
def test_the_message_about_an_unreadable_url_does_not_repeat_it(db, apprise, url) -> None:
    with pytest.raises(InvalidInput) as raised:
        make(url)
    assert raised.value.problems[0].path == "url"
    assert "s3cret" not in str(raised.value)


def test_a_url_that_a_later_release_cannot_read_is_reported_in_the_outcome(db, apprise) -> None:
    row, _ = make()
    type(row).objects.update(url="nonsense://s3cret")
    assert sent().outcome == "Apprise does not understand the URL of this channel"


def test_nothing_is_sent_to_a_private_host(db, apprise) -> None:
    make("ntfy://localhost/topic")
    assert "not public" in sent().outcome
    assert apprise.sent == []


def test_a_url_without_a_host_is_accepted(db, apprise) -> None:
    make("slack:///x")
    assert sent().status == Status.SENT
