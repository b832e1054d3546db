"""A pool of two sim instances, a search without Optuna, and a computation in this process."""

from typing import Any

import pytest

from controlplane.evidence.previews.tests.conftest import sent as sent  # a fixture
from controlplane.evidence.previews.tests.conftest import sim_pool
from controlplane.evidence.tuning import running, search, services
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.services import RangeIn, TuningIn
from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.models import Policy
from fleet import subprocess

OTTO = Actor("user", "otto")
HEAVY = RangeIn(path="classes.heavy_new_tokens", low=8_000, high=60_000)


@pytest.fixture(autouse=True)
def without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "is_installed", lambda: False)


@pytest.fixture
def policy(db: None) -> Policy:
    policy = policy_services.ensure_default_policy({"strategy.name": "adaptive_v1"})
    sim_pool("demo")
    return policy


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes in this process."""
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take: function(job, take))


def started(policy: Policy, **changes: Any) -> Tuning:
    values = {"max_requests": 100, "trials": 3, "workers": 1, "parameters": [HEAVY], "trace": "agentic-demo"}
    return services.start(policy, OTTO, TuningIn(**{**values, **changes}))


@pytest.fixture
def done(policy: Policy, here: None, sent: list[Any]) -> Tuning:
    made = started(policy)
    running.run_tuning(made.pk)
    made.refresh_from_db()
    assert made.status == "done", made.cause
    return made
