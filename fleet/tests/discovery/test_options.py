"""Options of a source in the document; each problem is reported once, with its path."""

from typing import Any

import pytest

from fleet.spec.fleet_spec import InvalidFleet, PoolSpec, config_hash, dump_fleet, parse_fleet

KUBERNETES = {"namespace": "llm", "selector": "app=vllm,tier!=test", "port": "8000"}


def document(mode: str = "serve", kind: str = "external", more: dict[str, Any] | None = None, **engine: Any) -> Any:
    pool = {"name": "p", "model": "m", "kind": kind, "engine": engine, "mode": mode, **(more or {})}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}


def problems(*given: Any, **engine: Any) -> dict[str, str]:
    with pytest.raises(InvalidFleet) as caught:
        parse_fleet(document(*given, **engine))
    return {problem.path.removeprefix("spec.pools[0]."): problem.text for problem in caught.value.problems}


@pytest.mark.parametrize(
    "engine",
    [
        {"kubernetes": KUBERNETES},
        {"kubernetes": {**KUBERNETES, "port": "8000,8001"}, "labels": {"role": "stage"}, "roles": {"ctx": "prefill"}},
        {"dns": "engines.llm.svc:8000"},
        {"dns": "_http._tcp.engines.llm"},
        {"file": "/etc/weir/engines.json"},
        {"urls": ["http://10.0.0.7:8000"], "server": "sglang", "kv_endpoint": "tcp://{host}:5557"},
    ],
)
def test_a_valid_source_is_accepted_and_unchanged_by_parsing(engine: dict[str, Any]) -> None:
    given = document(**engine)
    assert parse_fleet(given).pools[0].engine == engine
    assert dump_fleet(parse_fleet(given))["spec"]["pools"][0]["engine"] == engine


@pytest.mark.parametrize(
    ("engine", "where", "words"),
    [
        ({}, "urls", "must be http"),
        ({"dns": "a:1", "file": "f"}, "file", "cannot be combined with dns"),
        ({"urls": ["http://a:1"], "dns": "a:1"}, "dns", "cannot be combined with urls"),
        ({"dns": "engines.llm"}, "dns", "needs a port"),
        ({"dns": "_http._tcp.llm:8000"}, "dns", "needs a port"),
        ({"dns": "169.254.169.254:80"}, "dns", "must be name:port"),
        ({"dns": "10.0.0.7:80"}, "dns", "must be name:port"),
        ({"dns": "metadata:80"}, "dns", "must be name:port"),
        ({"dns": "a b:80"}, "dns", "must be name:port"),
        ({"kubernetes": {**KUBERNETES, "selector": ""}}, "kubernetes", "selector"),
        ({"kubernetes": {**KUBERNETES, "port": "70000"}}, "kubernetes", "port"),
        ({"kubernetes": {**KUBERNETES, "namespace": "../x"}}, "kubernetes", "namespace"),
        ({"kubernetes": {**KUBERNETES, "token": "x"}}, "kubernetes", "unknown key token"),
        ({"file": "f", "prefill_instances": 1}, "prefill_instances", "fixed list"),
        ({"file": "f", "kv_endpoint": "http://a:1"}, "kv_endpoint", "tcp://HOST:PORT"),
        ({"file": "f", "kv_endpoint": "tcp://169.254.169.254:1"}, "kv_endpoint", "tcp://HOST:PORT"),
        ({"file": "f", "kv_replay": "tcp://{host}:1"}, "kv_replay", "needs kv_endpoint"),
        ({"file": "f", "labels": {"rank": "x"}}, "labels", "unknown key rank"),
        ({"file": "f", "roles": {"x": "router"}}, "roles", "no role"),
        ({"file": "f", "server": "tgi"}, "server", "not allowed"),
        ({"file": "f", "lmcache": "{host}:8080"}, "lmcache", "must be http"),
        ({"file": "f", "lmcache": "http://169.254.169.254"}, "lmcache", "must be http"),
        ({"file": "f", "connector": "mooncake_p2p"}, "bootstraps", "one with {host} in it"),
    ],
)
def test_a_problem_of_a_source_is_reported_once(engine: dict[str, Any], where: str, words: str) -> None:
    found = problems(**engine)
    assert list(found) == [f"engine.{where}"]
    assert words in found[f"engine.{where}"]


def test_a_source_excludes_other_settings_of_the_number_of_instances() -> None:
    scaled = {"autoscale": {"target_queue": 4}, "schedule": {"windows": []}}
    assert set(problems("serve", "external", scaled, dns="a:1")) == {"autoscale", "schedule"}


def test_only_external_engines_are_observed() -> None:
    assert "mode" in problems("observe", "sim")
    assert "mode" in problems("watch", "external", dns="a:1")
    seen = parse_fleet(document("observe", dns="a:1"))
    assert dump_fleet(seen)["spec"]["pools"][0]["mode"] == "observe"
    assert "mode" not in dump_fleet(parse_fleet(document("serve", dns="a:1")))["spec"]["pools"][0]


def test_an_upgrade_or_another_source_restarts_no_instance() -> None:
    def of(**engine: Any) -> str:
        return config_hash(PoolSpec("p", "m", "external", engine=engine))

    # the hash that this pool had before there were sources
    assert of(urls=["http://10.0.0.7:8000"]) == "db21fc874d1c6e1a"
    assert of(dns="a:1") == of(file="f") == of(kubernetes=KUBERNETES, labels={"role": "x"})
    assert of(dns="a:1", server="sglang") != of(dns="a:1")
