"""Engines that another system started: inspected first, adopted by one document, observed until they are served."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client
from django.utils import timezone

from controlplane.doors.doctor import unconfirmed, without_exact_index
from controlplane.doors.telemetry.views import Page
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_pages.tests.test_indexes import says
from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.discovery.sources import Sources
from fleet.discovery.step import discover_step
from fleet.models import Instance, InstanceSource, Pool
from fleet.observe.lacking import OF_TRTLLM
from fleet.services import FleetError
from fleet.spec.fleet_spec import PoolSpec
from fleet.tests.discovery.other_engines import SERVERS, OtherEngine, sglang_info
from router.prefix.accuracy import FEWEST, Accuracy
from router.prefix.belief import believe
from router.tests.certificates import Authority

JSON = "application/json"


@pytest.fixture
def ready(db: None, live_redis: object) -> None:
    ensure_default_policy()


@pytest.fixture
def engines(ready: None) -> Iterator[list[OtherEngine]]:
    made = [OtherEngine(SERVERS[name]) for name in ("vllm", "sglang")]
    yield made
    for each in made:
        each.close()


def form(engines: list[OtherEngine], **more: str) -> dict[str, str]:
    return {"way": "urls", "urls": "\n".join(one.url for one in engines), "name": "seen", "policy": "default", **more}


def applied(client: Client, page: Any) -> Any:
    context = page.context
    typed = {"step": "apply", "document": context["document"], "digest": context["digest"], "reason": "Adopt seen"}
    return client.post("/fleet/apply", typed)


def test_running_engines_are_shown_before_anything_is_applied(operator: Client, engines: list[OtherEngine]) -> None:
    page = operator.post("/fleet/adopt", form(engines))
    assert page.status_code == 200, page.content
    found = page.context["found"]
    told = [(one.server, one.version, one.models, one.kv_events, one.role) for one in found.engines]
    assert told == [("vLLM", "0.32.0", ("m",), True, "both"), ("SGLang", "0.5.23", ("m",), True, "both")]
    assert not Pool.objects.exists()
    assert "Adopt, and observe" in page.content.decode()
    assert "it lacks" not in page.content.decode()


def test_an_engine_without_kv_events_is_diagnosed_with_the_missing_flag(operator: Client) -> None:
    engine = OtherEngine({path: page for path, page in SERVERS["vllm"].items() if path != "/kv_event_sources"})
    page = operator.post("/fleet/adopt", form([engine], tokenizer="/models/m")).content.decode()
    assert "for an exact index it lacks --kv-events-config" in page
    assert "it also needs --enable-prompt-tokens-details, which the engine does not report" in page
    pool = PoolSpec(name="seen", model="m", kind="external", engine={"urls": [engine.url], "tokenizer": "/models/m"})
    (finding,) = without_exact_index([pool])
    assert (finding.good, finding.text) == (False, f"no exact prefix index of {engine.url}")
    assert finding.advice == "needed: --kv-events-config"
    engine.close()


def test_an_engine_that_does_not_report_cached_tokens_is_diagnosed_once_it_serves(
    live_redis: redis.Redis,
) -> None:
    silent = {"index": "approximate", "why": believe("", "", Accuracy(), Accuracy(), unconfirmed=FEWEST).why}
    known: dict[str, object] = {"chat-0#0": silent, "chat-0#1": silent, "chat-1": {"index": "exact"}}
    says(live_redis, "router-1", known)
    (finding,) = unconfirmed()
    assert (finding.subject, finding.good) == ("instance chat-0", False)
    assert "--enable-prompt-tokens-details (vLLM) or --enable-cache-report (SGLang)" in finding.advice


def test_one_click_adopts_a_fleet_and_one_more_serves_it(operator: Client, engines: list[OtherEngine]) -> None:
    answer = applied(operator, operator.post("/fleet/adopt", form(engines)))
    assert answer.status_code == 302, answer.content
    pool = Pool.objects.get()
    assert (pool.model, pool.mode, pool.replicas, pool.kind) == ("m", "observe", 2, "external")
    page = operator.get("/fleet/pools/seen/").content.decode()
    assert "observed only" in page
    assert "Serve it through Weir" in page
    assert "Requests do not pass through Weir" in operator.get("/fleet/").content.decode()
    assert operator.post("/fleet/pools/seen/mode/serve", {"reason": "it works"}).status_code == 302
    assert Pool.objects.get().mode == "serve"
    entry = AuditEntry.objects.filter(action="fleet.applied").first()
    assert entry is not None
    assert entry.reason == "it works"
    assert operator.post("/fleet/pools/seen/mode/other").status_code == 404
    assert "in the mode serve already" in operator.post("/fleet/pools/seen/mode/serve", follow=True).content.decode()


def test_a_mixed_fleet_is_adopted_pool_by_pool_with_missing_flags_shown_first(
    operator: Client, ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "own")
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    vllm = OtherEngine(SERVERS["vllm"], secure=authority.issue("127.0.0.1").server())
    vllm.key = "sk-engine-1"
    bare = {"enable_cache_report": False, **json.loads(sglang_info(dp_size=4))}
    sglang = OtherEngine({**SERVERS["sglang"], "/server_info": json.dumps(bare)})
    trtllm = OtherEngine({**SERVERS["trtllm"], "/version": '{"version": "1.4.0rc1"}'})

    def look(name: str, engine: OtherEngine, **more: str) -> Any:
        return operator.post("/fleet/adopt", form([engine], name=name, **more))

    secure = {"authorities": f"file:{authority.path}"}
    assert "no authority that is trusted here has signed it" in look("one", vllm).content.decode()
    assert "the engine asks for a key, and none is named" in look("one", vllm, **secure).content.decode()
    seen = {
        "one": look("one", vllm, **secure, engine_key="env:QWEN_API_KEY"),
        "two": look("two", sglang),
        "three": look("three", trtllm),
    }
    told = {name: page.context["found"].engines[0] for name, page in seen.items()}
    assert {name: (one.server, one.kv_events, one.ranks, one.lacks) for name, one in told.items()} == {
        "one": ("vLLM", True, 1, ()),
        "two": ("SGLang", True, 4, ("--enable-cache-report",)),
        "three": ("TensorRT-LLM", False, 1, (OF_TRTLLM,)),
    }
    assert "4 ranks behind each" in seen["two"].content.decode()
    with_events = look("three", trtllm, kv_endpoint="tcp://{host}:5557").context["found"].engines[0]
    assert (with_events.kv_events, with_events.lacks) == (True, ())
    for name, engine, more in (
        ("one", vllm, {**secure, "engine_key": "env:QWEN_API_KEY"}),
        ("two", sglang, {}),
        ("three", trtllm, {"kv_endpoint": "tcp://{host}:5557"}),
    ):
        assert applied(operator, look(name, engine, **more)).status_code == 302
        assert operator.post(f"/fleet/pools/{name}/mode/serve", {"reason": "go"}).status_code == 302
        engine.close()
    assert {pool.name: (pool.mode, pool.engine.get("data_parallel_size")) for pool in Pool.objects.all()} == {
        "one": ("serve", None),
        "two": ("serve", 4),
        "three": ("serve", None),
    }


def test_a_prefill_server_of_sglang_cannot_serve_alone_and_adoption_says_so_first(
    operator: Client, ready: None
) -> None:
    info = {**json.loads(sglang_info()), "disaggregation_mode": "prefill"}
    engine = OtherEngine({**SERVERS["sglang"], "/server_info": json.dumps(info)})
    assert "it is a prefill server, which fails alone" in operator.post("/fleet/adopt", form([engine])).content.decode()
    half = {"role": "prefill", "connector": "sglang", "bootstraps": ["http://{host}:8998"]}
    told = []
    for more in ({}, half, {**half, "role": "decode"}):
        body = json.dumps({"engine": {"urls": [engine.url], **more}})
        (one,) = operator.post("/api/v1/fleet/discover", body, content_type=JSON).json()["engines"]
        told.append(bool(one["misplaced"]))
    assert told == [True, False, True]
    engine.close()


def test_options_without_a_field_are_typed_as_in_the_document(operator: Client, ready: None, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "own")
    client = authority.issue("client")
    engine = OtherEngine(SERVERS["vllm"], secure=authority.issue("engines.llm").server(authority))
    given = form([engine], authorities=f"file:{authority.path}")
    page = operator.post("/fleet/adopt", given).content.decode()
    assert "set tls: name to the name that it is for" in page
    assert "No engine answers: fix the problem shown beside it" in page
    shown = f"certificate: 'file:{client.certificate}', key: 'file:{client.key}'"
    page = operator.post(
        "/fleet/adopt", given | {"more": f"role: decode\nconnector: nixl\ntls: {{name: engines.llm, {shown}}}"}
    )
    (found,) = page.context["found"].engines
    assert (found.server, found.role, found.trouble) == ("vLLM", "decode", "")
    assert applied(operator, page).status_code == 302
    options = Pool.objects.get().engine
    assert (options["connector"], options["tls"]["name"]) == ("nixl", "engines.llm")
    assert options["tls"]["authorities"] == given["authorities"]
    for typed, why in (("a: [", "more"), ("role", "one per line"), ("rolle: decode", "rolle")):
        refused = operator.post("/fleet/adopt", given | {"more": typed})
        assert refused.status_code == 422
        assert why in refused.content.decode()
        assert typed in refused.content.decode()
    engine.close()


def test_further_options_keep_what_is_typed_and_replace_no_field(
    operator: Client, engines: list[OtherEngine], tmp_path: Path
) -> None:
    typed = form(engines, kv_endpoint="tcp://{host}:5557", authorities=f"file:{tmp_path}")
    for more in ("urls: [http://b]", "dns: b:1", "kv_endpoint: tcp://b:1", "tls: {authorities: 'file:/b'}"):
        page = operator.post("/fleet/adopt", typed | {"more": more})
        (problem,) = page.context["problems"]
        assert (page.status_code, problem.path, problem.value) == (422, "more", more.partition(":")[0])
    page = operator.post("/fleet/adopt", form(engines, more="data_parallel_size: 0"))
    assert [problem.path for problem in page.context["problems"]] == ["engine.data_parallel_size"]
    kubernetes = {"way": "kubernetes", "namespace": "llm", "more": "kubernetes: {context: '', port: '8000'}"}
    (problem,) = operator.post("/fleet/adopt", form([], **kubernetes)).context["problems"]
    assert "selector must be" in problem.text
    assert applied(operator, operator.post("/fleet/adopt", form(engines, more="kv_events: false"))).status_code == 302
    assert Pool.objects.get().engine["kv_events"] is False


def test_typed_ranks_take_precedence_over_those_that_the_engines_report(operator: Client, ready: None) -> None:
    engine = OtherEngine({**SERVERS["sglang"], "/server_info": sglang_info(dp_size=4)})
    page = operator.post("/fleet/adopt", form([engine], more="data_parallel_size: 1"))
    assert "data_parallel_size: 1" in page.context["own"]
    engine.close()


def test_engines_with_different_numbers_of_ranks_need_separate_pools(operator: Client, ready: None) -> None:
    engines = [OtherEngine({**SERVERS["sglang"], "/server_info": sglang_info(dp_size=ranks)}) for ranks in (2, 4)]
    found = operator.post("/fleet/adopt", form(engines)).context["found"]
    assert [one.lacks for one in found.engines] == [("data_parallel_size: 2",), ("data_parallel_size: 4",)]
    assert found.ranks == 1
    for each in engines:
        each.close()


def test_the_folder_of_the_model_for_the_exact_index_is_a_field_beside_the_kv_events(
    operator: Client, engines: list[OtherEngine]
) -> None:
    assert applied(operator, operator.post("/fleet/adopt", form(engines, tokenizer="sim"))).status_code == 302
    assert Pool.objects.get().engine["tokenizer"] == "sim"


def test_if_only_one_place_was_typed_it_is_inspected_whichever_is_selected(operator: Client, ready: None) -> None:
    page = operator.post("/fleet/adopt", form([], way="urls", urls="", file="/no/such/file", port="8000"))
    assert page.context["typed"].way == "file"
    assert "cannot be read" in page.content.decode()
    page = operator.post("/fleet/adopt", form([], way="dns", urls="http://127.0.0.1:9", file="/no/such/file"))
    assert page.context["typed"].way == "dns"
    assert page.status_code == 422


def test_the_page_of_an_adopted_instance_says_nothing_of_its_process(
    operator: Client, engines: list[OtherEngine]
) -> None:
    applied(operator, operator.post("/fleet/adopt", form(engines)))
    Instance.objects.create(pool=Pool.objects.get(), name="seen-0", ordinal=0, state="ready", url=engines[0].url)
    page = operator.get("/fleet/instances/seen-0/").content.decode()
    assert page.count("Its process stays: Weir does not run it.") == 2
    assert "its log is where it was started" in page
    assert "restarts the process" not in page
    assert "<dt>Pid</dt>" not in page


def test_problems_are_shown_on_the_form_and_nothing_is_lost(operator: Client, ready: None) -> None:
    for more, words in (
        ({"urls": "http://169.254.169.254"}, "must be http://host:port"),
        ({"urls": ""}, "must be http://host:port"),
        ({"way": "dns", "dns": "nowhere"}, "needs a port"),
        ({"way": "kubernetes", "namespace": "llm"}, "selector"),
        ({"way": "file", "file": "/no/such/file"}, "cannot be read"),
        ({"urls": "http://127.0.0.1:9", "name": "exp-1", "model": "m"}, "must not begin with exp-"),
    ):
        page = operator.post("/fleet/adopt", form([], **more))
        text = page.content.decode()
        assert words in text, more
        assert all(value in text for value in more.values() if value)
    assert not Pool.objects.exists()


def test_a_name_that_is_taken_is_refused(operator: Client, engines: list[OtherEngine]) -> None:
    applied(operator, operator.post("/fleet/adopt", form(engines)))
    page = operator.post("/fleet/adopt", form(engines))
    assert (page.status_code, "has this name already" in page.content.decode()) == (422, True)


def test_engines_that_do_not_answer_can_be_adopted_with_a_model(operator: Client, ready: None) -> None:
    page = operator.post("/fleet/adopt", form([], urls="http://127.0.0.1:9"))
    assert "No engine answers" in page.content.decode()
    page = operator.post("/fleet/adopt", form([], urls="http://127.0.0.1:9", model="m"))
    assert "does not answer" in page.content.decode()
    assert applied(operator, page).status_code == 302


def test_only_an_operator_may_let_the_server_inspect_engines(viewer: Client, engines: list[OtherEngine]) -> None:
    assert viewer.get("/fleet/adopt").status_code == 200
    assert viewer.post("/fleet/adopt", form(engines)).status_code == 403
    body = json.dumps({"engine": {"urls": [engines[0].url]}})
    assert viewer.post("/api/v1/fleet/discover", body, content_type=JSON).status_code == 403
    assert viewer.post("/fleet/pools/seen/mode/serve").status_code == 403
    assert engines[0].asked == []


def test_adoption_works_the_same_over_rest(operator: Client, engines: list[OtherEngine]) -> None:
    engine = {"urls": [one.url for one in engines]}
    found = operator.post("/api/v1/fleet/discover", json.dumps({"engine": engine}), content_type=JSON).json()
    assert [one["server"] for one in found["engines"]] == ["vLLM", "SGLang"]
    assert found["models"] == ["m"]
    pool = {"name": "seen", "model": "m", "kind": "external", "replicas": 2, "mode": "observe", "engine": engine}
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
    assert operator.put("/api/v1/fleet", json.dumps(document), content_type=JSON).status_code == 200
    answer = operator.post("/api/v1/pools/seen/serve", json.dumps({"reason": "go"}), content_type=JSON)
    assert (answer.status_code, answer.json()["mode"], answer.json()["source"]) == (200, "serve", None)
    assert operator.post("/api/v1/pools/seen/serve", "{}", content_type=JSON).status_code == 409
    assert operator.post("/api/v1/pools/seen/observe", "{}", content_type=JSON).json()["mode"] == "observe"
    wrong = operator.post("/api/v1/fleet/discover", json.dumps({"engine": {"urls": ["x"]}}), content_type=JSON)
    assert wrong.status_code == 422


def test_engines_that_require_a_key_are_adopted_with_a_reference_to_it(
    operator: Client, engines: list[OtherEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    for one in engines:
        one.key = "sk-engine-1"
    asked = operator.post("/fleet/adopt", form(engines)).content.decode()
    assert asked.count("GET /v1/models answers 401: the engine asks for a key, and none is named") == 2
    clear = operator.post("/fleet/adopt", form(engines, engine_key="sk-engine-1"))
    assert "env:NAME, whose name has API_KEY or ENGINE_KEY in it" in clear.content.decode()
    page = operator.post("/fleet/adopt", form(engines, engine_key="env:QWEN_API_KEY"))
    assert [one.server for one in page.context["found"].engines] == ["vLLM", "SGLang"]
    assert applied(operator, page).status_code == 302
    exported = operator.get("/api/v1/fleet").json()
    assert exported["spec"]["pools"][0]["engine"]["engine_key"] == "env:QWEN_API_KEY"
    answer = operator.put("/api/v1/fleet?dry_run=true", json.dumps(exported), content_type=JSON)
    assert (answer.status_code, answer.json()["changes"]) == (200, [])
    assert "sk-engine-1" not in page.content.decode() + json.dumps(exported)


def test_a_missing_key_is_reported_before_a_start(
    operator: Client, ready: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def findings() -> list[tuple[bool, str]]:
        pool = {"name": "p", "model": "m", "kind": "sim", "engine": {"engine_key": "env:QWEN_API_KEY"}}
        document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
        (start,) = operator.post("/api/v1/fleet/check", json.dumps(document), content_type=JSON).json()
        named = [one for one in start["findings"] if one["subject"] == "engine key env:QWEN_API_KEY"]
        assert "sk-engine-1" not in json.dumps(start)
        return [(one["good"], one["text"]) for one in named]

    missing = "its engine key is missing: the environment variable QWEN_API_KEY is not set or empty"
    assert findings() == [(False, missing)]
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    assert findings() == [(True, "can be read")]


def test_a_pool_that_weir_starts_cannot_be_observed(operator: Client, ready: None) -> None:
    pool = {"name": "own", "model": "llama-3.1-8b", "kind": "sim"}
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
    assert operator.put("/api/v1/fleet", json.dumps(document), content_type=JSON).status_code == 200
    assert operator.post("/api/v1/pools/own/observe", "{}", content_type=JSON).status_code == 422
    assert "Only observe it" not in operator.get("/fleet/pools/own/").content.decode()


def test_an_unreachable_source_is_shown_on_the_page_and_in_the_metrics(
    operator: Client, engines: list[OtherEngine], tmp_path: Any
) -> None:
    path = tmp_path / "engines.json"
    path.write_text(json.dumps([{"targets": [one.url.removeprefix("http://") for one in engines]}]))
    page = operator.post("/fleet/adopt", form([], way="file", file=str(path)))
    assert len(page.context["found"].engines) == 2
    assert applied(operator, page).status_code == 302
    sources = Sources()
    discover_step(sources, timezone.now())
    path.unlink()
    discover_step(sources, timezone.now())
    row = InstanceSource.objects.get()
    assert row.away_since is not None
    InstanceSource.objects.update(away_since=row.away_since - timezone.timedelta(seconds=90))
    text = operator.get("/fleet/pools/seen/").content.decode()
    assert "does not answer" in text
    assert "s old, is still in use: it lists 2 engines" in text
    assert "start or stop engines there" in text
    shown = operator.get("/api/v1/pools").json()
    assert shown[0]["source"]["age_s"] >= 90
    figures = {metric.name: metric.samples for metric in Page().collect()}
    assert figures["weir_source_age_seconds"][0].value >= 90
    assert figures["weir_source_engines"][0].value == 2
    assert figures["weir_source_gone_engines"][0].value == 0


def test_observing_a_pool_applies_no_rule_and_serving_it_does(
    operator: Client, engines: list[OtherEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serving takes requests, as a new pool does, so only then do the rules of policies apply."""
    asked: list[list[str]] = []

    def check(joins: Any, *words: Any) -> str:
        asked.append([join.pool for join in joins])
        return ""

    monkeypatch.setattr(actions.joining, "check_joins", check)
    monkeypatch.setattr(actions.joining, "record_joins", lambda *words: None)
    applied(operator, operator.post("/fleet/adopt", form(engines)))
    assert not any(asked)
    operator.post("/fleet/pools/seen/mode/serve", {"reason": "go"})
    assert asked[-1] == ["seen"]
    assert issubclass(actions.NotPossible, FleetError)
