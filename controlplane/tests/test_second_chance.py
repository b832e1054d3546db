"""A test that passes only at its second attempt is named and counted, and the first failure's message is kept; one for
which no time is left is counted."""

import os
import subprocess
import sys
from pathlib import Path

CODE = Path(__file__).resolve().parents[2]
TESTS = """
from pathlib import Path

def once(name):
    path = Path(__file__).with_name(name)
    there = path.exists()
    path.touch()
    return there

def test_fails_at_first():
    assert once("seen")

def test_fails_always():
    assert False

def test_passes():
    assert True
"""
# They need no Redis and no Django.
WITHOUT = """
import pytest

@pytest.fixture(scope="session")
def nothing():
    pass

live_redis = static_files_are_listed_once = no_transaction_waits_for_redis = emptied_tables_stay_empty = nothing
"""


def run(folder: Path, *words: str, **more: str) -> str:
    """Run the tests of `folder` with the relevant options of the Makefile, and without other plugins."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "controlplane.testing"]
    named = {"PYTHONPATH": CODE, "WEIR_SECOND_CHANCES": folder / "list", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": 1}
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    env = alone | {name: str(value) for name, value in named.items()} | more
    done = subprocess.run(
        [*argv, "--rootdir", str(folder), *words, str(folder)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def test_a_test_that_failed_at_first_is_named_with_its_second_outcome(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(WITHOUT)
    (tmp_path / "test_some.py").write_text(TESTS)
    assert "second chances" not in run(tmp_path)
    failed = (tmp_path / "list.failed").read_text().splitlines()
    assert all("assert False" in line for line in failed)
    assert [line.partition(", call: ")[0] for line in failed] == [
        "test_some.py::test_fails_at_first",
        "test_some.py::test_fails_always",
    ]
    again = run(tmp_path, "--second-chance", "--last-failed", "--last-failed-no-failures", "none")
    wanted = ["failed again: test_some.py::test_fails_always", "passed: test_some.py::test_fails_at_first"]
    assert "second chances: 2" in again
    assert (tmp_path / "list").read_text().splitlines() == wanted
    assert all(line in again for line in wanted)
    late = run(tmp_path, "-ra", WEIR_TESTS_UNTIL="1")
    assert "SKIPPED [3]" in late
    assert "no time is left for it" in late


def test_the_make_targets_and_the_whole_run_count_them() -> None:
    assert "--second-chance --last-failed" in (CODE / "Makefile").read_text()
    whole = (CODE / ".ci" / "run").read_text()
    assert "export WEIR_SECOND_CHANCES=" in whole
    assert 'cat "$second_chances"' in whole
    assert 'cat "$second_chances.failed"' in whole
    assert "WEIR_TESTS_UNTIL=" in whole
