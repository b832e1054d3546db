import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies import services
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, edit, published
from router.policy.schema import document as documents
from router.policy.schema.json_schema import json_schema

POLICY = "/policies/default"
DRAFT = f"{POLICY}/draft"


def test_a_change_goes_from_draft_to_live_in_three_calls(policy, ci):
    opened = ci.post(DRAFT)
    edited = ci.patch(DRAFT, {"overrides": {"classes.heavy_new_tokens": 9000}}, If_Match=opened.headers["ETag"])
    made = ci.post(f"{DRAFT}/publish", {"reason": WHY}, If_Match=edited.headers["ETag"])
    assert [a.status_code for a in (opened, edited, made)] == [201, 200, 200]
    version = made.json()["version"]
    assert (version["number"], version["actor"]) == (2, {"kind": "token", "name": "ci (otto)"})
    assert made.headers["ETag"] == '"v2"'
    assert ci.get(POLICY).json()["live"] == version


def test_the_list_holds_live_version_draft_and_pools(policy, ci):
    services.open_draft(policy, OTTO)
    (row,) = ci.get("/policies").json()
    assert (row["name"], row["live"]["number"], row["draft"]["revision"], row["pools"]) == ("default", 1, 1, [])


def test_the_schema_contains_every_parameter(ci, db):
    answer = ci.get("/policies/schema").json()
    heavy = next(p for p in answer["parameters"] if p["path"] == "classes.heavy_new_tokens")
    assert (heavy["default"], heavy["minimum"], heavy["maximum"], heavy["unit"]) == (40_000, 256, 1_000_000, "tokens")
    assert answer["document_schema"] == json_schema()


def test_a_policy_is_created_from_a_document_or_a_route(policy, ci):
    document = documents.apply_overrides(documents.default("lpwl"), {"failure.retries": 4})
    first = ci.post("/policies", {"name": "night", "reason": WHY, "document": document})
    second = ci.post("/policies", {"name": "day", "reason": WHY, "strategy": "round_robin"})
    assert [first.status_code, second.status_code] == [201, 201]
    assert first.json()["version"]["document"] == document
    assert second.json()["version"]["document"]["strategy"] == {"name": "round_robin"}


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"name": "default", "reason": WHY}, 409, None),
        ({"name": "No Good", "reason": WHY}, 422, "name"),
        ({"name": "night", "reason": "short"}, 422, "reason"),
        ({"name": "night", "reason": WHY, "strategy": "nowhere"}, 422, "strategy.name"),
        ({"name": "night", "reason": WHY, "document": {"classes": {"heavy_new_tokens": "x"}}}, 422,
         "classes.heavy_new_tokens"),
        ({"name": "night", "reason": WHY, "document": 5}, 422, "document"),
        ({"reason": WHY}, 422, "name"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_created_is_refused_with_the_reason(policy, ci, body, status, path):
    answer = ci.post("/policies", body)
    assert answer.status_code == status
    if path is not None:
        assert path in [e["path"] for e in answer.json()["errors"]]


def test_opening_a_draft_again_returns_the_open_one(policy, ci):
    first, second = ci.post(DRAFT), ci.post(DRAFT)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.headers["ETag"] == second.headers["ETag"] == ci.get(DRAFT).headers["ETag"]


def test_requests_for_a_missing_draft_are_refused(policy, ci):
    assert ci.get(DRAFT).status_code == 404
    assert ci.patch(DRAFT, {"overrides": {}}).status_code == 409
    assert ci.delete(DRAFT).status_code == 409
    assert ci.post(f"{DRAFT}/publish", {"reason": WHY}).status_code == 409


def test_a_wrong_value_is_reported_with_path_value_and_range(policy, ci):
    ci.post(DRAFT)
    answer = ci.patch(DRAFT, {"overrides": {"classes.heavy_new_tokens": 7}})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["path"], error["value"]) == ("classes.heavy_new_tokens", 7)
    assert "256 to 1,000,000" in error["message"]


def test_a_whole_document_replaces_the_draft(policy, ci):
    ci.post(DRAFT)
    answer = ci.patch(DRAFT, {"document": {"strategy": {"name": "lpwl"}}})
    assert answer.json()["document"] == documents.default("lpwl")


@pytest.mark.parametrize("body", [{}, {"overrides": {}, "document": {}}])
def test_a_patch_changes_only_the_given_field(policy, ci, body):
    ci.post(DRAFT)
    assert ci.patch(DRAFT, body).json()["errors"][0]["path"] == "overrides"


def test_a_patch_of_an_old_draft_gets_412_with_base_theirs_and_mine(policy, ci):
    old = ci.post(DRAFT).headers["ETag"]
    edit(policy, ADA, heavy_new_tokens=8000, warm_hit_share=0.25)
    answer = ci.patch(DRAFT, {"overrides": {"classes.heavy_new_tokens": 9000}}, If_Match=old)
    assert answer.status_code == 412
    body = answer.json()
    assert body["conflicts"] == [{"path": "classes.heavy_new_tokens", "base": 40_000, "theirs": 8000, "mine": 9000}]
    retried = ci.patch(DRAFT, {"overrides": {"classes.heavy_new_tokens": 9000}}, If_Match=f'"{body["current"]}"')
    assert retried.json()["document"]["classes"]["warm_hit_share"] == 0.25


def test_publishing_an_old_draft_gets_412(policy, ci):
    old = ci.post(DRAFT).headers["ETag"]
    edit(policy, ADA, heavy_new_tokens=8000)
    assert ci.post(f"{DRAFT}/publish", {"reason": WHY}, If_Match=old).status_code == 412


def test_publishing_over_another_version_gets_409_with_the_fields(policy, ci):
    published(policy, heavy_new_tokens=9000)
    edit(policy, warm_hit_share=0.75)
    services.rollback(policy, 1, ADA, WHY)
    answer = ci.post(f"{DRAFT}/publish", {"reason": WHY})
    assert answer.status_code == 409
    assert {c["path"] for c in answer.json()["conflicts"]} == {"classes.heavy_new_tokens", "classes.warm_hit_share"}
    assert answer.json()["current"] == "v3"


def test_publishing_an_unchanged_document_is_refused(policy, ci):
    ci.post(DRAFT)
    assert ci.post(f"{DRAFT}/publish", {"reason": WHY}).status_code == 422


def test_the_answer_says_that_redis_was_unreachable(policy, ci):
    edit(policy, heavy_new_tokens=9000)
    body = ci.post(f"{DRAFT}/publish", {"reason": WHY}).json()
    assert body["stored_only"] is True
    assert "when Redis is back" in body["summary"]


def test_a_draft_is_discarded(policy, ci):
    etag = ci.post(DRAFT).headers["ETag"]
    assert ci.delete(DRAFT, If_Match='"d0.9"').status_code == 412
    assert ci.delete(DRAFT, If_Match=etag).status_code == 204


def test_an_earlier_version_is_published_again_by_rolling_back(policy, ci):
    published(policy, heavy_new_tokens=9000)
    answer = ci.post(f"{POLICY}/rollback", {"to": 1, "reason": WHY}, If_Match='"v2"')
    assert answer.json()["version"]["rollback_of"] == 1
    assert ci.post(f"{POLICY}/rollback", {"to": 2, "reason": WHY}, If_Match='"v2"').status_code == 412
    assert ci.post(f"{POLICY}/rollback", {"to": 1, "reason": WHY}).status_code == 422
    assert ci.post(f"{POLICY}/rollback", {"to": 99, "reason": WHY}).status_code == 404


def test_versions_and_their_differences(policy, ci):
    published(policy, heavy_new_tokens=9000)
    published(policy, heavy_new_tokens=8000)
    assert [v["number"] for v in ci.get(f"{POLICY}/versions?limit=2").json()] == [3, 2]
    assert [v["number"] for v in ci.get(f"{POLICY}/versions?before=2").json()] == [1]
    assert ci.get(f"{POLICY}/versions/2").json()["document"]["classes"]["heavy_new_tokens"] == 9000
    diff = ci.get(f"{POLICY}/diff?from=1&to=3").json()
    assert (diff["from"], diff["to"]) == (1, 3)
    (change,) = diff["changes"]
    assert (change["old"], change["new"], change["direction"]) == (40_000, 8000, "more requests count as heavy")


@pytest.mark.parametrize("path", ["/policies/nowhere", f"{POLICY}/versions/9", f"{POLICY}/diff?from=1&to=9"])
def test_an_unknown_address_is_404(policy, ci, path):
    assert ci.get(path).status_code == 404


@pytest.mark.parametrize("path", [f"{POLICY}/versions/0", f"{POLICY}/versions/{10**30}", f"{POLICY}/diff?from=x&to=1",
                                  f"{POLICY}/versions?limit=0", f"{POLICY}/diff"])  # fmt: skip
def test_invalid_input_is_422(policy, ci, path):
    assert ci.get(path).status_code == 422


@pytest.mark.parametrize("path", ["versions", "deliveries"])
def test_a_document_sent_without_a_draft_is_refused_once_another_version_is_live(policy, ci, path):
    seen = ci.get(POLICY).headers["ETag"]
    published(policy, heavy_new_tokens=9000)
    body = {"document": documents.default("lpwl"), "reason": WHY}
    late = ci.post(f"{POLICY}/{path}", body, If_Match=seen)
    assert (late.status_code, late.json()["current"]) == (412, "v2")
    assert ci.post(f"{POLICY}/{path}", body, If_Match='"v2"').status_code == 201


def test_a_draft_that_is_opened_and_edited_is_audited_with_what_changed(policy, ci):
    ci.post(DRAFT)
    ci.post(DRAFT)
    for _ in range(2):
        ci.patch(DRAFT, {"overrides": {"classes.heavy_new_tokens": 9000}})
    opened, edited = AuditEntry.objects.filter(action__endswith="_draft").order_by("pk")
    assert (opened.action, opened.after, opened.actor_name) == ("policy.open_draft", {"based_on": 1}, "ci (otto)")
    assert (edited.action, edited.subject) == ("policy.edit_draft", "policy default")
    assert (edited.before, edited.after) == (
        {"classes.heavy_new_tokens": 40_000}, {"classes.heavy_new_tokens": 9000}
    )  # fmt: skip


def test_a_document_published_without_a_draft_leaves_one_entry(policy, ci):
    before = AuditEntry.objects.count()
    ci.post(f"{POLICY}/versions", {"document": documents.default("lpwl"), "reason": WHY})
    assert AuditEntry.objects.count() == before + 1
