from functools import cache

import pytest
from django.core.management import CommandError, call_command

from controlplane.doors.api.api import api
from controlplane.management.commands import openapi_export
from controlplane.people.permissions import SCOPES

schema = cache(openapi_export.schema)


def operations():
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in schema()["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_copy_is_current():
    call_command("openapi_export", check=True)


def test_an_outdated_copy_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(openapi_export, "COPY", tmp_path / "openapi.json")
    with pytest.raises(CommandError, match="not current"):
        call_command("openapi_export", check=True)
    call_command("openapi_export")
    call_command("openapi_export", check=True)


def test_the_document_is_served(db, client):
    answer = client.get("/api/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json()["paths"].keys() == schema()["paths"].keys()


def test_the_document_is_built_once():
    assert api.get_openapi_schema(path_params={}) is api.get_openapi_schema()


def test_every_operation_has_an_id_a_summary_a_tag_and_its_errors():
    for name, operation in operations():
        assert operation["operationId"].islower(), name
        assert operation["summary"], name
        assert operation["tags"], name
        assert {"401", "403"} <= set(operation["responses"]), name


def test_schemas_have_specific_names_and_require_the_fields_that_are_always_sent():
    schemas = schema()["components"]["schemas"]
    assert not schemas.keys() & {"Axis", "Chart", "Fact", "Link", "Play", "Results", "Series", "Summary", "Table"}
    for name in ("SystemFact", "SystemChart", "TraceSummary", "FoundEngine", "AdviceOut", "PlanResultOut"):
        assert set(schemas[name]["required"]) == schemas[name]["properties"].keys(), name


def test_operation_ids_are_unique():
    ids = [operation["operationId"] for _, operation in operations()]
    assert len(ids) == len(set(ids))


def test_every_operation_refuses_strangers(db, client):
    answered = {}
    for name, _ in operations():
        method, path = name.split()
        concrete = path.replace("{number}", "1").replace("{token_id}", "1").replace("{name}", "default")
        body = {} if method == "GET" else {"data": "{}", "content_type": "application/json"}
        answered[name] = client.generic(method, concrete.replace("{", "").replace("}", ""), **body).status_code
    assert {name: status for name, status in answered.items() if status != 401} == {}


def test_the_page_lists_every_operation(vera_client):
    content = vera_client.get("/api/v1/docs").content.decode()
    assert [name for name, _ in operations() if name not in content] == []
    assert [scope for scope in SCOPES if scope not in content] == []


def test_the_page_refuses_strangers(db, client):
    assert client.get("/api/v1/docs").status_code == 302


def test_operations_state_the_token_scheme():
    assert schema()["components"]["securitySchemes"]["TokenOrSession"] == {"type": "http", "scheme": "bearer"}
    assert api.auth is not None


def test_every_answer_of_an_operation_has_a_media_type():
    for name, operation in operations():
        for status, answer in operation["responses"].items():
            assert answer.get("content") or status in ("204", "304"), (name, status)


def test_each_available_format_is_described():
    for name, operation in operations():
        asked = [one["schema"]["enum"] for one in operation["parameters"] if one["name"] == "format"]
        described = " ".join(operation["responses"].get("200", {}).get("content", {}))
        assert [word for words in asked for word in words if word not in described] == [], name
