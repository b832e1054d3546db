"""An upgrade of Weir restarts no engine: a pool declared under an earlier version keeps its hash."""

from typing import Any

import pytest

from fleet.kinds import KINDS
from fleet.spec.fleet_spec import PoolSpec, config_hash

HASHES = [
    ("vllm", {"model": "/models/llama"}, "b9bedd9cbaa088b4"),
    (
        "vllm",
        {"model": "/models/llama", "tensor_parallel": 2, "kv": "mooncake-store", "master": "m"},
        "2b6d8a6b45f98c62",
    ),
    ("vllm", {"model": "/models/llama", "kv": "nixl"}, "198540f27b6ee304"),
    ("external", {"urls": ["http://10.0.0.1:8000"]}, "63d275e2dfd57cf6"),
    ("sim", {}, "173fc89738a793fc"),
    ("sim", {"kv": "nixl"}, "d685bbe6972ae464"),
    ("sim-store", {}, "6bf8b7d34cbbbff8"),
    ("sglang", {}, "5713658a03454647"),
    ("mooncake-master", {}, "a5a8788261cdb2c5"),
    ("mooncake-client", {}, "1dd04d9a5836f667"),
    ("neuron", {}, "276e18085f92b7d6"),
    ("trtllm", {}, "5bc897fdb1366ec0"),
]


@pytest.mark.parametrize(("kind", "engine", "hashed"), HASHES)
def test_a_pool_of_an_earlier_version_keeps_its_hash(kind: str, engine: dict[str, Any], hashed: str) -> None:
    assert config_hash(PoolSpec("chat", "llama", kind, engine=engine)) == hashed


def test_every_kind_has_a_hash() -> None:
    assert {kind for kind, _, _ in HASHES} == KINDS.keys()


def test_an_option_added_later_affects_the_hash_only_if_used() -> None:
    def of(**engine: Any) -> str:
        return config_hash(PoolSpec("chat", "llama", "vllm", engine={"model": "/models/llama", **engine}))

    assert of(data_parallel_size=1) == of() != of(data_parallel_size=2)


def test_an_option_that_only_the_twin_reads_restarts_no_server() -> None:
    hot = PoolSpec("chat", "llama", "trtllm", engine={"hot_experts": 1.2})
    assert config_hash(hot) == config_hash(PoolSpec("chat", "llama", "trtllm"))
