"""Run by a test as a separate process, which forks a worker for each line it reads: `prepare SECONDS` creates an
experiment, `run URL [PLACE]` runs it against an endpoint, `expire URL` expires it. At PLACE the worker stops, to be
killed there.
A worker prints its process id and its result; then the process prints `ended`.
"""

import json
import os
import signal
import sys
import traceback
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from controlplane.doors.jobs import expire  # noqa: E402
from controlplane.evidence.experiments import running, services  # noqa: E402
from controlplane.evidence.experiments.models import Run  # noqa: E402
from controlplane.evidence.experiments.modes import ephemeral_pool, replay  # noqa: E402
from controlplane.evidence.experiments.results.assemble import results_of  # noqa: E402
from controlplane.evidence.experiments.start.body import ExperimentIn  # noqa: E402
from controlplane.evidence.experiments.tests.conftest import body  # noqa: E402
from controlplane.evidence.experiments.tests.stand_in import StandIn  # noqa: E402
from controlplane.people.audit.services import Actor  # noqa: E402
from fleet import jobs  # noqa: E402
from fleet.models import Pool  # noqa: E402

# Functions at whose call the worker can stop.
PLACES: dict[str, tuple[Any, str]] = {
    "every request has its record": (replay, "performed"),
    "the run was performed": (ephemeral_pool, "tear_down"),
    "the pool was removed": (running, "end"),
    "the run has ended": (running, "results_of"),
    "the results were made": (running, "close"),
}


def prepare(seconds: str) -> dict[str, Any]:
    Pool.objects.get_or_create(name="demo", model="fake", kind="sim", replicas=2)
    asked = ExperimentIn.model_validate(body(duration_s=float(seconds), time_scale=20, arms=["round_robin"]))
    run = services.start_experiment(asked, Actor("user", "otto")).runs.get()
    return {"records": str(run.records_path)}


def play(url: str, place: str = "") -> None:
    StandIn(url).install(lambda name, value: setattr(ephemeral_pool, name, value))
    if place:
        setattr(*PLACES[place], stand)
    running.run_experiment(Run.objects.latest("pk").experiment_id)


def stand(*_: Any, **__: Any) -> None:
    print("standing", flush=True)
    signal.pause()


def look_later(url: str) -> dict[str, Any]:
    expire.step()
    play(url)
    run = Run.objects.select_related("experiment").latest("pk")
    results = results_of(run.experiment)
    return {
        "run": run.status,
        "experiment": run.experiment.status,
        "cause": run.cause,
        "done": run.done,
        "partial": results["partial"],
        "n": results["arms"][0]["classes"]["all"]["n"],
    }


def work(name: str, *words: str) -> None:
    """Do the work in a forked process. The parent has no database connection, which both would share."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        print(os.getpid(), flush=True)
        print(json.dumps({"prepare": prepare, "run": play, "expire": look_later}[name](*words)), flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    jobs.send = lambda job: None  # type: ignore[assignment]
    for line in sys.stdin:
        work(*json.loads(line))
        print("ended", flush=True)
