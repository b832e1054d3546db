"""The document Models over REST and by `weir models`."""

import json

import pytest
from django.test import Client

from controlplane.doors.cli.tests.conftest import network  # noqa: F401  (a fixture)
from controlplane.doors.cli.weir import main as weir
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import api_caller
from controlplane.traffic.aliases.tests.conftest import BOT, SPLIT, WHY, document, pools  # noqa: F401  (a fixture)

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(otto):
    return api_caller(otto)


def put(api, made, content="application/json", query=f"reason={WHY}", **headers):
    body = made if isinstance(made, str) else json.dumps(made)
    headers["HTTP_AUTHORIZATION"] = f"Bearer {api.token}"
    return Client().put(f"/api/v1/models?{query}", body, content_type=content, **headers)


def test_a_document_is_written_checked_and_rolled_back(pools, api):  # noqa: F811
    assert put(api, document(chat=SPLIT), query=f"reason={WHY}&dry_run=true").status_code == 200
    made = put(api, "schema: 1\nmodels:\n  chat: {pool: big}\n", "application/yaml")
    assert (made.status_code, made["ETag"]) == (201, '"v1"')
    assert put(api, document(chat=SPLIT)).json()["version"]["number"] == 2
    assert put(api, document(chat={"pool": "small"}), query=f"reason={WHY}&based_on=1").status_code == 409
    refused = put(api, document(chat={"pool": "gone"}))
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "models.chat.pool")
    back = api.post("/models/rollback", {"to": 1, "reason": WHY})
    assert back.json()["version"]["rollback_of"] == 1
    got = api.get("/models").json()
    assert (got["version"], got["document"]) == (3, document(chat={"pool": "big"}))
    assert [version["number"] for version in api.get("/models/versions").json()] == [3, 2, 1]


def test_a_document_based_on_an_older_version_is_refused(pools, api):  # noqa: F811
    seen = put(api, document(chat=SPLIT))["ETag"]
    assert put(api, document(chat={"pool": "big"}), HTTP_IF_MATCH=seen).status_code == 201
    late = put(api, document(bot={"pool": "small"}), HTTP_IF_MATCH=seen)
    assert (late.status_code, late.json()["current"]) == (412, "v2")
    assert late.json()["detail"] == "v2 was published by ci (otto) meanwhile"
    assert api.get("/models").json()["document"] == document(chat={"pool": "big"})


def test_the_draft_has_an_etag(pools, api):  # noqa: F811
    made = api.post("/models/draft")
    assert made.status_code == 201
    headers = {"HTTP_AUTHORIZATION": f"Bearer {api.token}", "content_type": "application/json"}
    body = json.dumps({"document": document(chat=SPLIT)})
    assert Client().put("/api/v1/models/draft", body, HTTP_IF_MATCH='"d0.9"', **headers).status_code == 412
    assert Client().put("/api/v1/models/draft", body, HTTP_IF_MATCH=made["ETag"], **headers).status_code == 200
    assert api.post("/models/draft/publish", {"reason": WHY}).json()["version"]["number"] == 1


def test_adapters_are_listed_with_their_homes(pools, api):  # noqa: F811
    put(api, document(bot=BOT))
    (adapter,) = api.get("/models/adapters").json()
    assert (adapter["name"], adapter["state"], adapter["homes"]) == ("bot@v1", "loading", [])


def test_the_command_gets_applies_and_rolls_back(pools, api, network, monkeypatch, tmp_path, capsys):  # noqa: F811
    def run(*words):
        monkeypatch.setenv("WEIR_URL", "http://weir.test")
        monkeypatch.setenv("WEIR_TOKEN", api.token)
        monkeypatch.setattr("sys.argv", ["weir", "models", *words])
        return weir.main()

    file = tmp_path / "models.yaml"
    file.write_text("schema: 1\nmodels:\n  chat: {pool: big}\n")
    assert run("apply", str(file), "--dry-run") == 0
    assert "would be published; nothing was changed" in capsys.readouterr().out
    assert run("apply", str(file), "--reason", WHY) == 0
    assert "models v1 is live:" in capsys.readouterr().out
    kept = tmp_path / "kept.yaml"
    assert run("get", "-o", str(kept)) == 0
    assert "chat:" in kept.read_text()
    file.write_text("schema: 1\nmodels: {}\n")
    run("apply", str(file))
    assert run("rollback", "1") == 0
    assert "models v3 has the document of v1" in capsys.readouterr().out
    file.write_text("models: {chat: {pool: gone}}")
    assert run("apply", str(file)) == 3
    assert "there is no such pool" in capsys.readouterr().err


def test_a_draft_of_models_that_is_opened_and_edited_is_audited(pools, api):  # noqa: F811
    seen = api.post("/models/draft")["ETag"]
    api.call("PUT", "/models/draft", {"document": document(chat={"pool": "big"})}, If_Match=seen)
    opened, edited = AuditEntry.objects.filter(action__startswith="models.").order_by("pk")
    assert (opened.action, opened.after) == ("models.open_draft", {"based_on": 0})
    assert (edited.action, edited.after["models.chat.pool"]) == ("models.edit_draft", "big")
