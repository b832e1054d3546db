"""A viewer finds the secret of an engine on no page and in no answer of the API."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from controlplane.doors.api.api import api
from controlplane.pages.fleet_ops import actions
from controlplane.people.accounts.tests.test_closed_by_default import concrete, patterns
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.selectors import AuditFilters, page
from controlplane.people.audit.services import SYSTEM
from controlplane.testing import ApiCaller, api_caller
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.events import move
from fleet.models import Instance, Pool, State
from fleet.node import logs

CANARY = "c4nary-7f3e9a"
TOKEN = f"weir_1a2b3c4d_{CANARY}-Ab-_Ab-_Ab-_Ab-_Ab-_"


def document(value: str) -> dict[str, Any]:
    engine = {
        "environment": {"PLAIN": value, "HF_TOKEN": value},
        "arguments": ["--api-key", value, f"--hf-token={value}"],
    }
    pools = [{"name": "default", "model": "m", "kind": "vllm", "replicas": 1, "engine": engine}]
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": pools}}


@pytest.fixture
def leaky(db: None, data_dir: object) -> None:
    """A fleet whose engines have secrets; it was changed once and rolled back, and one engine failed and printed its
    secrets."""
    ensure_default_policy()
    for value in (CANARY, f"{CANARY}-2"):
        actions.apply(document(value), SYSTEM, reason="because")
    row = Instance.objects.create(
        name="default-0",
        pool=Pool.objects.get(),
        ordinal=0,
        state=State.LOADING,
        epoch=1,
        config=document(CANARY)["spec"]["pools"][0],
    )
    Instance.objects.update(command=["vllm", "serve", "--api-key", CANARY])
    row.refresh_from_db()
    logs.append("default-0", ["== weir: epoch 1", f"HF_TOKEN={CANARY}", f"redis://:{CANARY}@h", f"it is {TOKEN}"])
    move(row, State.FAILED, f"ended: {TOKEN}")
    # in the form that earlier versions stored
    old = {"actor_kind": "user", "actor_name": "otto", "action": "fleet.applied", "subject": "fleet"}
    AuditEntry.objects.create(**old, before={}, after=document(CANARY))


SHOWING = (
    "/fleet/apply",
    "/fleet/pools/default/",
    "/fleet/pools/default/edit",
    "/fleet/instances/default-0/",
    "/audit/",
)


def pages(client: Client) -> dict[str, str]:
    routes = [route for route in patterns(get_resolver()) if route != "logout"]
    extra = [*SHOWING, "/fleet/new-pool"]
    found = {path: client.get(path) for path in (*map(concrete, routes), *extra)}
    return {path: answer.content.decode(errors="replace") for path, answer in found.items() if not answer.streaming}


def answers(caller: ApiCaller) -> dict[str, str]:
    paths = [path for path, methods in api.get_openapi_schema()["paths"].items() if "get" in methods]
    found = {}
    for path in paths:
        name = "default-0" if "instances" in path else "default"
        filled = path.removeprefix("/api/v1").replace("{name}", name).replace("{", "").replace("}", "")
        found[filled] = caller.get(filled).content.decode()
    found["/fleet as YAML"] = caller.get("/fleet", Accept="application/yaml").content.decode()
    return found


def test_a_viewer_finds_a_secret_nowhere(leaky: None, vera: User, vera_client: Client) -> None:
    seen = pages(vera_client) | answers(api_caller(vera))
    assert [where for where, text in seen.items() if CANARY in text] == []
    assert [where for where in (*SHOWING, "/fleet", "/pools", "/audit") if "(hidden" not in seen[where]] == []
    assert "(hidden)" in seen["/instances/default-0/logs"]
    assert seen["/instances/default-0"].count("(hidden)") >= 2  # its command and its reason


def test_a_token_without_the_scope_finds_no_secret_although_its_owner_is_an_operator(leaky: None, otto: User) -> None:
    seen = answers(api_caller(otto, "fleet:read", "audit:read", "live:read"))
    assert [where for where, text in seen.items() if CANARY in text] == []


def test_an_operator_reads_the_document_and_the_same_document_changes_nothing(leaky: None, ci: ApiCaller) -> None:
    fleet = ci.get("/fleet").json()
    assert fleet == document(f"{CANARY}-2") or CANARY in json.dumps(fleet)
    answer = ci.call("PUT", "/fleet?dry_run=true", fleet)
    assert (answer.status_code, answer.json()["drift"]) == (200, False)
    assert CANARY in json.dumps(ci.get("/pools").json())
    assert CANARY in json.dumps(ci.get("/pools/default/versions").json()[0]["config"])


def test_a_document_read_by_a_viewer_cannot_be_applied(leaky: None, vera: User, ci: ApiCaller) -> None:
    answer = ci.call("PUT", "/fleet", api_caller(vera).get("/fleet").json())
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "spec.pools[0].engine.environment.PLAIN"


def test_the_audit_log_never_stores_a_secret_and_hides_one_that_was_stored(leaky: None) -> None:
    old = AuditEntry.objects.order_by("-pk")[0]
    stored = AuditEntry.objects.exclude(pk=old.pk).values("before", "after", "reason")
    assert CANARY not in str(list(stored))
    assert CANARY in str(old.after)
    assert CANARY not in str([row.after for row in page(AuditFilters())[0]])
