"""A migrated SQLite database for tests: created once in a run of pytest, then copied by each of its processes."""

import atexit
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def migrated(folder: Path) -> None:
    """Copy the database into the folder as `weir.sqlite3`."""
    shutil.copy(_made_once(), folder / "weir.sqlite3")


def fill(memory: sqlite3.Connection, migrate: Callable[[], object]) -> None:
    """Fill a database in memory: by a copy, or by `migrate`, of which other processes then take a copy."""
    with _alone() as (made, half):
        if made.exists():
            with closing(sqlite3.connect(made)) as file:
                file.backup(memory)
        else:
            migrate()
            with closing(sqlite3.connect(half)) as file:
                memory.backup(file)
            half.rename(made)


@cache
def _made_once() -> Path:
    with _alone() as (made, half):
        if not made.exists():
            env = os.environ | {"WEIR_DATA_DIR": str(half.parent), "DATABASE_URL": f"sqlite://{half}"}
            argv = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
            subprocess.run(argv, cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
            with closing(sqlite3.connect(half)) as file:
                file.execute("PRAGMA journal_mode=DELETE")  # a database in memory has no write-ahead log
            half.rename(made)
    return made


@contextmanager
def _alone() -> Iterator[tuple[Path, Path]]:
    """Yield the paths of the database and of one in the making, while no other process of the run makes one."""
    folder = _shared()
    with (folder / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "migrated.sqlite3", folder / "half-migrated.sqlite3"


@cache
def _shared() -> Path:
    """Return the folder of a run of pytest; in a bench, one that is removed when the process ends."""
    if shared := os.environ.get("WEIR_TEST_RUN"):
        return Path(shared)
    folder = Path(tempfile.mkdtemp(prefix="weir-migrated-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
