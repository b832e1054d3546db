"""Previews over REST: who may start one, the answers at each stage, and the errors of a request."""

from typing import Any

import pytest

from controlplane.evidence.previews import policy_job, running, services
from controlplane.evidence.previews.tests.conftest import OTTO, sim_pool
from controlplane.testing import api_caller
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.models import Draft, Policy
from controlplane.traffic.policies.tests.conftest import edit
from fleet import subprocess

PREVIEWS = "/policies/default/previews"
PREVIEW = "/policies/default/draft/preview"


@pytest.fixture
def policy(db: None) -> Policy:
    return policy_services.ensure_default_policy()


@pytest.fixture
def draft(policy: Policy) -> Draft:
    sim_pool("demo")
    edit(policy, heavy_new_tokens=9000)
    return Draft.objects.select_related("policy").get(policy=policy)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the jobs that would be queued."""
    found: list[Any] = []
    monkeypatch.setattr("controlplane.celery.app.send_task", lambda name, args, queue: found.append(args))
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take: function(job, take))
    return found


def test_a_preview_goes_from_a_draft_to_a_result_in_two_calls(draft, ci, sent):
    started = ci.post(PREVIEW, {"max_requests": 40})
    assert started.status_code == 202, started.content
    made = started.json()
    assert (made["status"], made["done"], made["total"], made["result"]) == ("queued", 0, 120, None)
    assert (made["draft_revision"], made["actor"], made["pool"]) == (draft.revision, "ci (otto)", "demo")
    running.run_preview(*sent[0])
    found = ci.get(started.headers["Location"].removeprefix("/api/v1")).json()
    assert (found["id"], found["status"], found["cached"]) == (made["id"], "done", False)
    assert found["result"]["classes"]["all"]["metrics"][0]["metric"] == "ttft_p50_ms"
    assert found["trust"]


def test_the_body_of_a_preview_is_optional(draft, ci):
    assert ci.post(PREVIEW, {}).status_code == 202
    assert ci.post(PREVIEW).status_code == 202
    assert ci.post(PREVIEW).json()["seeds"] == [1]


def test_an_earlier_result_is_answered_at_once(draft, ci, sent):
    first = ci.post(PREVIEW, {"max_requests": 20})
    running.run_preview(*sent[0])
    again = ci.post(PREVIEW, {"max_requests": 20})
    assert (again.status_code, again.json()["id"], again.json()["cached"]) == (200, first.json()["id"], True)
    assert again.json()["result"]


def test_the_same_key_starts_one_preview(draft, ci, sent):
    first = ci.post(PREVIEW, {}, Idempotency_Key="k")
    edit(draft.policy, heavy_new_tokens=7000)
    assert ci.post(PREVIEW, {}, Idempotency_Key="k").json() == first.json()
    assert len(sent) == 1


def test_a_viewer_reads_and_does_not_start_or_cancel(draft, vera, ci):
    made = ci.post(PREVIEW, {}).json()
    viewer = api_caller(vera)
    assert viewer.get(f"{PREVIEWS}/{made['id']}").json()["id"] == made["id"]
    assert [row["id"] for row in viewer.get(PREVIEWS).json()] == [made["id"]]
    assert viewer.post(PREVIEW, {}).status_code == 403
    assert viewer.post(f"{PREVIEWS}/{made['id']}/cancel").status_code == 403


def test_previews_are_listed_newest_first_page_by_page(draft, ci):
    ids = [ci.post(PREVIEW, {"seeds": [seed]}).json()["id"] for seed in (1, 2, 3)]
    assert [row["id"] for row in ci.get(f"{PREVIEWS}?limit=2").json()] == [ids[2], ids[1]]
    assert [row["id"] for row in ci.get(f"{PREVIEWS}?before={ids[1]}").json()] == [ids[0]]


def test_cancelling_twice_is_reported(draft, ci):
    made = ci.post(PREVIEW, {}).json()
    cancelled = ci.post(f"{PREVIEWS}/{made['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    again = ci.post(f"{PREVIEWS}/{made['id']}/cancel")
    assert again.status_code == 409
    assert "has ended already: cancelled" in again.json()["detail"]


def test_without_a_draft_a_preview_is_a_conflict_like_publishing(policy, ci):
    answer = ci.post(PREVIEW, {})
    assert answer.status_code == 409
    assert "no open draft" in answer.json()["detail"]


def test_a_draft_saved_in_the_meantime_is_not_previewed(draft, ci):
    seen = ci.get("/policies/default/draft").headers["ETag"]
    edit(draft.policy, heavy_new_tokens=7000)
    answer = ci.post(PREVIEW, {}, If_Match=seen)
    assert answer.status_code == 412
    assert answer.json()["current"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"pool": "nope"}, "pool"),
        ({"trace": "nope"}, "trace"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [1, 2, 3, 4, 5, 6]}, "seeds"),
        ({"max_requests": 20_001}, "max_requests"),
        ({"max_requests": 0}, "max_requests"),
        ({"sedes": [1]}, "sedes"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_the_reason(draft, ci, body, path):
    answer = ci.post(PREVIEW, body)
    assert answer.status_code == 422, answer.content
    assert path in {fault["path"] for fault in answer.json()["errors"]}


def test_a_missing_object_is_not_found(policy, ci):
    assert ci.post("/policies/nope/draft/preview", {}).status_code == 404
    assert ci.get("/policies/nope/previews").status_code == 404
    assert ci.get(f"{PREVIEWS}/77").status_code == 404
    assert ci.post(f"{PREVIEWS}/77/cancel").status_code == 404


def test_a_preview_of_engines_without_a_model_fails_and_says_what_to_do(draft, ci, sent):
    sim_pool("real", kind="vllm", model="m")
    made = ci.post(PREVIEW, {"pool": "real"})
    assert (made.status_code, made.json()["status"]) == (202, "failed")
    assert made.json()["trust"][0]["code"] == "not_modelled"
    assert policy_job.cancel(services.Preview.objects.get(), OTTO) is False
    assert sent == []


def test_the_reference_lists_the_possible_inputs(vera_client):
    page = vera_client.get("/api/v1/docs").content.decode()
    assert "At most this many requests: the newest of a recording, the first of another trace" in page
