"""A file as a source: Prometheus' file_sd, read again when it changes, and only where files are allowed."""

import json
import os
from pathlib import Path

import pytest

from fleet.discovery.answer import SourceAway
from fleet.discovery.engine_file import LARGEST, UNTOLD, EngineFile

YAML = """
- targets: ["10.0.0.7:8000", "http://10.0.0.8:8000/"]
  labels: {llm-d.ai/role: prefill, rack: 7}
- targets: []
"""


def test_targets_and_labels_are_read_as_prometheus_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(YAML)
    first, second = EngineFile(str(path)).look()
    assert (first.url, first.name) == ("http://10.0.0.7:8000", "10.0.0.7:8000")
    assert second.url == "http://10.0.0.8:8000"
    assert first.labels == {"llm-d.ai/role": "prefill", "rack": "7"}


def test_json_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_text(json.dumps([{"targets": ["10.0.0.7:8000"]}]))
    source = EngineFile(str(path))
    assert len(source.look()) == 1
    replaced = tmp_path / "new"
    replaced.write_text(json.dumps([{"targets": ["10.0.0.7:8000", "10.0.0.9:8000"]}]))
    os.replace(replaced, path)
    assert [one.url for one in source.look()] == ["http://10.0.0.7:8000", "http://10.0.0.9:8000"]


@pytest.fixture
def allowed(tmp_path: Path, settings: object) -> None:
    settings.ALLOWED_FOLDERS = (str(tmp_path),)  # type: ignore[attr-defined]


def test_without_allowed_folders_every_unreadable_list_gets_the_same_answer(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("root:x:0:0:root")
    (tmp_path / "torn").write_text("{a: [")
    (tmp_path / "list").write_text("[{targets: [1]}]")
    (tmp_path / "binary").write_bytes(b"\x00\xff" * 20)
    (tmp_path / "huge").write_bytes(b" " * (LARGEST + 1))
    (tmp_path / "closed").write_text("[]")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    names = ("text", "torn", "list", "binary", "huge", "loop", "missing", ".", "text/below", "n" * 300)
    paths = [*(str(tmp_path / name) for name in names), "/dev/zero", "/proc/self/environ", "/root/none", "a\0b"]
    told = set()
    for path in paths:
        with pytest.raises(SourceAway) as caught:
            EngineFile(path).look()
        told.add(str(caught.value))
    assert told == {UNTOLD}


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root:x:0:0:root", "must be a list"),
        ("[{targets: [1]}]", "entry 0 of the file must be a list"),
        ("- targets: [a]\n- b", "entry 1"),
        ("[{targets: [a], labels: b}]", "entry 0"),
        ("{a: [", "neither JSON nor YAML"),
        ("", "must be a list"),
    ],
)
def test_another_kind_of_file_is_refused_without_its_content(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(SourceAway, match=words) as caught:
        EngineFile(str(path)).look()
    assert "root" not in str(caught.value)


@pytest.mark.usefixtures("allowed")
def test_a_folder_a_missing_file_and_a_huge_one_are_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "not that of a file"), (tmp_path / "no", "cannot be read")):
        with pytest.raises(SourceAway, match=words):
            EngineFile(str(path)).look()
    (tmp_path / "huge").write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(SourceAway, match="larger"):
        EngineFile(str(tmp_path / "huge")).look()


def test_a_link_does_not_lead_out_of_the_allowed_folders(tmp_path: Path, settings: object) -> None:
    settings.ALLOWED_FOLDERS = (str(tmp_path / "in"),)  # type: ignore[attr-defined]
    (tmp_path / "in").mkdir()
    (tmp_path / "outside.json").write_text('[{"targets": ["10.0.0.7:8000"]}]')
    (tmp_path / "in/link.json").symlink_to(tmp_path / "outside.json")
    for path in ("outside.json", "in/link.json", "in/../outside.json"):
        with pytest.raises(SourceAway, match="WEIR_ALLOWED_FOLDERS"):
            EngineFile(str(tmp_path / path)).look()
    (tmp_path / "in/engines.json").write_text('[{"targets": ["10.0.0.7:8000"]}]')
    assert len(EngineFile(str(tmp_path / "in/engines.json")).look()) == 1
