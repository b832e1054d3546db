from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.db import connections

from controlplane.base.process import migrated
from controlplane.base.process.env import BadSetting
from controlplane.doors.up import CannotStart
from controlplane.doors.up.database import prepare
from controlplane.doors.up.plan import Options
from controlplane.people.accounts.models import ApiToken
from controlplane.people.accounts.services import ensure_admin
from controlplane.people.audit.models import AuditEntry
from controlplane.people.permissions import SCOPES, role_of
from controlplane.testing import ApiCaller

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, settings) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    return settings.DATA_DIR


def test_the_first_start_creates_the_administrator_with_a_random_password():
    access = ensure_admin()
    assert authenticate(username="admin", password=access.password) is not None
    assert role_of(User.objects.get(username="admin")) == "admin"


def test_the_password_is_printed_once():
    assert ensure_admin().password
    assert ensure_admin().password is None


def test_a_given_password_is_used_and_not_printed(monkeypatch):
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "given-by-the-operator")
    assert ensure_admin().password is None
    assert authenticate(username="admin", password="given-by-the-operator") is not None


@pytest.mark.parametrize(("given", "fault"), [("short", "too short"), ("password123", "too common")])
def test_a_weak_password_is_refused_and_no_user_created(monkeypatch, given, fault):
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", given)
    with pytest.raises(BadSetting, match=rf"WEIR_ADMIN_PASSWORD: .*{fault}.* Set another, or none"):
        ensure_admin()
    assert not User.objects.exists()


def test_up_reports_a_weak_first_password_in_one_line(monkeypatch):
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "short")
    # A test is one transaction, on one connection
    monkeypatch.setattr(connections, "close_all", lambda: None)
    monkeypatch.setattr(migrated, "missing", lambda wanted: [])
    with pytest.raises(CannotStart, match="WEIR_ADMIN_PASSWORD: This password is too short"):
        prepare(Options(demo=False))


def test_a_password_is_checked_only_when_the_user_is_created(monkeypatch):
    ensure_admin()
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "short")
    assert ensure_admin().password is None


def test_a_changed_password_survives_the_next_start(monkeypatch):
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "given-by-the-operator")
    ensure_admin()
    user = User.objects.get(username="admin")
    user.set_password("changed later on")
    user.save()
    ensure_admin()
    assert authenticate(username="admin", password="changed later on") is not None


def test_the_token_file_is_private_and_works():
    path = ensure_admin().token_path
    assert path.stat().st_mode & 0o777 == 0o600
    assert ApiCaller(path.read_text().strip()).get("/tokens").status_code == 200


def test_a_working_token_is_kept():
    first = ensure_admin().token_path.read_text()
    assert ensure_admin().token_path.read_text() == first
    assert ApiToken.objects.count() == 1


def test_a_token_that_no_longer_works_is_replaced():
    first = ensure_admin().token_path.read_text()
    ApiToken.objects.update(sha256="0" * 64)
    second = ensure_admin().token_path.read_text()
    assert second != first
    assert ApiCaller(second.strip()).get("/policies").status_code == 200


def test_a_token_of_an_older_version_gets_the_new_scopes():
    first = ensure_admin().token_path.read_text()
    ApiToken.objects.update(scopes=["policy:read"])
    assert ensure_admin().token_path.read_text() == first
    assert ApiToken.objects.get().scopes == sorted(SCOPES)
    entry = AuditEntry.objects.get(action="token.widen")
    assert (entry.before, entry.after) == ({"scopes": ["policy:read"]}, {"scopes": sorted(SCOPES)})
    ensure_admin()
    assert AuditEntry.objects.filter(action="token.widen").count() == 1
