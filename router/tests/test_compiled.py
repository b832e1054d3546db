"""A compiled copy is used only if it was compiled from the installed sources."""

import importlib
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from router import compiled
from router.compiled import STAMP, CompiledCopy
from router.request_path import ROUTER

COPY = CompiledCopy("router.policy", ("not_imported_yet",))


@pytest.fixture(autouse=True)
def _imports_as_before(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delenv("WEIR_COMPILED", raising=False)


@pytest.mark.parametrize(("stamp", "is_used"), [(COPY.made_of(), True), (COPY.made_of()[::-1], False), ("", False)])
def test_only_a_copy_of_exactly_these_sources_is_used(tmp_path, stamp, is_used):
    (tmp_path / STAMP).write_text(stamp)
    assert COPY.use(tmp_path) is is_used


def test_without_a_copy_or_with_compilation_off_the_sources_run(tmp_path, monkeypatch):
    assert not COPY.use(tmp_path / "none")
    (tmp_path / STAMP).write_text(COPY.made_of())
    monkeypatch.setenv("WEIR_COMPILED", "0")
    assert not COPY.use(tmp_path)


def test_a_copy_is_not_mixed_with_sources_that_are_already_imported(tmp_path):
    importlib.import_module("router.timers")
    (tmp_path / STAMP).write_text(ROUTER.made_of())
    assert not ROUTER.use(tmp_path)
    assert not ROUTER.runs()


def test_a_copy_belongs_to_all_sources_of_its_package_but_not_to_their_tests(tmp_path):
    """A changed constant counts even in a module that is not compiled."""
    shutil.copytree(compiled.ROOT / "router" / "policy", tmp_path / "router" / "policy")
    assert COPY.made_of(tmp_path) == COPY.made_of()
    tests = tmp_path / "router" / "policy" / "tests"
    tests.mkdir()
    (tests / "test_new.py").touch()
    assert COPY.made_of(tmp_path) == COPY.made_of()
    (tmp_path / "router" / "policy" / "value.py").write_text("LIMIT = 2.0\n")
    assert COPY.made_of(tmp_path) != COPY.made_of()


def test_modules_and_their_library_are_found_in_the_copy(tmp_path):
    folder = tmp_path / "router" / "policy"
    folder.mkdir(parents=True)
    for path in (tmp_path / "abc__mypyc", folder / "decide"):
        path.with_name(path.name + EXTENSION_SUFFIXES[0]).touch()
    (tmp_path / STAMP).write_text(COPY.made_of())
    assert COPY.use(tmp_path)
    found = [sys.meta_path[0].find_spec(name, None) for name in ("abc__mypyc", "router.policy.decide", "json")]
    assert [spec and Path(spec.origin).parent for spec in found] == [tmp_path, folder, None]
