"""Starting an experiment over REST: accepted bodies, and the report on each invalid field."""

import pytest

from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.tests.conftest import body
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import api_caller

pytestmark = pytest.mark.django_db


def faults(answer) -> dict[str, str]:
    assert answer.status_code == 422, answer.content
    assert answer.headers["Content-Type"] == "application/problem+json"
    return {error["path"]: error["message"] for error in answer.json()["errors"]}


def test_an_operators_token_starts_an_experiment_and_its_task_is_queued(ci, demo_pool, sent):
    answer = ci.post("/experiments", body())
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert made["status"] == "queued"
    assert made["pacing"] == "closed_loop"
    assert [(run["arm"], run["seed"]) for run in made["runs"]] == [("round_robin", 1), ("adaptive_v1", 1)]
    assert sent == [("experiments.run", [made["id"]], "experiments")]
    assert answer.headers["Location"] == f"/api/v1/experiments/{made['id']}"
    assert AuditEntry.objects.get(action="experiment.start").actor_name == made["actor"]


def test_the_same_idempotency_key_starts_one_experiment(ci, demo_pool, sent):
    first = ci.post("/experiments", body(), Idempotency_Key="k1")
    again = ci.post("/experiments", body(), Idempotency_Key="k1")
    assert first.json()["id"] == again.json()["id"]
    assert Experiment.objects.count() == len(sent) == 1


def test_a_viewer_cannot_start_one(vera, demo_pool, sent):
    assert api_caller(vera).post("/experiments", body()).status_code == 403
    assert not sent


@pytest.mark.parametrize(
    ("changes", "path", "allowed"),
    [
        ({"time_scale": 1000}, "time_scale", "number from 0.1 to 100"),
        ({"load_factor": 0}, "load_factor", "number from 0.05 to 20"),
        ({"duration_s": "long"}, "duration_s", "number from 1 to 86,400"),
        ({"seeds": []}, "seeds", "at least 1"),
        ({"seeds": [1, 1]}, "seeds", "each seed may occur once"),
        ({"seeds": [-1]}, "seeds.0", "whole number from 0 to"),
        ({"seeds": [1.5]}, "seeds.0", "whole number"),
        ({"mode": "live"}, "mode", "twin"),
        ({"pacing": "fast"}, "pacing", "closed_loop"),
        ({"colour": "red"}, "colour", "unknown field"),
        ({"name": ""}, "name", "a length of at least 1"),
        ({"arms": []}, "arms", "at least 1"),
        ({"arms": ["round_robin"] * 7}, "arms", "at most 6"),
        ({"trace": "nowhere.jsonl"}, "trace", "known traces: agentic-demo"),
        ({"trace": "../../etc/passwd"}, "trace", "there is no trace"),
        ({"pool": "prod"}, "pool", "there are demo, real"),
        ({"pool": "real"}, "time_scale", "allowed: 1"),
        ({"arms": ["fastest"]}, "arms.0", "strategies are round_robin"),
        ({"arms": ["default@99"]}, "arms.0", "no version 99"),
        ({"arms": ["default@new"]}, "arms.0", "the number of a version, or live"),
        ({"arms": ["round_robin", "round_robin"]}, "arms.1.name", "a different name"),
        ({"arms": [{"strategy": "lpwl", "policy": "default"}]}, "arms.0", "a policy, or a strategy"),
        (
            {"arms": [{"strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": 10}}]},
            "arms.0.overrides.classes.heavy_new_tokens",
            "",
        ),
        ({"expect": [{"metric": "speed", "max": 1}]}, "expect.0.metric", "ttft_p90_ms"),
        ({"expect": [{"metric": "ttft_p90_ms"}]}, "expect.0.max", "a min, a max, or both"),
        ({"expect": [{"metric": "ttft_p90_ms", "max": 1, "arm": "x"}]}, "expect.0.arm", "adaptive_v1, round_robin"),
        ({"seeds": list(range(20)), "arms": ["round_robin", "lpwl", "adaptive_v1", "cache_aware"]}, "seeds", "60"),
    ],
)
def test_an_invalid_field_is_reported_with_its_path_and_what_is_allowed(
    ci, demo_pool, sent, default_policy, changes, path, allowed
):
    found = faults(ci.post("/experiments", body(**changes)))
    assert allowed in found[path], found
    assert not Experiment.objects.exists()
    assert not sent


@pytest.fixture
def default_policy(live_redis):
    from controlplane.traffic.policies.services import ensure_default_policy

    return ensure_default_policy()


def test_all_problems_are_reported_at_once(ci, demo_pool, sent):
    found = faults(ci.post("/experiments", body(trace="nowhere", pool="prod", arms=["fastest"])))
    assert set(found) == {"trace", "pool", "arms.0"}


def test_arms_are_strategies_versions_and_changes_of_them(ci, demo_pool, sent, default_policy):
    arms = [
        "round_robin",
        "default@1",
        "default",
        {"name": "T10k", "policy": "default", "overrides": {"classes.heavy_new_tokens": 10000}},
        {"strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": 40000}},
    ]
    answer = ci.post("/experiments", body(arms=arms[:2] + arms[3:]))
    assert answer.status_code == 201, answer.content
    made = answer.json()["arms"]
    assert [arm["name"] for arm in made] == ["round_robin", "default@1", "T10k", "adaptive_v1 heavy_new_tokens=40000"]
    assert [arm["version"] for arm in made] == [0, 1, 1, 0]
    assert made[2]["document"]["classes"]["heavy_new_tokens"] == 10000


def test_an_arm_with_only_changes_applies_them_to_the_pools_policy(ci, demo_pool, sent, default_policy):
    arms = [{"overrides": {"classes.heavy_new_tokens": 10000}}, {"name": "as it is", "version": 1}]
    answer = ci.post("/experiments", body(arms=arms))
    assert answer.status_code == 201, answer.content
    made = answer.json()["arms"]
    assert [(arm["name"], arm["policy"], arm["version"]) for arm in made] == [
        ("default@1 heavy_new_tokens=10000", "default", 1),
        ("as it is", "default", 1),
    ]
    assert made[0]["document"]["classes"]["heavy_new_tokens"] == 10000


def test_a_closed_loop_needs_a_trace_with_sessions(ci, demo_pool, sent, data_dir):
    from controlplane.evidence.traces.tests.conftest import mooncake_line

    upload = ci._client.generic(
        "POST",
        "/api/v1/traces?name=flat.jsonl",
        data=mooncake_line().encode(),
        content_type="application/octet-stream",
        headers={"Authorization": f"Bearer {ci.token}"},
    )
    assert upload.status_code == 201, upload.content
    found = faults(ci.post("/experiments", body(trace="flat.jsonl", pacing="closed_loop")))
    assert "has no sessions" in found["pacing"]
    assert ci.post("/experiments", body(trace="flat.jsonl")).json()["pacing"] == "timestamps"


def test_cancelling_a_queued_experiment_ends_it_at_once(ci, demo_pool, sent):
    number = ci.post("/experiments", body()).json()["id"]
    answer = ci.post(f"/experiments/{number}/cancel")
    assert answer.status_code == 200, answer.content
    assert answer.json()["status"] == "cancelled"
    assert {run["status"] for run in answer.json()["runs"]} == {"cancelled"}
    assert "cancelled by" in answer.json()["cause"]
    assert ci.post(f"/experiments/{number}/cancel").status_code == 409
