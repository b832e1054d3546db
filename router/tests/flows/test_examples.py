"""In the examples with prefill and decode instances, prefill instances compute every prompt, and decode instances
decode it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from router.tests.flows.conftest import PROMPT, Build

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("fleet-pd-*.yaml"))
COMPUTED = 'prompt_tokens_by_source_total{model_name="llama",engine="0",source="local_compute"'
REST = 16  # tokens that a decoder computes itself: those of an incomplete block, and the last one


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_no_prompt_reaches_a_decoder_of_an_example_without_its_kv(pair: Build, path: Path) -> None:
    (pool,) = yaml.safe_load(path.read_text())["spec"]["pools"]
    assert pool["policy"] == "prefill-decode"
    kv, prefilling = pool["engine"]["kv"], pool["engine"]["prefill_instances"]
    roles = (*["prefill"] * prefilling, "decode")
    world = await pair(kv, roles)
    world.published.policy(strategy="adaptive_offload")  # the policy of the example prefill-decode
    await world.until(lambda: world.pool.policy["strategy.name"] == "adaptive_offload")
    asked: list[dict[str, Any]] = [{"prompt": PROMPT}, {"prompt": "a short one " * 40}, {"prompt": "again " + PROMPT}]
    for body in asked:
        response = await world.ask(**body)
        assert (response.status_code, response.headers["x-weir-flow"]) == (200, f"offload_{kv}")
        assert response.headers["x-weir-instance"] == f"demo-{prefilling}"
    assert world.sims[-1].figure(COMPUTED) <= REST * len(asked)
    await world.nothing_is_left()
