"""Run by a test as a process of its own: `prepare` an experiment, `run` it against an endpoint, or `expire`."""

import json
import os
import sys
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from controlplane.audit.services import Actor  # noqa: E402
from controlplane.experiments import running, services  # noqa: E402
from controlplane.experiments.models import Run  # noqa: E402
from controlplane.experiments.modes import ephemeral_pool  # noqa: E402
from controlplane.experiments.results.assemble import results_of  # noqa: E402
from controlplane.experiments.start.body import ExperimentIn  # noqa: E402
from controlplane.experiments.tests.conftest import body  # noqa: E402
from controlplane.experiments.tests.stand_in import StandIn  # noqa: E402
from controlplane.jobs import expire  # noqa: E402
from fleet import jobs  # noqa: E402
from fleet.models import Pool  # noqa: E402


def prepare() -> dict[str, Any]:
    Pool.objects.create(name="demo", model="fake", kind="sim", replicas=2)
    jobs.send = lambda job: None  # type: ignore[assignment]
    asked = ExperimentIn.model_validate(body(duration_s=600, time_scale=20, arms=["round_robin"]))
    run = services.start_experiment(asked, Actor("user", "otto")).runs.get()
    return {"records": str(run.records_path)}


def play(url: str) -> None:
    StandIn(url).install(lambda name, value: setattr(ephemeral_pool, name, value))
    running.run_experiment(Run.objects.get().experiment_id)


def look_later() -> dict[str, Any]:
    expire.step()
    run = Run.objects.select_related("experiment").get()
    results = results_of(run.experiment)
    return {
        "run": run.status,
        "experiment": run.experiment.status,
        "cause": run.cause,
        "done": run.done,
        "partial": results["partial"],
        "n": results["arms"][0]["classes"]["all"]["n"],
    }


if __name__ == "__main__":
    found = play(sys.argv[2]) if sys.argv[1] == "run" else {"prepare": prepare, "expire": look_later}[sys.argv[1]]()
    print(json.dumps(found))
