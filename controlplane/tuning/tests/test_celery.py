"""A tuning as it runs: Optuna in a subprocess of a Celery worker, and `kill -9` of that worker."""

import json

import pytest

from controlplane.previews.tests.test_celery import Running, command_line, running  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TABLE = "tuning_tuning"

START = """
from controlplane.policies import selectors
from controlplane.tuning import services
from controlplane.tuning.tests.conftest import HEAVY, OTTO
asked = services.Asked(trace="agentic-demo", parameters=[HEAVY], max_requests=400, trials={trials})
print(services.start(selectors.policy("default"), OTTO, asked).pk)
"""
LOOK = """
import json
from controlplane.tuning.models import Tuning
one = Tuning.objects.get(pk={number})
print(json.dumps([list(one.trials.values_list("number", flat=True)), one.result]))
"""


def test_a_killed_worker_keeps_its_trials_and_the_next_tuning_ends_with_winners(running: Running) -> None:  # noqa: F811
    pytest.importorskip("optuna")

    def start(trials: int) -> int:
        return int(running.manage("shell", "-c", START.format(trials=trials)).splitlines()[-1])

    def look(number: int) -> list:
        return json.loads(running.manage("shell", "-c", LOOK.format(number=number)).splitlines()[-1])

    killed = start(500)
    running.until(lambda: running.row(killed, TABLE)[2] >= 2, "it makes progress")
    computing = running.computing()
    running.kill_worker()
    running.until(lambda: not any(command_line(pid) for pid in computing), "its process ends")
    running.start_worker()
    running.until(lambda: running.row(killed, TABLE)[0] == "failed", "it is told to have failed")
    _, cause, done, _ = running.row(killed, TABLE)
    trials, result = look(killed)
    assert "worker lost" in cause
    assert (trials, result) == (list(range(1, len(trials) + 1)), None)
    assert len(trials) in (done - 1, done)  # killed between the two writes
    ended = start(4)
    running.until(lambda: running.row(ended, TABLE)[0] not in ("queued", "running"), "it ends")
    assert running.row(ended, TABLE) == ("done", "", 4, 4)
    trials, result = look(ended)
    assert trials == [1, 2, 3, 4]
    assert result["winners"][0]["check"]["n"] == 120
