"""Makes profiles from the measured kernel tables of aiconfigurator-core, in a child process."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fleet.engine.tables import Tables
from fleet.profiling.fit import Layout, tables_of

PACKAGE = "aiconfigurator-core"
TIMEOUT_S = 120.0
_CHILD = Path(__file__).with_name("sample_tables.py")
MISSING = (
    f"{PACKAGE} is not installed: in Weir's folder .venv/bin/pip install --require-hashes -r "
    "requirements-profiles.txt, or set WEIR_PROFILES_PYTHON"
)
_ASK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('aiconfigurator_core') is None)"


class NotMade(Exception):
    """Raised if no profile can be made here; the message says why."""


def python() -> str:
    """Return the interpreter that has the library: WEIR_PROFILES_PYTHON, or this one."""
    return os.environ.get("WEIR_PROFILES_PYTHON") or sys.executable


def is_installed() -> bool:
    if python() == sys.executable:
        return importlib.util.find_spec("aiconfigurator_core") is not None
    try:
        return subprocess.run([python(), "-c", _ASK], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def from_tables(layout: Layout) -> Tables:
    """Build the tables of one layout, which takes some seconds. Raise NotMade, or LookupError with the reason if the
    layout is unknown."""
    found = make_all([layout])[0]
    if isinstance(found, str):
        raise LookupError(found)
    return found


def make_all(layouts: Sequence[Layout], timeout_s: float = TIMEOUT_S) -> list[Tables | str]:
    """Build the tables in the order of the layouts; where there is no table, a text says why. Raise NotMade without the
    library.
    """
    if not is_installed():
        raise NotMade(MISSING)
    asked = b"\n".join(map(msgspec.json.encode, layouts))
    path = {name: value for name, value in os.environ.items() if name == "PATH"}  # without Weir's secrets
    environment = {**path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [python(), "-P", str(_CHILD)],
            input=asked,
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMade(f"the tables did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NotMade(f"{python()} cannot be started: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NotMade(f"{PACKAGE} failed: {said[-1] if said else 'it said nothing'}")
    answers = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    return [
        answer["error"] if "error" in answer else tables_of(layout, answer)
        for layout, answer in zip(layouts, answers, strict=True)
    ]
