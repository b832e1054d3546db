"""The compiled engine: used where it was made of these sources, and equal to them."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fleet.engine.compiled import MODULES, STAMP, made_of, use_compiled

ROOT = Path(__file__).resolve().parents[3]
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
BUILDERS = shutil.which("cc") and HEADERS.is_file() and importlib.util.find_spec("setuptools")
ASK = "import sys; from pathlib import Path; from fleet.engine.compiled import use_compiled; "


def run(*words: str | Path) -> str:
    return subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not BUILDERS, reason="needs a C compiler, Python's headers and setuptools")
def test_the_compiled_engine_computes_the_same_to_the_last_digit(tmp_path: Path) -> None:
    """Chunks, shared prefixes, evictions, preemptions, aborts, tiers below the GPU, and a fit to traffic."""
    run("deploy/compile_engine.py", tmp_path / "copy")
    asked = ("-m", "fleet.tests.engine.compiled_plays")
    plain, compiled = run(*asked).splitlines(), run(*asked, tmp_path / "copy").splitlines()
    assert compiled[0] == str(tmp_path / "copy" / "fleet" / "engine")
    assert {path.name.partition(".")[0] for path in Path(compiled[0]).iterdir()} == {*MODULES}
    assert len(plain) > 8
    assert compiled[1:] == plain[1:]


@pytest.mark.parametrize(("stamp", "is_used"), [(made_of(), True), (made_of()[::-1], False), ("", False)])
def test_only_a_copy_of_these_very_sources_is_used(tmp_path: Path, stamp: str, is_used: bool) -> None:
    (tmp_path / STAMP).write_text(stamp)
    assert run("-c", f"{ASK}print(use_compiled(Path(sys.argv[1])))", tmp_path) == f"{is_used}\n"


def test_without_a_copy_the_sources_are_run(tmp_path: Path) -> None:
    assert run("-c", f"{ASK}print(use_compiled(Path(sys.argv[1])))", tmp_path / "none") == "False\n"


def test_a_copy_is_not_mixed_with_sources_that_are_imported_already(tmp_path: Path) -> None:
    (tmp_path / STAMP).write_text(made_of())
    importlib.import_module("fleet.engine.engine")
    assert not use_compiled(tmp_path)
    assert str(tmp_path) not in sys.path


def test_the_copy_belongs_to_its_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed constant of a module that is not compiled counts, too."""
    shutil.copytree(ROOT / "fleet" / "engine", tmp_path / "engine")
    monkeypatch.setattr("fleet.engine.compiled.SOURCES", tmp_path / "engine")
    before = made_of()
    (tmp_path / "engine" / "power.py").write_text("WINDOW_S = 2.0\n")
    assert made_of() != before
