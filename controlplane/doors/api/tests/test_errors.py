"""Every error has the same shape."""

import re
from unittest.mock import Mock

import pytest
import redis
from django.db import OperationalError
from django.test import Client

from controlplane.doors.api.routes.traffic import policies


def problem(answer, status: int) -> dict:
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["request_id"] == answer.headers["X-Request-ID"]
    return body


def raw_post(caller, path: str, raw: str | bytes):
    header = {"Authorization": f"Bearer {caller.token}"}
    return Client().generic("POST", f"/api/v1{path}", data=raw, content_type="application/json", headers=header)


def test_an_unknown_address_has_the_shape_of_every_error(db, client):
    assert "/api/v1/openapi.json" in problem(client.get("/api/v1/nowhere"), 404)["detail"]


def test_a_method_that_is_not_supported_has_the_shape_of_every_error(ci):
    answer = ci.call("PUT", "/policies/default")
    assert "GET" in problem(answer, 405)["detail"]
    assert answer.headers["Allow"] == "GET"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/yaml"])
def test_a_body_that_is_not_json_has_the_shape_of_every_error(policy, ci, kind):
    header = {"Authorization": f"Bearer {ci.token}"}
    answer = Client().generic("POST", "/api/v1/policies", data="{}", content_type=kind, headers=header)
    assert kind in problem(answer, 415)["detail"]


@pytest.mark.parametrize(
    "raw", ["", "{", '{"name": NaN}', '{"name": "\\u0000"}', '{"name": "\\ud800"}', "[" * 100_000, b"\xff\xfe{"]
)
def test_a_text_that_no_database_can_store_is_refused(policy, ci, raw):
    answer = raw_post(ci, "/policies", raw)
    assert answer.status_code in (400, 422)
    problem(answer, answer.status_code)


def test_a_key_given_twice_is_named_and_changes_nothing(policy, ci):
    ci.post("/policies/default/draft", {})
    header = {"Authorization": f"Bearer {ci.token}"}
    body = '{"overrides": {"classes.heavy_new_tokens": 9000, "classes.heavy_new_tokens": 10000}}'
    answer = Client().generic(
        "PATCH", "/api/v1/policies/default/draft", data=body, content_type="application/json", headers=header
    )
    assert "'classes.heavy_new_tokens' is given twice" in problem(answer, 400)["detail"]
    assert ci.get("/policies/default/draft").json()["revision"] == 1


def test_an_unknown_key_is_refused_with_the_known_ones_and_changes_nothing(policy, ci):
    ci.post("/policies/default/draft", {})
    answer = ci.call("PATCH", "/policies/default/draft", {"override": {"classes.heavy_new_tokens": 9000}})
    message = "unknown field; allowed: overrides, document, based_on"
    error = {"path": "override", "value": {"classes.heavy_new_tokens": 9000}, "message": message}
    assert problem(answer, 422)["errors"] == [error]
    assert ci.get("/policies/default/draft").json()["revision"] == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/fleet?dry-run=true", "dry_run, prune, reason, emergency"),
        ("POST", "/policies/default/draft?limit=5", "none"),
    ],
)
def test_the_error_for_an_unknown_query_parameter_lists_the_known_ones(policy, ada_api, method, path, allowed):
    (error,) = problem(ada_api.call(method, path), 422)["errors"]
    assert error["message"] == f"unknown query parameter; allowed: {allowed}"


def test_a_read_ignores_an_unknown_query_parameter(policy, ada_api):
    assert ada_api.get("/policies?limit=5").json() == ada_api.get("/policies").json()


@pytest.mark.parametrize("body", ["x", '{"overrides": {"classes.heavy_new_tokens": 9000}}', "[]", "{"])
def test_a_body_for_an_operation_without_one_is_refused_and_changes_nothing(policy, ci, body):
    answer = raw_post(ci, "/policies/default/draft", body)
    assert problem(answer, 422)["detail"] == "this operation takes no body"
    assert ci.get("/policies/default/draft").status_code == 404


@pytest.mark.parametrize("body", ["", " ", "{}", "null"])
def test_an_empty_body_is_not_a_body(policy, ci, body):
    assert raw_post(ci, "/policies/default/draft", body).status_code == 201


def test_a_form_is_a_body_unless_it_is_empty_or_has_the_csrf_token_alone(policy, ci):
    header = {"Authorization": f"Bearer {ci.token}"}
    address = "/api/v1/policies/default/draft"
    assert Client().post(address, {"note": "x"}, headers=header).status_code == 422
    assert Client().post(address, {"csrfmiddlewaretoken": "x"}, headers=header).status_code == 201


@pytest.mark.parametrize(
    ("kind", "body"), [("multipart/form-data", "x"), ("application/x-www-form-urlencoded", "a=1&" * 2_000)]
)
def test_a_form_that_cannot_be_read_is_a_body(policy, ci, kind, body):
    header = {"Authorization": f"Bearer {ci.token}"}
    answer = Client().generic("POST", "/api/v1/policies/default/draft", body, content_type=kind, headers=header)
    assert problem(answer, 422)["errors"][0]["value"] == "a form that cannot be read"


def test_a_stranger_does_not_learn_the_parameters(db, client):
    problem(client.post("/api/v1/policies/default/draft?nonsense=1"), 401)


def test_no_operation_accepts_keys_that_it_does_not_read(db, client):
    document = client.get("/api/v1/openapi.json").json()
    schemas = document["components"]["schemas"]
    operations = [one for path in document["paths"].values() for one in path.values()]
    contents = [one["requestBody"]["content"] for one in operations if "requestBody" in one]
    bodies = [content["application/json"]["schema"] for content in contents if "application/json" in content]
    names = {str(found) for body in bodies for found in re.findall(r"#/components/schemas/(\w+)", str(body))}
    assert len(names) > 10
    assert [name for name in sorted(names) if schemas[name].get("additionalProperties") is not False] == []


@pytest.mark.parametrize(
    ("method", "path"), [("PATCH", "/policies/default/draft"), ("PUT", "/fleet"), ("POST", "/tokens")]
)
def test_a_body_beyond_the_limit_is_refused_with_the_limit(policy, ada_api, method, path, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000
    assert "1,000 bytes" in problem(ada_api.call(method, path, {"name": "x" * 2_000}), 413)["detail"]


def test_an_escaped_backslash_before_u0000_is_text(policy, ci):
    answer = ci.post("/policies", {"name": "\\u0000", "reason": "a backslash and six letters"})
    assert problem(answer, 422)["errors"][0]["path"] == "name"


def test_a_field_of_the_wrong_type_is_named(policy, ci):
    errors = problem(ci.post("/policies", {"name": 5, "reason": "x" * 501}), 422)["errors"]
    assert [(e["path"], e["value"]) for e in errors] == [("name", 5), ("reason", "x" * 200)]


def test_a_crash_gives_an_id_to_quote_and_nothing_else(ci, monkeypatch):
    def fail(*_):
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(policies.selectors, "policies", fail)
    answer = ci.get("/policies", X_Request_ID="given-by-a-proxy")
    body = problem(answer, 500)
    assert body["request_id"] == "given-by-a-proxy"
    assert "secret" not in answer.content.decode()


def test_an_unreachable_database_is_503(ci, monkeypatch):
    def fail(*_):
        raise OperationalError("database is locked")

    monkeypatch.setattr(policies.selectors, "policies", fail)
    answer = ci.get("/policies")
    assert "database" in problem(answer, 503)["detail"]
    assert answer.headers["Retry-After"] == "5"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (redis.ConnectionError("refused"), 503),
        (redis.TimeoutError("late"), 503),
        (redis.ReadOnlyError("a replica"), 503),
        (redis.ResponseError("WRONGTYPE"), 500),
    ],
)
def test_only_an_unusable_redis_is_503(ci, monkeypatch, error, status):
    monkeypatch.setattr(policies.selectors, "policies", Mock(side_effect=error))
    body = problem(ci.get("/policies"), status)
    assert ("Redis does not answer" in body["detail"]) == (status == 503)


@pytest.mark.parametrize("given", ["short", "with space and more", "x" * 65, "new\nline-12345"])
def test_a_request_id_that_could_spoil_a_log_is_replaced(db, client, given):
    answer = client.get("/healthz", headers={"X-Request-ID": given})
    assert len(answer.headers["X-Request-ID"]) == 32


@pytest.mark.parametrize("depth", [51, 254, 600, 5000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_reported_as_a_problem_of_the_body(ci, policy, depth, opened, closed):
    body = opened * depth + "1" + closed * depth
    headers = {"Authorization": f"Bearer {ci.token}"}
    for method, path in (("PUT", "/fleet"), ("POST", "/experiments"), ("PATCH", "/policies/default/draft")):
        answer = ci._client.generic(method, f"/api/v1{path}", body, "application/json", headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (400, 400), (path, answer.content)
        assert "nested" in answer.json()["detail"]


def test_messages_have_no_prefix_of_pydantic(ci):
    answer = ci.post("/experiments", {"name": "x", "trace": "t", "pool": "p", "arms": ["a"], "duration_s": -1})
    messages = [error["message"] for error in answer.json()["errors"]]
    assert "allowed is a number from 1 to 86,400" in messages
    assert not [message for message in messages if message.startswith("Value error")]
