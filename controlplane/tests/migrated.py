"""A migrated SQLite database for tests: created once in a run of pytest, then copied by each of its processes."""

import atexit
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def migrated(folder: Path) -> None:
    """Copy the database into the folder as `weir.sqlite3`."""
    shutil.copy(made_once(), folder / "weir.sqlite3")


@cache
def made_once() -> Path:
    folder = _shared()
    made, half = folder / "migrated.sqlite3", folder / "half-migrated.sqlite3"
    with (folder / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            env = os.environ | {"WEIR_DATA_DIR": str(folder), "DATABASE_URL": f"sqlite://{half}"}
            argv = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
            subprocess.run(argv, cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
            with sqlite3.connect(half) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")  # a database in memory has no write-ahead log
            connection.close()
            half.rename(made)
    return made


def _shared() -> Path:
    """Return the folder of a run of pytest; in a bench, one that is removed when the process ends."""
    if shared := os.environ.get("WEIR_TEST_RUN"):
        return Path(shared)
    folder = Path(tempfile.mkdtemp(prefix="weir-migrated-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
