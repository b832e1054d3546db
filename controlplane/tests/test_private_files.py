"""Only the OS user that runs Weir can open the data folder, since anybody with the database could become an
administrator.
"""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.base.process import private_files
from controlplane.doors import doctor
from controlplane.doors.up import preflight


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """A data folder as an earlier version left it."""
    folder = tmp_path / "var"
    for name in ("logs/instances", "traces", "run"):
        (folder / name).mkdir(parents=True)
    for name in ("weir.sqlite3", "logs/web.log", "logs/instances/demo-0.log", "traces/abc", "token"):
        (folder / name).write_text("secret")
        (folder / name).chmod(0o644)
    for path in (folder, *folder.glob("**/*/")):
        path.chmod(0o755)
    (folder / "token").chmod(0o600)
    return folder


def test_a_process_with_weirs_settings_creates_private_files(tmp_path):
    script = "import django; django.setup(); from django.db import connection; connection.cursor()"
    env = os.environ | {
        "WEIR_DATA_DIR": str(tmp_path / "new"),
        "DATABASE_URL": "",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
    }
    subprocess.run([sys.executable, "-c", f"import os; os.umask(0o022); {script}"], env=env, check=True)
    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "new" / "weir.sqlite3") == 0o600
    assert mode(tmp_path / "new" / "secret_key") == 0o600


def test_an_existing_folder_is_made_private_at_the_start_and_that_is_reported_once(opened, capsys):
    preflight.prepare_folder(opened)
    assert "closed to other users" in capsys.readouterr().out
    assert [mode(opened / name) for name in (".", "weir.sqlite3", "logs", "logs/instances/demo-0.log")] == [
        0o700, 0o600, 0o700, 0o600,
    ]  # fmt: skip
    assert private_files.readable_by_others(opened) == []
    preflight.prepare_folder(opened)
    assert capsys.readouterr().out == ""


def test_the_line_names_a_few_of_many_files(opened):
    assert private_files.describe(private_files.tighten(opened)).endswith("more")


def test_a_link_in_the_folder_is_left_alone(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "link").symlink_to(outside)
    private_files.tighten(tmp_path / "var")
    assert mode(outside) == 0o644


def test_files_of_another_owner_and_files_that_vanish_do_not_stop_the_start(opened, monkeypatch):
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError if path.name == "token" else FileNotFoundError

    (opened / "token").chmod(0o644)
    monkeypatch.setattr(Path, "chmod", refuse)
    monkeypatch.setattr(private_files, "_own", lambda folder: [folder / "token", folder / "logs", folder / "gone"])
    assert private_files.tighten(opened) == []


def test_doctor_reports_what_others_can_open(opened, settings):
    settings.DATA_DIR = opened
    finding = doctor.file_modes()
    assert not finding.good
    assert str(opened) in finding.text
    assert "chmod -R go=" in finding.advice
    private_files.tighten(opened)
    assert doctor.file_modes().good


def test_sqlite_gives_its_journal_the_mode_of_the_database(tmp_path):
    """The mode of the database file is therefore enough."""
    path = tmp_path / "db"
    path.touch(0o600)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        assert mode(tmp_path / "db-wal") == 0o600
