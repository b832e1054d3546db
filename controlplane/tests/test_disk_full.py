"""Writes that fail on a full disk are reported with 507, on pages and in the API."""

import errno
import os

import pytest
from django.test import Client

from controlplane.doors.api import handlers

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_distinguished_from_other_errors():
    found = [handlers.is_full(error) for error in (FULL, OSError(errno.EDQUOT, "quota"), OSError(errno.EIO, "x"), None)]
    assert found == [True, True, False, False]
    assert [handlers.from_crash(error).status for error in (FULL, OSError(errno.EIO, "x"))] == [507, 500]


@pytest.mark.parametrize(
    ("path", "kind"), [("/api/v1/traces?name=x", "application/problem+json"), ("/login", "text/html")]
)
@pytest.mark.django_db
def test_a_request_that_fills_the_disk_is_answered_with_507(monkeypatch, path, kind):
    """Django writes an upload to the disk before the view is called."""

    def no_room(*_, **__):
        raise FULL

    monkeypatch.setattr("controlplane.people.accounts.middleware.SignInRequired.process_view", no_room)
    answer = Client(raise_request_exception=False).post(path, {"x": "y"})
    assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (507, kind)
    assert "disk" in answer.content.decode()
