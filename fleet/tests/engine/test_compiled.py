"""The compiled engine computes the same as its sources. router/tests/test_compiled.py tests when a copy is used."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fleet.engine.compiled import ENGINE

ROOT = Path(__file__).resolve().parents[3]
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
BUILDERS = shutil.which("cc") and HEADERS.is_file() and importlib.util.find_spec("setuptools")


def run(*words: str | Path) -> str:
    return subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not BUILDERS, reason="needs a C compiler, Python's headers and setuptools")
def test_the_compiled_engine_computes_the_same_to_the_last_digit(tmp_path: Path) -> None:
    """Chunks, shared prefixes, evictions, preemptions, aborts, tiers below the GPU, and a fit to traffic."""
    run("deploy/compile.py", "fleet.engine", tmp_path / "copy")
    asked = ("-m", "fleet.tests.engine.compiled_plays")
    plain, compiled = run(*asked).splitlines(), run(*asked, tmp_path / "copy").splitlines()
    assert (plain[0], compiled[0]) == ("False", "True")
    made = (tmp_path / "copy" / "fleet" / "engine").iterdir()
    assert {path.name.partition(".")[0] for path in made} == {*ENGINE.modules}
    assert len(plain) > 8
    assert compiled[1:] == plain[1:]
