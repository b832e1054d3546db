"""A router applies policies and policy files in the format of an older control plane."""

import json
from pathlib import Path

import pytest

from router.contract.redis.published import PolicyValue
from router.pool.pool import Pool
from router.standalone.files import read_policy

GOLDEN = Path(__file__).parents[1] / "policy/golden/schema_1"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_a_published_policy_of_schema_1_is_applied_with_its_own_sha256(path: Path) -> None:
    old = json.loads(path.read_text())
    pool = Pool("demo")
    assert pool.take_policy(PolicyValue(policy="night", version=3, sha256=old["sha256"], document=old["document"]), 1.0)
    assert (pool.version, pool.policy["strategy.name"]) == (3, path.stem)
    assert pool.policy["classes.heavy_new_tokens"] == 15_000


def test_a_policy_file_of_schema_1_is_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("schema: 1\nroute: {name: cache_aware, hit_weight: 3}\n")
    assert read_policy(file).document["route"]["hit_weight"] == 3
