"""Many processes write to one SQLite database at the same time: real processes, a real file, the settings of the
product."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.tests.migrated import migrated

WRITERS, TURNS = 6, 30
# Ordered reads under the lock, a claim by conditional UPDATE, a plain INSERT, and a transaction that reads before it
# writes, which SQLite refuses at once unless it requested the write lock when it began.
WRITER = f"""
import json
from django.db import transaction
from django.utils import timezone
from fleet.redis import ordered_write
from fleet.models import Instance, InstanceEvent, Pool, State
orders, claims = [], 0
for turn in range({TURNS}):
    orders.append(ordered_write.read_in_order(lambda: dict(Pool.objects.values_list("name", "model")))[0])
    claims += Instance.objects.filter(name=f"p-{{turn}}", state=State.STOPPED).update(state=State.STARTING)
    with transaction.atomic():
        replicas = Pool.objects.get().replicas
        Pool.objects.update(replicas=replicas + 1)
    InstanceEvent.objects.create(kind="note", text=str(turn), at=timezone.now(), pool="p")
print(json.dumps([orders, claims]))
"""
PREPARE = f"""
from fleet.models import Instance, Pool
pool = Pool.objects.create(name="p", model="m", kind="sim", replicas=0)
for turn in range({TURNS}):
    Instance.objects.create(pool=pool, name=f"p-{{turn}}", ordinal=turn, state="stopped")
"""
COUNT = """
from fleet.models import InstanceEvent, Pool
print(InstanceEvent.objects.filter(kind="note").count(), Pool.objects.get().replicas)
"""


@pytest.mark.slow
def test_writers_of_one_sqlite_file_wait_for_each_other_and_lose_nothing(tmp_path: Path) -> None:
    database = f"sqlite://{tmp_path / 'weir.sqlite3'}"
    env = {**os.environ, "WEIR_DATA_DIR": str(tmp_path), "DATABASE_URL": database}

    def shell(code: str) -> list[str]:
        return [sys.executable, "manage.py", "shell", "-v0", "-c", code]

    def run(*argv: str) -> str:
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout

    migrated(tmp_path)
    run(*shell(PREPARE))
    writers = [
        subprocess.Popen(shell(WRITER), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(WRITERS)
    ]
    ended = [writer.communicate(timeout=240) for writer in writers]
    assert [error for _, error in ended if "locked" in error] == []
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    found = [json.loads(output.splitlines()[-1]) for output, _ in ended]
    orders = [order for each, _ in found for order in each]
    assert len(set(orders)) == len(orders) == WRITERS * TURNS
    assert sum(claims for _, claims in found) == TURNS
    assert run(*shell(COUNT)).split() == [str(WRITERS * TURNS)] * 2
