"""Experiments from before policy schema 2 can be viewed, finished and started again."""

import json
from pathlib import Path

import pytest

from controlplane.evidence.experiments.models import Arm, Experiment
from router.policy.schema import document
from router.policy.schema.parameters import PARAMETERS

pytestmark = pytest.mark.django_db
ARMS = json.loads((Path(__file__).parent / "golden/arms_of_schema_1.json").read_text())


@pytest.fixture
def old(ended) -> Experiment:
    experiment = ended()
    for run, arm in zip(experiment.runs.all(), ARMS, strict=False):
        run.arm = arm["name"]
        run.save()
    experiment.arms = ARMS[:2]
    experiment.save()
    return experiment


def test_an_old_arm_is_upgraded_and_an_upgraded_one_is_not_changed():
    arms = [Arm.stored(arm) for arm in ARMS]
    assert arms[0].strategy == "cache_aware"
    assert arms[0].overrides == {"strategy.hit_weight": 2}
    assert [Arm.stored(arm.as_dict()) for arm in arms] == arms
    assert [document.sha256(arm.document) for arm in arms] == [arm["sha256"] for arm in ARMS]


def test_the_page_shows_what_the_old_arms_ran(old, otto_client):
    page = otto_client.get(f"/experiments/{old.pk}/").content.decode()
    assert f"Cache aware; {PARAMETERS['strategy.hit_weight'].title} = 2" in page
    assert "route.hit_weight" not in page


def test_the_api_returns_old_arms_with_the_current_names(old, ci):
    arms = ci.get(f"/experiments/{old.pk}").json()["arms"]
    assert [arm["strategy"] for arm in arms] == ["cache_aware", "lpwl"]
    assert arms[0]["document"]["schema"] == 1
    assert [arm["strategy"] for arm in ci.get(f"/experiments/{old.pk}/results").json()["arms"]] == [
        "cache_aware",
        "lpwl",
    ]
