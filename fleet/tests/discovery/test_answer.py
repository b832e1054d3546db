"""The entries of a source that become instances: the pool's own, with roles from labels, at allowed addresses."""

import pytest

from fleet.discovery.answer import judged
from fleet.kinds.external import EXTERNAL, ExternalSpec, event_address
from fleet.kinds.kind import Launch
from fleet.kinds.listed import ListedEngine
from fleet.spec.sections import MAX_REPLICAS
from router.contract.redis.published import InstanceRole


def engine(number: int, url: str = "", **labels: str) -> ListedEngine:
    given = {name.replace("__", "."): value for name, value in labels.items()}
    return ListedEngine(f"k{number}", url or f"http://10.0.0.{number}:8000", f"pod-{number}", labels=given)


def spec(**options: object) -> ExternalSpec:
    return ExternalSpec(**({"file": "engines.json"} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "role"), [("prefill", "prefill"), ("decode", "decode"), ("prefill-decode", "both"), ("router", None)]
)
def test_the_label_of_llm_d_names_the_role(value: str, role: InstanceRole | None) -> None:
    found = ListedEngine("k", "http://10.0.0.1:8000", labels={"llm-d.ai/role": value})
    assert judged(spec(), "p", [found]).engines[0].role == role


def test_the_document_maps_other_labels_and_values() -> None:
    options = spec(labels={"role": "stage"}, roles={"context": "prefill", "generation": "decode"})
    found = judged(options, "p", [engine(1, stage="context"), engine(2, stage="generation"), engine(3)]).engines
    assert [one.role for one in found] == ["prefill", "decode", None]


def test_one_source_feeds_several_pools_by_a_label() -> None:
    options = spec(labels={"pool": "weir"})
    both = [engine(1, weir="chat"), engine(2, weir="code"), engine(3)]
    assert [one.key for one in judged(options, "chat", both).engines] == ["k1"]
    assert [one.key for one in judged(options, "code", both).engines] == ["k2"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254:80",
        "http://metadata.google.internal",
        "http://user@10.0.0.7:8000",
        "http://10.0.0.7:8000/path?query",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_weir_may_not_connect_to_becomes_no_instance(url: str) -> None:
    found = judged(spec(), "p", [engine(1), engine(2, url)])
    assert [one.key for one in found.engines] == ["k1"]
    assert found.refused[0].startswith(url)


def test_a_pool_takes_only_as_many_engines_as_allowed() -> None:
    count = MAX_REPLICAS + 88
    many = [ListedEngine(f"k{n}", f"http://10.0.{n // 200}.{n % 200}:8000", f"{n:04}") for n in range(count)]
    found = judged(spec(), "p", many)
    assert len(found.engines) == MAX_REPLICAS
    assert len(found.refused) == 20


def test_an_engine_gets_its_role_bootstrap_and_events_from_its_entry() -> None:
    options = spec(
        connector="mooncake_p2p",
        bootstraps=("http://{host}:8998",),
        kv_endpoint="tcp://{host}:5557",
        kv_replay="tcp://{host}:5558",
    )
    launch = Launch("p-0", "m", "", {}, "", listed=ListedEngine("k", "http://[fd12::7]:8000", role="prefill"))
    made = EXTERNAL.wire(options, launch)
    assert (made.role, made.kv.bootstrap) == ("prefill", "http://[fd12::7]:8998")
    assert made.events == "tcp://[fd12::7]:5557?replay=tcp%3A%2F%2F%5Bfd12%3A%3A7%5D%3A5558"
    assert EXTERNAL.url(options, launch) == "http://[fd12::7]:8000"


def test_events_are_left_out_if_disabled() -> None:
    launch = Launch("p-0", "m", "", {}, "", listed=ListedEngine("k", "http://10.0.0.7:8000"))
    assert EXTERNAL.wire(spec(kv_endpoint="tcp://{host}:5557", kv_events=False), launch).events == ""
    assert EXTERNAL.wire(spec(), launch).events == ""
    assert EXTERNAL.wire(spec(kv_events=True), launch).events == "http://10.0.0.7:8000"
    assert event_address("tcp://{host}:1", None, "h", "kv") == "tcp://h:1?topic=kv"
