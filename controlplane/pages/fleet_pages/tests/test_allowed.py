"""A document outside the administrators' lists is refused wherever it is entered, with what is allowed."""

from typing import Any

import pytest
from django.test import Client

from controlplane.testing import ApiCaller
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.models import Pool
from fleet.spec import document as documents

PATH = "spec.pools[0].engine.environment.LD_PRELOAD"
MESSAGE = "the administrators do not allow this variable (WEIR_ALLOWED_VARIABLES); allowed: HF_*"
DOCUMENT = {
    "apiVersion": "weir/v1",
    "kind": "Fleet",
    "metadata": {"name": "f"},
    "spec": {
        "pools": [{"name": "p", "model": "m", "kind": "vllm", "engine": {"environment": {"LD_PRELOAD": "/tmp/x.so"}}}]
    },
}


@pytest.fixture(autouse=True)
def listed(db: None, settings: Any) -> None:
    ensure_default_policy()
    settings.ALLOWED_VARIABLES = ("HF_*",)


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/fleet"), ("PUT", "/fleet?dry_run=true"), ("POST", "/fleet/check")]
)
def test_a_forbidden_document_is_refused_over_rest(ci: ApiCaller, method: str, path: str) -> None:
    answer = ci.call(method, path, DOCUMENT)
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"path": PATH, "value": "LD_PRELOAD", "message": MESSAGE}]
    assert not Pool.objects.exists()


def test_a_forbidden_document_is_refused_on_the_page(otto_client: Client) -> None:
    answer = otto_client.post("/fleet/apply", {"document": documents.dump(DOCUMENT)})
    assert answer.status_code == 422
    assert MESSAGE in answer.content.decode()


def test_a_forbidden_document_is_refused_in_the_form(otto_client: Client) -> None:
    form = {"name": "p", "model": "m", "kind": "vllm", "engine.environment": "LD_PRELOAD=/tmp/x.so"}
    answer = otto_client.post("/fleet/new-pool", form)
    assert answer.status_code == 422
    assert MESSAGE in answer.content.decode()
