"""The fleet over REST, as scripts of operators use it."""

import json
from typing import Any

import pytest
import yaml
from django.test import Client

from controlplane.people.audit.models import AuditEntry
from fleet import services
from fleet.models import Pool, State
from fleet.tests.world import World, document

JSON = "application/json"
YAML = "application/yaml"


@pytest.fixture
def empty(db: None, fake_kind: None, live_redis: object) -> None:
    """A fleet without pools."""


def put(client: Client, body: Any, query: str = "", kind: str = JSON, **headers: str) -> Any:
    data = body if isinstance(body, str) else json.dumps(body)
    return client.put(f"/api/v1/fleet{query}", data, content_type=kind, headers=headers)


def test_a_document_in_yaml_becomes_the_fleet(operator: Client, empty: None) -> None:
    answer = put(operator, yaml.safe_dump(document(3)), kind=YAML)
    assert answer.status_code == 200, answer.content
    assert answer.json()["changes"] == [{"kind": "create", "pool": "p", "effect": "starts 3 instances", "fields": []}]
    assert Pool.objects.get().replicas == 3


def test_a_dry_run_reports_changes_and_makes_none(operator: Client, empty: None) -> None:
    put(operator, document(1))
    answer = put(operator, document(2), "?dry_run=true").json()
    assert answer["drift"] is True
    assert answer["changes"][0]["fields"] == [{"path": "replicas", "old": 1, "new": 2}]
    assert Pool.objects.get().replicas == 1


def test_a_document_can_be_read_and_written_back_in_both_formats(operator: Client, empty: None) -> None:
    put(operator, document(2, flavour=3))
    as_json = operator.get("/api/v1/fleet")
    as_yaml = operator.get("/api/v1/fleet", headers={"accept": YAML})
    assert yaml.safe_load(as_yaml.content) == as_json.json()
    assert as_yaml.headers["ETag"] == as_json.headers["ETag"]
    assert put(operator, as_yaml.content.decode(), kind=YAML).json()["drift"] is False


def test_a_fleet_that_has_changed_since_it_was_read_is_not_overwritten(operator: Client, empty: None) -> None:
    old = operator.get("/api/v1/fleet").headers["ETag"]
    put(operator, document(1))
    answer = put(operator, document(5), **{"If-Match": old})
    assert answer.status_code == 412
    current = answer.json()["current"]
    assert put(operator, document(5), **{"If-Match": current}).status_code == 200


def test_every_problem_is_listed_with_path_and_value(operator: Client, empty: None) -> None:
    wrong = document(-1, flavor=3)
    wrong["spec"]["pools"][0]["policy"] = "defualt"
    answer = put(operator, wrong)
    assert answer.status_code == 422
    errors = {error["path"]: error for error in answer.json()["errors"]}
    assert errors["spec.pools[0].replicas"]["value"] == -1
    assert "did you mean flavour?" in errors["spec.pools[0].engine.flavor"]["message"]


def test_a_policy_that_does_not_exist_is_refused(operator: Client, fleet: World) -> None:
    wrong = document(2)
    wrong["spec"]["pools"][0]["policy"] = "defualt"
    answer = put(operator, wrong)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"] == "no such policy; did you mean default?"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("a: 1\na: 2", YAML, 400),
        ("{", JSON, 400),
        ('{"a": 1, "a": 2}', JSON, 400),
        ("[]", JSON, 422),
        ("x: .nan", YAML, 422),
        ("a=b", "application/x-www-form-urlencoded", 415),
    ],
)
def test_a_body_that_is_not_a_document_is_refused(
    operator: Client, empty: None, body: str, kind: str, status: int
) -> None:
    answer = put(operator, body, kind=kind)
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_pools_and_instances_report_their_status(viewer: Client, fleet: World) -> None:
    (pool,) = viewer.get("/api/v1/pools").json()
    assert (pool["ready"], pool["wanted"], pool["counts"]) == (2, 2, {"ready": 2})
    assert pool["matches_desired"] is True
    assert viewer.get("/api/v1/pools/p").json() == pool
    first, _ = viewer.get("/api/v1/instances?pool=p").json()
    assert (first["id"], first["state"], first["routable"], first["epoch"]) == ("p-0", "ready", True, 1)
    assert first["sample"]["kv_usage"] == 0.25
    assert first["ports"]["http"] == int(first["url"].rpartition(":")[2])
    assert viewer.get("/api/v1/instances/p-0").json()["command"] == first["command"]


def test_logs_and_events_of_an_instance_can_be_read(viewer: Client, fleet: World) -> None:
    lines = viewer.get("/api/v1/instances/p-0/logs?lines=5").json()["lines"]
    assert lines[0].startswith("== weir: epoch 1")
    kinds = [event["kind"] for event in viewer.get("/api/v1/instances/p-0/events").json()]
    assert kinds == ["ready", "loading", "starting", "created"]


def test_a_drain_takes_effect_at_once_and_is_audited(
    operator: Client, fleet: World, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.post("/api/v1/instances/p-0/drain", {"reason": "new cable"}, content_type=JSON)
    assert (answer.status_code, answer.json()["state"], answer.json()["routable"]) == (200, "draining", False)
    assert fleet.published()["p-0"]["routable"] is False
    entry = AuditEntry.objects.get(action="instance.drain")
    assert (entry.actor_name, entry.subject, entry.reason) == ("operator-cast", "p-0", "new cable")
    assert (entry.before["desired"], entry.after["desired"]) == ("running", "drained")


@pytest.mark.parametrize("body", [b"", b"null", b"{}"])
def test_a_drain_without_a_body_has_no_reason(operator: Client, fleet: World, body: bytes) -> None:
    answer = operator.generic("POST", "/api/v1/instances/p-0/drain", body, content_type=JSON)
    assert answer.status_code == 200, answer.content
    assert answer.json()["desired"] == "drained"
    assert AuditEntry.objects.latest("pk").reason == ""


def test_an_impossible_action_is_a_conflict_that_says_what_to_do(operator: Client, fleet: World) -> None:
    services.stop("p-0", "ada")
    fleet.until(fleet.is_in(State.STOPPED))
    answer = operator.post("/api/v1/instances/p-0/drain", {}, content_type=JSON)
    assert answer.status_code == 409
    assert "start it first" in answer.json()["detail"]


def test_a_viewer_can_only_read(viewer: Client, fleet: World) -> None:
    assert viewer.get("/api/v1/fleet").status_code == 200
    assert put(viewer, document(0)).status_code == 403
    assert viewer.post("/api/v1/instances/p-0/stop", {}, content_type=JSON).status_code == 403
    assert Pool.objects.get().replicas == 2


@pytest.mark.parametrize("path", ["instances/q-9", "instances/q-9/logs", "instances/q-9/events", "pools/q"])
def test_an_unknown_resource_is_not_found(viewer: Client, empty: None, path: str) -> None:
    assert viewer.get(f"/api/v1/{path}").status_code == 404
