from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User

from controlplane.accounts.models import ApiToken
from controlplane.accounts.services import ensure_admin
from controlplane.permissions import role_of
from controlplane.testing import ApiCaller

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, settings) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    return settings.DATA_DIR


def test_the_first_start_makes_the_administrator_with_a_random_password():
    access = ensure_admin()
    assert authenticate(username="admin", password=access.password) is not None
    assert role_of(User.objects.get(username="admin")) == "admin"


def test_the_password_is_told_once():
    assert ensure_admin().password
    assert ensure_admin().password is None


def test_a_given_password_is_taken_and_not_told(monkeypatch):
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "given-by-the-operator")
    assert ensure_admin().password is None
    assert authenticate(username="admin", password="given-by-the-operator") is not None


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
