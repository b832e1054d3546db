"""Files of a router without a control plane: each error is one line with its place, value and allowed values."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from router.contract.net.engine_tls import EngineTls
from router.contract.redis.published import KvFacts
from router.options import REQUIRE_KEYS, VARIABLES, arguments, from_environment
from router.policy.schema import document
from router.standalone.files import listed, read_instances, read_policy
from router.standalone.text import BadInput


def test_instances_are_urls_with_their_facts():
    kv = "kv.pair=a:1;kv.bytes_per_token=160;kv.takes_lent=true;kv.unknown=1"
    given = f"http://a:1, https://b/;id=two;role=prefill;connector=nixl;{kv};events=http://b:9;tokenizer=/m"
    facts = KvFacts(pair="a:1", bytes_per_token=160, takes_lent=True)
    two = listed("two", "https://b", role="prefill", connector="nixl", kv=facts, events="http://b:9", tokenizer="/m")
    assert read_instances(given) == [listed("a:1", "http://a:1"), two]


def test_an_instance_uses_its_own_engine_key_or_the_common_one():
    read = read_instances("http://a:1,http://b:1;engine_key=file:/etc/weir/b", "env:VLLM_API_KEY")
    assert [each.engine_key for each in read] == ["env:VLLM_API_KEY", "file:/etc/weir/b"]


def test_an_instance_over_tls_names_its_certificate_authorities():
    (read,) = read_instances("https://a:1;tls.authorities=file:/ca.pem;tls.name=engines.llm")
    assert read.tls == EngineTls("file:/ca.pem", name="engines.llm")


def test_an_engine_key_in_plain_text_is_refused_without_printing_it():
    with pytest.raises(BadInput) as caught:
        read_instances("http://a:1;engine_key=sk-secret-1")
    assert "sk-secret-1" not in str(caught.value)


def test_engines_under_paths_of_one_host_are_distinguished():
    read = read_instances("https://a/llm/one/,http://a:1/two;id=b")
    assert read == [listed("a-llm-one", "https://a/llm/one"), listed("b", "http://a:1/two")]


def test_a_file_has_one_entry_per_line_and_comments(tmp_path):
    path = tmp_path / "engines"
    path.write_text("# ours\n\nhttp://a:1  # left\nhttp://b:2;id=b\n")
    assert [each.id for each in read_instances(f"@{path}")] == ["a:1", "b"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "--instances: url: not the URL of an instance; allowed: http://HOST:PORT or https://HOST:PORT, with"),
        ("a:1", "--instances: url: not the URL of an instance"),
        ("http://a:1/v1", "(got 'http://a:1/v1')"),
        ("http://u:p@a:1", "not the URL of an instance"),
        ("http://a:99999", "url: Port out of range 0-65535; allowed: http://HOST:PORT"),
        ("http://a:1,http://a:1", "--instances: http://a:1 is there twice (a:1)"),
        ("http://a:1,http://b:1;id=a:1", "http://b:1 is there twice (a:1)"),
        ("http://a:1;role=cook", "role: not a role; allowed: both, prefill, decode (got 'cook')"),
        ("http://a:1;connector=tin", "connector: not a connector; allowed: nixl, mooncake_store"),
        ("http://a:1;colour=red", "colour: unknown key; allowed: id, role, connector"),
        ("http://a:1;kv.bytes_per_token=many", "kv.bytes_per_token: not a number; allowed: the bytes of one token"),
        ("http://a:1;kv.takes_lent=often", "kv.takes_lent: not a bool; allowed: true, false (got 'often')"),
        ("http://a:1;role", "role: no value; allowed: key=value"),
        ("http://a:1;id=a;id=b", "id: given twice"),
        ("http://a:1;id=a b", "id: not a name; allowed: 1 to 100 of"),
        ("https://a:1;tls.key=sk-1", "tls: not a reference to certificates; allowed: authorities (system, or env:"),
        ("http://a:1;tls.authorities=file:/ca.pem", "url: would be asked without TLS, and tls is given"),
        ("http://a:1;engine_key=sk-1", "engine_key: not a reference to a key; allowed: env:NAME"),
    ],
)
def test_an_invalid_instance_is_reported(given, says):
    with pytest.raises(BadInput) as caught:
        read_instances(given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"# nothing\n", "it names no instance; write one URL per line"),
        (b"http://a:1\nb\n", ", line 2: url: not the URL of an instance"),
    ],
)
def test_an_invalid_instances_file_is_reported(tmp_path, content, says):
    path = tmp_path / "engines"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_instances(f"@{path}")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_policy_is_read_with_its_hash(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document.default("lpwl")))
    found = read_policy(path)
    assert (found.document, found.sha256) == (document.default("lpwl"), document.sha256(document.default("lpwl")))


@pytest.mark.parametrize("name", ["policy.yaml", "policy.YML"])
def test_a_policy_in_yaml_has_the_same_hash_as_in_json(tmp_path, name):
    path = tmp_path / name
    path.write_text(yaml.safe_dump(document.default("lpwl")))
    assert read_policy(path).sha256 == document.sha256(document.default("lpwl"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: [", "not YAML: "),
        ("- !!python/object/apply:os.getcwd []", "not YAML: line 1, column 3: could not determine a constructor"),
        ("schema: 1\nroute: {name: lpwl, name: random}", "not YAML: line 2, column 21: the key 'name' is given twice"),
        ("a: &x 1\nb: *x", "not YAML: line 2, column 4: aliases (*name) are not allowed"),
        ("[" * 51, "not YAML: line 1, column 51: nested deeper than 50"),
        ("{[a]: 1}", "not YAML: line 1, column 2: ['a'] cannot be a key"),
        ("schema: 1\nroute: {name: magic}", "strategy.name: "),
        ("", "document: the document must be a JSON object"),
    ],
)
def test_an_invalid_policy_in_yaml_is_reported(tmp_path, content, says):
    path = tmp_path / "policy.yaml"
    path.write_text(content)
    with pytest.raises(BadInput) as caught:
        read_policy(path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON: "),
        ('{"schema": 1, "schema": 1}', "not JSON: the key 'schema' is given twice"),
        ("[" * 100_000, "not JSON: "),
        ("[]", "document: the document must be a JSON object"),
        ('{"schema": 1, "strategy": {"name": "magic"}}', "strategy.name: "),
        ('{"schema": 1, "classes": {"heavy_new_tokens": -1}}', "classes.heavy_new_tokens: "),
        (json.dumps({"schema": 1, **{f"k{i}": 1 for i in range(9)}}), "; and 6 more"),
    ],
)
def test_an_invalid_policy_is_reported(tmp_path, content, says):
    path = tmp_path / "policy.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInput) as caught:
        read_policy(path)
    assert str(caught.value).startswith(f"--policy {path}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--redis redis://x --instances http://a:1", "--redis and --instances: give one of them"),
        ("", "no instances: give --instances URL,URL, or --redis URL (or set REDIS_URL)"),
        ("--redis redis://x --policy p.json", "--policy goes with --instances only"),
        ("--redis redis://x --model m", "--model goes with --instances only"),
        ("--redis redis://x --keys k.yaml", "--keys goes with --instances only"),
        ("--redis redis://x --engine-key env:API_KEY", "--engine-key goes with --instances only"),
        ("--instances http://a:1 --root-path llm", "--root-path 'llm': allowed are segments of A-Z a-z 0-9 . _ ~ -"),
        ("--instances http://a:1 --port 70000", "--port 70000: allowed are 0 to 65535"),
        ("--instances http://a:1 --shared-port 0", "--shared-port 0: allowed are 1 to 65535"),
        ("--instances http://a:1 --index a,", "--index '': a socket's path has 1 to 107 bytes"),
        ("--instances http://a:1 --index /a/x,/b/x", "--index /a/x,/b/x: the sockets must lie in one folder"),
        ("--instances http://a:1 --client-stall 0.5", "--client-stall 0.5: allowed are 1 to 86400"),
        ("--instances http://a:1 --client-stall nan", "--client-stall nan: allowed are 1 to 86400"),
        ("--instances http://a:1 --max-body-bytes 1000", "--max-body-bytes 1000: allowed is 33554432"),
        ("--instances http://a:1 --port x", "argument --port: invalid int value: 'x'"),
    ],
)
def test_conflicting_flags_are_reported_in_one_line_with_status_two(monkeypatch, capsys, flags, says):
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        arguments(flags.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"router: {says}")
    assert printed.count("\n") == 1


def test_redis_url_of_the_environment_does_not_conflict_with_instances(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://x")
    assert arguments(["--instances", "http://a:1"]).redis is None
    assert arguments([]).redis == "redis://x"


def test_the_engine_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("WEIR_ROUTER_ENGINE_KEY", "env:VLLM_API_KEY")
    monkeypatch.setenv("REDIS_URL", "redis://x")
    assert arguments(["--instances", "http://a:1"]).engine_key == "env:VLLM_API_KEY"
    assert arguments(["--instances", "http://a:1", "--engine-key", "file:/k"]).engine_key == "file:/k"
    assert arguments([]).engine_key is None


def test_invalid_options_end_the_router_with_status_two_and_one_line():
    argv = [sys.executable, "-m", "router", "--port", "0", "--instances", "nonsense"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr.startswith("router: --instances: url: not the URL of an instance")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("rollout", [{"mode": "full"}, {"mode": "split", "share": 0.1}])
def test_a_rollout_is_refused_since_a_router_alone_has_no_deliveries(tmp_path, rollout):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({**document.default(), "rollout": rollout}))
    with pytest.raises(BadInput, match="rollout: a router alone has no deliveries: one version serves all requests"):
        read_policy(file)


def test_the_policy_named_in_the_readme_is_the_default():
    named = read_policy(Path(__file__).parents[3] / "examples" / "policy.json")
    assert document.parse(named.document) == document.parse(document.default())


@pytest.fixture
def environment(monkeypatch):
    """Set a router's environment to these settings alone."""

    def set_to(**variables):
        for name in ("REDIS_URL", REQUIRE_KEYS, *VARIABLES):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_to


@pytest.mark.parametrize(("url", "exposed"), [("", False), ("http://10.0.0.5:8080", True), ("http://[::1]:1", False)])
def test_the_environment_configures_a_router_under_another_server(environment, url, exposed):
    environment(WEIR_ROUTER_INSTANCES="http://a:1,http://b:2", WEIR_ROUTER_ID="west", WEIR_ROUTER_URL=url)
    made = from_environment()
    assert made.id == "west"
    assert list(made.pools.get("default").endpoints) == ["a:1", "b:2"]
    assert made.pools.auth.exposed is exposed


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "no instances: give WEIR_ROUTER_INSTANCES URL,URL, or REDIS_URL"),
        ({"WEIR_ROUTER_INSTANCES": "x"}, "WEIR_ROUTER_INSTANCES: url: not the URL of an instance"),
        ({"WEIR_ROUTER_REQUIRE_KEYS": "yes"}, "WEIR_ROUTER_REQUIRE_KEYS=yes: allowed are 0 and 1"),
        ({"REDIS_URL": "nonsense"}, "REDIS_URL nonsense: "),
        (
            {"REDIS_URL": "redis://x", "WEIR_ROUTER_MODEL": "m"},
            "WEIR_ROUTER_MODEL goes with WEIR_ROUTER_INSTANCES only",
        ),
        (
            {"WEIR_ROUTER_INSTANCES": "http://a:1", "WEIR_ROUTER_REQUIRE_KEYS": "1"},
            "WEIR_ROUTER_REQUIRE_KEYS goes with REDIS_URL only: with WEIR_ROUTER_INSTANCES, give WEIR_ROUTER_KEYS",
        ),
    ],
)
def test_a_wrong_environment_names_its_variables(environment, variables, says):
    environment(**variables)
    with pytest.raises(ValueError, match=re.escape(says)):
        from_environment()
