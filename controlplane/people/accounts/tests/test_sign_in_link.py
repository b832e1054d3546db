"""A link, created on the host, that can be used once to sign in."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from controlplane.people.accounts.models import SignInLink
from controlplane.people.audit.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.fixture
def link(otto):
    out = StringIO()
    call_command("sign_in_link", "otto", "--url", "https://weir.example/", stdout=out)
    url = out.getvalue().strip()
    assert url.startswith("https://weir.example/sign-in/")
    return url.removeprefix("https://weir.example")


def test_a_link_can_be_used_once(link):
    client = Client()
    assert b"Sign in as otto" in client.get(link).content  # a program that only opens the link does not use it up
    assert client.post(link).url == "/live"
    assert client.get("/policies/").status_code == 200
    assert Client().post(link).status_code == 404
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions == ["user.sign_in_link", "user.sign_in"]


def test_a_link_expires_after_five_minutes(link):
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert b"no longer works" in Client().get(link).content


def test_a_link_of_a_user_who_was_deactivated_since_is_refused(link, otto):
    otto.is_active = False
    otto.save()
    assert Client().post(link).status_code == 404


def test_the_database_does_not_hold_the_link(link):
    assert link.rpartition("/")[2] not in str(SignInLink.objects.values())


def test_an_unknown_name_is_reported(otto):
    with pytest.raises(CommandError, match="'oto' is no active user; allowed: otto"):
        call_command("sign_in_link", "oto")
