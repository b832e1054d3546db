"""Uploading, listing and naming traces."""

import operator

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection

from controlplane.evidence.traces import library
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.models import Trace
from controlplane.evidence.traces.tests.conftest import mooncake_line
from controlplane.people.audit.models import AuditEntry

pytestmark = pytest.mark.django_db
LINES = "\n".join(mooncake_line(timestamp=1000 * i) for i in range(3)).encode()


def upload(ci, data: bytes, name: str = "mine.jsonl", content_type: str = "application/octet-stream"):
    headers = {"Authorization": f"Bearer {ci.token}"}
    return ci._client.generic("POST", f"/api/v1/traces?name={name}", data, content_type, headers=headers)


def test_a_raw_upload_is_stored_by_its_hash_and_can_be_named(ci, data_dir):
    answer = upload(ci, LINES)
    assert answer.status_code == 201, answer.content
    assert answer.json()["summary"]["requests"] == 3
    row = Trace.objects.get()
    assert (data_dir / "traces" / row.sha256).read_bytes() == LINES
    assert len(library.load("mine.jsonl", seed=1).requests) == 3
    assert AuditEntry.objects.get(action="trace.upload").subject == "trace mine.jsonl"


def test_the_answer_and_the_page_list_the_parts_of_a_file_that_were_not_read(ci, otto_client, data_dir):
    lines = "\n".join(mooncake_line(timestamp=1000 * i, session_id=f"s{i % 2}", tools=[]) for i in range(3)).encode()
    summary = upload(ci, lines).json()["summary"]
    assert (summary["sessions"], summary["ignored"], summary["left_out"]) == (2, ["tools"], 0)
    file = SimpleUploadedFile("again.jsonl", lines + b"\n")
    page = otto_client.post("/experiments/traces/", {"file": file}, follow=True).content.decode()
    assert "Trace again.jsonl is stored. Ignored columns: tools." in page
    assert page.count("Ignored columns: tools") == 3  # the message and both rows


def test_an_older_summary_has_no_columns(ci, data_dir):
    upload(ci, LINES)
    row = Trace.objects.get()
    row.summary = {key: value for key, value in row.summary.items() if key not in ("ignored", "left_out")}
    row.save()
    assert library.entry("mine.jsonl").summary.ignored == ()


def test_curls_own_content_type_is_taken(ci, data_dir):
    assert upload(ci, LINES, content_type="application/x-www-form-urlencoded").status_code == 201


def test_an_upload_by_form_takes_its_name_from_the_file(ci, data_dir):
    file = SimpleUploadedFile("form.jsonl", LINES)
    headers = {"Authorization": f"Bearer {ci.token}"}
    answer = ci._client.post("/api/v1/traces", {"file": file}, headers=headers)
    assert (answer.status_code, answer.json()["name"]) == (201, "form.jsonl")


def test_uploading_equal_content_again_succeeds_but_other_content_is_a_conflict(ci, data_dir):
    upload(ci, LINES)
    assert upload(ci, LINES).status_code == 200
    assert upload(ci, LINES + b"\n" + mooncake_line().encode()).status_code == 409
    assert upload(ci, LINES, name="agentic-demo").status_code == 409
    assert Trace.objects.count() == 1


def test_a_bad_line_is_refused_with_line_field_value_and_range(ci, data_dir):
    answer = upload(ci, LINES + b"\n" + mooncake_line(input_length=-4).encode())
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert (fault["path"], fault["value"]) == ("line 4, input_length", "-4")
    assert "whole number from 1 to" in fault["message"]
    assert not Trace.objects.exists()


@pytest.mark.parametrize("name", ["", "..%2Fx", "a%20b", "-x", "x" * 101])
def test_an_invalid_name_is_refused(ci, data_dir, name):
    assert upload(ci, LINES, name=name).status_code == 422


def test_a_file_that_is_too_large_is_refused(ci, data_dir, monkeypatch):
    monkeypatch.setattr(registry, "MAX_BYTES", 100)
    answer = upload(ci, LINES)
    assert answer.status_code == 422
    assert "at most 100 bytes" in answer.json()["errors"][0]["message"]


def test_files_of_the_trace_folder_can_be_named_and_are_read_again_when_they_change(ci, data_dir, monkeypatch):
    folder = data_dir / "given"
    folder.mkdir()
    (folder / "day.jsonl").write_bytes(LINES)
    (folder / "notes.txt").write_text("no trace")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    monkeypatch.setenv("WEIR_TRACE_DIR", str(folder))
    listed = {row["name"]: row for row in ci.get("/traces").json()}
    assert set(listed) == {
        "agentic-demo",
        "agentic-design",
        "documents-reread",
        "prompts-8k",
        "leval",
        "loogle",
        "loogle-100k",
        "leval-documents",
        "loogle-documents",
        "day.jsonl",
    }
    assert listed["day.jsonl"]["summary"] is None
    assert ci.get("/traces/day.jsonl").json()["summary"]["requests"] == 3
    assert {row["name"]: row for row in ci.get("/traces").json()}["day.jsonl"]["summary"]["requests"] == 3
    (folder / "day.jsonl").write_bytes(LINES + b"\n" + mooncake_line(timestamp=9000).encode())
    assert ci.get("/traces/day.jsonl").json()["summary"]["requests"] == 4


def test_the_built_in_trace_has_its_figures(ci):
    answer = ci.get("/traces/agentic-demo").json()
    assert answer["source"] == "built-in"
    assert answer["summary"]["sessions"] > 100


def test_the_error_for_an_unknown_trace_lists_the_known_ones(ci):
    answer = ci.get("/traces/nothing")
    assert answer.status_code == 404
    assert "agentic-demo" in answer.json()["detail"]


def test_nothing_is_computed_while_other_writers_wait(ci, data_dir, monkeypatch):
    """SQLite has one writer: a summary inside the transaction would lock out all others."""
    outside, depths = len(connection.savepoint_ids), []
    for name in ("summarise", "registry.read"):
        original = operator.attrgetter(name)(library)

        def spy(*args, original=original, **given):
            depths.append(len(connection.savepoint_ids))
            return original(*args, **given)

        monkeypatch.setattr(f"controlplane.evidence.traces.library.{name}", spy)
    assert upload(ci, LINES).status_code == 201
    assert depths
    assert set(depths) == {outside}
