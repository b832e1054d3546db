"""The offload page: classes of any trace, its limits, and links to experiments that can be started."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from controlplane.evidence.experiments import services
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.systems import offload
from controlplane.evidence.systems.registry import SYSTEMS, ask, inputs_of
from controlplane.evidence.traces import library
from controlplane.evidence.traces.tests.conftest import mooncake_line
from controlplane.people.audit.services import Actor
from fleet import services as fleet
from router.contract.values.problem import InvalidInput

pytestmark = pytest.mark.django_db
OFFLOAD = SYSTEMS["offload"]


def asked(**given: object) -> Any:
    return ask(OFFLOAD, given)


def fact(answer: Any, label: str) -> Any:
    return next(each.value for each in answer.facts if each.label == label)


def test_every_request_has_a_class_and_a_lower_threshold_makes_more_heavy() -> None:
    usual, low = asked(), asked(heavy_new_tokens=5_000)
    for answer in (usual, low):
        assert sum(fact(answer, name) for name in ("Warm", "Medium", "Heavy")) == pytest.approx(100)
    assert fact(low, "Heavy") > fact(usual, "Heavy") > fact(asked(order="session_first"), "Heavy") > 0
    assert "only they would move" in usual.verdict


@pytest.mark.parametrize("tokens", [20_000, 40_000])
def test_heavy_is_named_with_its_threshold(tokens: int) -> None:
    (heavy,) = (one for one in asked(heavy_new_tokens=tokens).facts if one.label == "Heavy")
    assert heavy.note == f"from {tokens:,} new tokens on"


def test_the_offered_load_determines_how_full_decoders_are() -> None:
    """No constant: twice the load, or answers that take twice as long, hold twice the KV."""
    once, fuller, slower = (asked(**given) for given in ({}, {"load_factor": 2.0}, {"tpot_ms": 60.0}))
    for name in ("KV in use, static", "KV in use, adaptive"):
        assert fact(fuller, name) == pytest.approx(2 * fact(once, name))
        assert fact(slower, name) == pytest.approx(2 * fact(once, name))


def test_static_decode_instances_hold_everything_and_an_adaptive_pool_spreads_it() -> None:
    answer = asked(instances=8, prefill_instances=6, tpot_ms=100.0)
    assert fact(answer, "KV in use, static") == pytest.approx(4 * fact(answer, "KV in use, adaptive"))
    assert "more than there is" in asked(tpot_ms=200.0).verdict
    assert any("do not fit" in each for each in asked(tpot_ms=1_000.0).cautions)


def test_without_heavy_requests_nothing_is_transferred() -> None:
    answer = asked(heavy_new_tokens=1_000_000)
    assert "nothing would move" in answer.verdict
    assert fact(answer, "Transfer of a heavy prompt") is None


def test_an_uploaded_trace_is_read(data_dir: Any) -> None:
    lines = "\n".join(mooncake_line(timestamp=1_000 * i) for i in range(3)).encode()
    library.upload("mine.jsonl", lines, Actor("user", "otto"))
    answer = asked(trace="mine.jsonl")
    assert any("only 3 requests" in each for each in answer.cautions)
    (data_dir / "traces").rename(data_dir / "gone")
    assert "cannot be read" in refused(trace="mine.jsonl")[1]


def refused(**given: object) -> tuple[str, str, str]:
    with pytest.raises(InvalidInput) as error:
        inputs_of(OFFLOAD, given)
    (problem,) = error.value.problems
    return problem.path, problem.message, problem.allowed


def test_a_question_without_an_answer_is_refused_with_the_allowed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, allowed = refused(trace="none")
    assert (path, "agentic-demo" in allowed) == ("trace", True)
    assert refused(prefill_instances=8) == (
        "prefill_instances",
        "no instance is left to decode",
        "1 to 7: at least one instance decodes",
    )
    assert refused(tp=64, model="Llama-3.1-8B")[0] == "model"
    monkeypatch.setattr(offload, "LARGEST_TRACE", -1)
    assert refused()[:2] == ("trace", "too large for a page")


def test_the_links_fill_the_form_with_experiments_that_can_be_started(otto_client: Client, data_dir: Any) -> None:
    pools = [
        {"name": "demo", "model": "m", "kind": "sim", "replicas": 2},
        {"name": "shared", "model": "m", "kind": "sim-store", "replicas": 1},
    ]
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": pools}}
    assert len(asked().links) == 5
    assert any("the fleet has no pool of the kind sim-store" in each for each in asked().cautions)
    fleet.apply_fleet(document, "ada")
    links = asked(order="session_first", transfer_gb_s=40.0).links
    assert [link.title.rpartition(" over ")[2] for link in links[2:5]] == [
        "NIXL",
        "Mooncake P2P",
        "the Mooncake store shared",
    ]
    for link in links:
        (text,) = parse_qs(urlsplit(link.href).query)["body"]
        body = json.loads(text)
        page = otto_client.get(link.href)
        assert page.status_code == 200
        assert body["name"] in page.content.decode()
        made = services.settled(ExperimentIn.model_validate({**body, "pool": "demo"}), Actor("user", "otto"))
        assert [arm["name"] for arm in made.arms] == [arm["name"] for arm in body["arms"]]


def test_the_authors_fleet_is_a_preset_and_a_matrix(otto_client: Client, data_dir: Any) -> None:
    answer = asked(**OFFLOAD.presets["The author's fleet"])
    assert fact(answer, "KV in use, adaptive") != fact(asked(), "KV in use, adaptive")
    (link,) = OFFLOAD.links
    page = otto_client.get(link.href).content.decode()
    assert page.count("h20_sxm") >= 8


@pytest.mark.parametrize("body", ["[1]", "{", '{"arms": 5}', '{"seeds": 5, "arms": ["adaptive_v1"]}', '{"wrong": 1}'])
def test_an_invalid_body_leaves_the_example(otto_client: Client, body: str) -> None:
    page = otto_client.get("/experiments/new", {"body": body})
    assert page.status_code == 200
    assert "Strategies on agentic sessions" in page.content.decode()
