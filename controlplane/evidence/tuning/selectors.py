"""A tuning as JSON."""

from typing import Any, cast

from django.utils import timezone

from controlplane.evidence.previews.policy_job import trace_of
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.types import TrialView, TuningView, TuningWithTrials

_PLAIN = (
    *("live_version", "pool", "status", "done", "total", "cause", "actor", "created_at", "started_at", "ended_at"),
    *("seed", "workers", "max_requests", "limits", "result", "drafted"),
    *("objectives", "time_limit_s", "held_out"),
)


def as_dict(tuning: Tuning) -> TuningView:
    """Return the tuning as the API does, without its trials."""
    shown = ("path", "low", "high", "log", "choices")
    values: dict[str, Any] = {
        "id": tuning.pk,
        "policy": tuning.policy.name,
        **{name: getattr(tuning, name) for name in _PLAIN},
        "trace": trace_of(tuning, timezone.now()),
        "twin": {"basis": "", "about": "", "expected": None, **tuning.twin},
        "parameters": [
            {"step": each.get("step") or None, **{name: each[name] for name in shown}} for each in tuning.space
        ],
    }
    return cast(TuningView, values)


def with_trials(tuning: Tuning) -> TuningWithTrials:
    trials = tuning.trials.values("number", "values", "goals")
    return {
        **as_dict(tuning),
        "trials": [
            cast(TrialView, {"number": each["number"], "values": each["values"], **each["goals"]}) for each in trials
        ],
    }
