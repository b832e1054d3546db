"""Hostile bodies for every operation of the API and every path of the router are refused with a reason, never with
5xx."""

import json
import random

import pytest

from controlplane.doors.api.api import api
from controlplane.tests.attacks import grammar
from router.tokenize.prompt import RENDERERS

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(400)]

BODIES = 25
TAKING = [
    (method.upper(), path)
    for path, methods in api.get_openapi_schema()["paths"].items()
    for method, operation in methods.items()
    if "requestBody" in operation
]


def filled(path):
    return (
        path.replace("{name}", "default").replace("{number}", "1").replace("{verb}", "drain").replace("{key_id}", "1")
    )


@pytest.mark.parametrize(("method", "path"), TAKING, ids=[f"{method} {path}" for method, path in TAKING])
def test_no_body_makes_an_operation_fail(target, method, path):
    draw = random.Random(f"{method} {path}")
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    failed = []
    for _ in range(BODIES):
        body = grammar.json_bodies(draw)
        status, told, text = target.request("web", method, filled(path), body, **headers)
        if status >= 500 or (
            status >= 400 and told.get("content-type", told.get("Content-Type")) != "application/problem+json"
        ):
            failed.append((status, body[:200], text[:200]))
    assert not failed, failed[:3]
    assert target.tracebacks() == []


@pytest.mark.parametrize("path", RENDERERS)
def test_no_body_makes_the_router_fail(target, path):
    draw = random.Random(path)
    failed = []
    for _ in range(BODIES * 3):
        body, coding = grammar.json_bodies(draw), {}
        if draw.random() < 0.3:
            body, coding = grammar.squeezed(draw, body), {"Content-Encoding": draw.choice(["gzip", "deflate", "x"])}
        status, told, text = target.request("router", "POST", path, body, Content_Type="application/json", **coding)
        if status >= 500 or (status >= 400 and "x-weir-instance" not in told and "code" not in error_of(text)):
            failed.append((status, body[:200], text[:200]))
    assert not failed, failed[:3]
    assert target.troubles() == []
    assert target.tracebacks() == []


def error_of(text):
    try:
        return json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
