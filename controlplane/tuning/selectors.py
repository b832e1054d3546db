"""Reading tunings: of a policy, and one as JSON."""

from typing import Any, cast

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.policies.errors import NoSuchPolicy
from controlplane.policies.models import Policy
from controlplane.previews.selectors import trace_of
from controlplane.tuning.models import Tuning
from controlplane.tuning.types import TrialView, TuningView, TuningWithTrials

NUMBER_MAX = 2**31 - 1  # for every database
_PLAIN = (
    *("live_version", "pool", "status", "done", "total", "cause", "actor", "created_at", "started_at", "ended_at"),
    *("seed", "workers", "max_requests", "limits", "result", "drafted"),
    *("objectives", "time_limit_s", "held_out"),
)


def tunings(policy: Policy) -> QuerySet[Tuning]:
    """Newest first."""
    return Tuning.objects.filter(policy=policy).select_related("policy")


def tuning(policy: Policy, number: int) -> Tuning:
    found = tunings(policy).filter(pk=number).first() if number <= NUMBER_MAX else None
    if found is None:
        raise NoSuchPolicy(f"policy {policy.name} has no tuning {number}; the newest ones are kept")
    return found


def as_dict(tuning: Tuning) -> TuningView:
    """The tuning as the API returns it, without its trials."""
    shown = ("path", "low", "high", "log", "choices")
    values: dict[str, Any] = {
        "id": tuning.pk,
        "policy": tuning.policy.name,
        **{name: getattr(tuning, name) for name in _PLAIN},
        "trace": trace_of(tuning.trace_name, tuning.trace, timezone.now()),
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
