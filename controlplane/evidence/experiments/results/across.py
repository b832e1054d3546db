"""Compares arms of different experiments that played the same load."""

import copy
from collections.abc import Sequence

from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.results.assemble import make
from controlplane.evidence.experiments.results.types import ExperimentResults
from fleet.jobs import DONE, ENDED
from router.contract.values.problem import invalid

MOST = 6  # arms that can be distinguished in a chart


def chosen(asked: Sequence[str]) -> list[tuple[Experiment, str]]:
    """Return the arms named by texts such as 12:lpwl. Raise InvalidInput."""
    if not 2 <= len(set(asked)) == len(asked) <= MOST:
        raise invalid("arm", ", ".join(asked), "different arms, each as EXPERIMENT:ARM", f"2 to {MOST}")
    found = [_chosen(text, index) for index, text in enumerate(asked)]
    loads = [_load(experiment) for experiment, _ in found]
    for index, load in enumerate(loads):
        if load is None or load != loads[0]:
            message = "played another load than the first: trace, window, load factor and pacing must be equal"
            raise invalid(f"arm.{index}", asked[index], message)
    return found


def _chosen(text: str, index: int) -> tuple[Experiment, str]:
    number, _, arm = text.partition(":")
    rows = (
        Experiment.objects.filter(pk=int(number))
        if number.isdigit() and len(number) < 10
        else Experiment.objects.none()
    )
    experiment = rows.prefetch_related("runs").first()
    if experiment is None or arm not in {each.name for each in experiment.settled_arms}:
        raise invalid(f"arm.{index}", text, "there is no such experiment with such an arm")
    if experiment.status not in ENDED:
        raise invalid(f"arm.{index}", text, f"experiment {number} is {experiment.status}")
    return experiment, arm


def _load(experiment: Experiment) -> tuple[str, float, float, str] | None:
    """Return the load that was played, without the seeds, because only seeds common to both are paired."""
    record = provenance.record_of(experiment)
    if record is None:
        return None
    played = record.selection
    return record.trace.sha256, played.duration_s, played.load_factor, played.pacing


def compared(arms: Sequence[tuple[Experiment, str]]) -> tuple[Experiment, ExperimentResults]:
    """Return (an unsaved experiment with these arms, its results)."""
    first = arms[0][0]
    whole = Experiment(name="Comparison", status=DONE, mode=first.mode, time_scale=first.time_scale, slo=first.slo)
    whole.trace, whole.arms, whole.seeds = first.trace, [], first.seeds
    whole.record = {**first.record, "arms": {}, "fleets": {}}
    runs: list[Run] = []
    for experiment, name in arms:
        label = f"{experiment.pk}: {name}"
        arm = next(arm for arm in experiment.settled_arms if arm.name == name)
        whole.arms.append({**arm.as_dict(), "name": label})
        whole.record["arms"][label] = experiment.record["arms"][name]
        whole.record["fleets"] |= experiment.record["fleets"]
        for run in experiment.runs.all():
            if run.arm == name:
                renamed = copy.copy(run)
                renamed.arm = label
                runs.append(renamed)
    results = make(whole, runs)
    if len({experiment.mode for experiment, _ in arms}) > 1:
        results["warnings"].insert(0, "some arms are simulated in the twin and others were replayed")
    return whole, results


def candidates(like: Experiment, limit: int = 200) -> list[str]:
    """Return arms that can be compared with those of an experiment, newest first."""
    load = _load(like)
    rows = Experiment.objects.filter(status__in=ENDED, trace=like.trace).order_by("-pk").defer("summary")[:limit]
    return [f"{row.pk}:{arm['name']}" for row in rows if load and _load(row) == load for arm in row.arms]
