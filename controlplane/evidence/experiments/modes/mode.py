"""The mode of an experiment: performs, checks, estimates and describes runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.evidence.experiments.models import Arm, Experiment, FleetChanges, Run
from controlplane.evidence.experiments.results.types import WholeRunResults
from fleet.jobs import Heartbeat
from fleet.models import Pool
from router.contract.values.problem import Problem


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of runs."""

    title: str
    text: Callable[[Run], str]


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    title: str  # title in the form
    badge: str  # badge on each of its pages; empty if times are measured
    scales_time: bool  # True if engines can run faster than real time
    perform: Callable[[Run, Experiment, Arm, Heartbeat], None]  # performs a run; may raise RunFailed, jobs.Stopped
    check: Callable[[Pool, float], list[Problem]]  # checks a pool and a time scale before an experiment starts
    # Checks a pool that an arm changes: the pool, the changes, the path of the changes
    check_fleet: Callable[[Pool, FleetChanges, str], list[Problem]]
    simulated: bool  # True if a record of the experiment contains models of its engines
    eta_s: Callable[[Experiment, Sequence[Run], datetime], float | None]
    warnings: Callable[[Run, WholeRunResults], list[str]]  # warnings about a run and its results
    time: Callable[[Experiment], str]  # clock of its latencies
    about: Callable[[Experiment], dict[str, str]]  # describes the clock of its latencies
    columns: tuple[Column, ...]
    columns_note: str
