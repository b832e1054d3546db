"""The prerequisites of an engine's start on a host, and the message for a missing one."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from fleet.kinds.kind import Requirement
from fleet.node import prerequisites
from fleet.node.prerequisites import Prerequisite, check


def look(*requires: Requirement, **ports: int) -> list[Prerequisite]:
    return [found for found in check(requires, ports) if found.subject != "open files"]


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def test_a_program_is_located_in_path_or_by_its_full_path() -> None:
    there, gone = look(Requirement("program", "sh"), Requirement("program", "/no/such", advice="install it"))
    assert there.good
    assert gone == Prerequisite("/no/such", False, "not found, or not executable", "install it")


def test_modules_are_searched_for_in_the_engines_own_python() -> None:
    found = look(Requirement("module", "json", sys.executable), Requirement("module", "no_such", sys.executable))
    assert [one.good for one in found] == [True, False]
    assert found[1].text == f"not installed in {sys.executable}"


@pytest.mark.parametrize(("text", "words"), [("echo no json", "could not be run"), ("sleep 30", "did not answer")])
def test_an_interpreter_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(prerequisites, "ASK_S", 1.0 if "sleep" in text else 20.0)
    (found,) = look(Requirement("module", "vllm", script(tmp_path, text)))
    assert words in found.text


def test_free_gpu_memory_is_reported_if_it_is_visible(tmp_path: Path) -> None:
    python = script(tmp_path, """echo '{"modules": {}, "gpus": {"0": 2000000000}}'""")
    fits, small, gone = look(
        Requirement("gpu", "0", python, need_gb=1),
        Requirement("gpu", "0", python, need_gb=9),
        Requirement("gpu", "1", python),
    )
    assert (fits.good, fits.text) == (True, "2.0 GB free")
    assert not small.good
    assert (gone.good, gone.text) == (False, "not found; present: 0")


def test_an_invisible_gpu_is_not_an_error(tmp_path: Path) -> None:
    python = script(tmp_path, """echo '{"modules": {}, "gpus": {"error": "no library"}}'""")
    (found,) = look(Requirement("gpu", "0", python))
    assert (found.good, found.text) == (True, "not checked: no library")


def test_a_folder_must_have_space_even_before_it_exists(tmp_path: Path) -> None:
    folder = str(tmp_path / "not" / "yet")
    fits, large, there, gone = look(
        Requirement("folder", folder, need_gb=0.001),
        Requirement("folder", folder, need_gb=1e9, advice="free space"),
        Requirement("folder", str(tmp_path)),
        Requirement("folder", folder),
    )
    assert [one.good for one in (fits, large, there, gone)] == [True, False, True, False]
    assert large.text.endswith("GB free, 1e+09 needed")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_must_be_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (found,) = look(Requirement("folder", str(tmp_path / "kv"), need_gb=0.001))
    assert found.text == f"{tmp_path} cannot be written"


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        (found,) = look(http=port)
    assert (found.subject, found.good, found.text) == (f"port http {port}", False, "in use")


def test_the_limit_of_open_files_is_always_checked() -> None:
    assert check((), {})[0].subject == "open files"
