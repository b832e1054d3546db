"""Creates and reads the record of an experiment."""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from typing import cast

import msgspec
from django.conf import settings

from controlplane.evidence.experiments.models import Arm, Experiment, Run
from controlplane.evidence.experiments.record import (
    ExperimentRecord,
    HostFacts,
    Product,
    RecordedArm,
    RecordedFleet,
    RecordedTrace,
    Selection,
)
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.traces import library
from controlplane.evidence.twin.fingerprint import source_sha256
from fleet.models import Instance, Node, Pool
from fleet.spec.masking import shown
from router.contract.installation import VERSION
from router.contract.values.json_value import JsonObject
from router.contract.values.reading import read_value

SCHEMA = 1


# Identifies the Weir that performs an experiment: version, commit, hash of the source


@cache
def product() -> Product:
    return Product(VERSION, _commit(), source_sha256(), platform.python_version())


def _commit() -> str:
    git = shutil.which("git")
    if git is None or not (settings.BASE_DIR / ".git").exists():
        return ""
    ask = [git, "-C", str(settings.BASE_DIR), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip()


def settle(
    selection: Selection, trace: str, arms: Sequence[Arm], pools: Mapping[str, Pool], *, simulated: bool
) -> ExperimentRecord:
    """Create the record of a new experiment. `pools` are by arm. Raise NotModelled, TraceError, BadTrace."""
    taken = {arm.name: fleets.snapshot(pools[arm.name], arm.fleet, simulated=simulated) for arm in arms}
    keys = {name: fleets.sha256(stored(fleet)) for name, fleet in taken.items()}
    return ExperimentRecord(
        schema=SCHEMA,
        product=product(),
        trace=RecordedTrace(trace, library.sha256(trace)),
        selection=selection,
        arms={arm.name: RecordedArm(arm.sha256, arm.document.get("schema"), keys[arm.name]) for arm in arms},
        fleets={keys[name]: fleet for name, fleet in taken.items()},
        repeats=None,
    )


def stored(value: msgspec.Struct) -> JsonObject:
    return cast(JsonObject, fleets.plain(msgspec.to_builtins(value)))


def record_of(experiment: Experiment) -> ExperimentRecord | None:
    """Return the record; None for an experiment from before records existed."""
    # Not strict, because infinity is stored as text.
    return read_value(experiment.record, ExperimentRecord, strict=False) if experiment.record else None


def fleet_of(experiment: Experiment, arm: str) -> RecordedFleet | None:
    """Return an arm's recorded fleet; None for an experiment from before records existed."""
    record = record_of(experiment)
    return record.fleets[record.arms[arm].fleet] if record else None


def changed_trace(trace: RecordedTrace) -> str:
    """Return why the recorded trace can no longer be played; empty if it is unchanged."""
    if library.sha256(trace.name) == trace.sha256:
        return ""
    return f"trace {trace.name} has changed since: its sha256 was {trace.sha256[:16]}…"


def host() -> HostFacts:
    """Describe this host, which affects the times of a replay."""
    return HostFacts(
        name=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=_processor(),
        cpus=len(os.sched_getaffinity(0)),
        load_1m=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return ""


def nodes(pool: Pool) -> JsonObject:
    """Return the known facts of the hosts of the pool's instances."""
    names = set(Instance.objects.filter(pool__name=pool.name).values_list("node", flat=True))
    return {node.name: node.inventory for node in Node.objects.filter(name__in=names)}


def records_sha256(run: Run) -> str:
    """Return the SHA-256 of the run's records; empty without records."""
    try:
        return hashlib.sha256(run.records_path.read_bytes()).hexdigest()
    except OSError:
        return ""


def differences(experiment: Experiment) -> list[str]:
    """Return warnings about how a repetition differs from the experiment that it repeats."""
    record = record_of(experiment)
    before = record.repeats if record else None
    if record is None or before is None or before.product == record.product:
        return []
    was, now = msgspec.structs.asdict(before.product), msgspec.structs.asdict(record.product)
    names = ", ".join(f"{name} {was[name] or '–'}, now {now[name] or '–'}" for name in now if was[name] != now[name])
    return [f"the product has changed since experiment {before.id}, which this one repeats: {names}"]


def whole(experiment: Experiment) -> JsonObject:
    """Return the record for readers: with the runs, without the engines' secrets."""
    runs = [
        {"id": run.pk, "arm": run.arm, "seed": run.seed, "status": run.status, "facts": run.facts}
        for run in experiment.runs.all()
    ]
    arms = [arm.as_dict() for arm in experiment.settled_arms]
    found: JsonObject = shown({"experiment": experiment.pk, **experiment.record, "documents": arms, "runs": runs})
    return found
