"""The output and exit status of manage.py fleet_apply."""

import io
import json
from pathlib import Path

import pytest
from django.core.management import call_command

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.models import Pool
from fleet.tests.world import document

pytestmark = pytest.mark.usefixtures("db", "live_redis", "fake_kind")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(document(2)))
    return path


def status_of(*words: object) -> int:
    try:
        call_command("fleet_apply", *map(str, words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_document_is_applied_and_audited(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ensure_default_policy()
    assert status_of(file, "--reason", "first fleet") == 0
    assert capsys.readouterr().out == "create p: starts 2 instances\n"
    assert Pool.objects.get().replicas == 2
    entry = AuditEntry.objects.get(action="fleet.applied")
    assert (entry.actor_kind, entry.reason) == ("system", "first fleet")


def test_a_dry_run_ends_with_3_when_something_would_change(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(file, "--dry-run") == 3
    assert not Pool.objects.exists()
    status_of(file)
    capsys.readouterr()
    assert status_of(file, "--dry-run") == 0
    assert capsys.readouterr().out == "the fleet matches the document\n"


def test_a_change_lists_the_fields(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status_of(file)
    file.write_text(json.dumps(document(2, flavour=4)))
    capsys.readouterr()
    assert status_of(file) == 0
    assert "    engine.flavour: None -> 4" in capsys.readouterr().out


def test_prune_removes_pools_that_are_not_in_the_document(file: Path) -> None:
    status_of(file)
    file.write_text(json.dumps({**document(0), "spec": {"pools": []}}))
    assert status_of(file) == 0
    assert not Pool.objects.get().removed
    assert status_of(file, "--prune") == 0
    assert Pool.objects.get().removed


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: 1\na: 2", "is given twice"), ("{}", "apiVersion: must be weir/v1"), ("- [", "line 2")],
)
def test_an_invalid_document_is_refused_with_1(
    file: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert status_of(file) == 1
    assert words in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("/nowhere/fleet.yaml") == 2
    assert "/nowhere/fleet.yaml: No such file or directory" in capsys.readouterr().err


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(document(1))))
    assert status_of("-") == 0
    assert Pool.objects.get().replicas == 1
