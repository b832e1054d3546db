"""A migrated SQLite database for tests that start processes: created once, then copied."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def migrated(folder: Path) -> None:
    """Copy the database into the folder as `weir.sqlite3`."""
    shutil.copy(_made_once(), folder / "weir.sqlite3")


@cache
def _made_once() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="weir-migrated-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "weir.sqlite3"
    env = os.environ | {"WEIR_DATA_DIR": str(folder), "DATABASE_URL": f"sqlite://{made}"}
    argv = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
    subprocess.run(argv, cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
    return made
