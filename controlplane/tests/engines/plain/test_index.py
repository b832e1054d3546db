"""The exact index for two vLLM whose caches are smaller than their traffic."""

import pytest

from controlplane.tests.engines.fleet import Fleet
from controlplane.tests.engines.talks import Talk, hold, receipts

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
BLOCK = 32  # tokens
HITS = "vllm:prefix_cache_hits_total"


def test_cached_tokens_are_predicted_while_the_caches_evict(fleet: Fleet) -> None:
    names = list(fleet.instances())
    exact = lambda: all("exact" in fleet.page(f"/fleet/instances/{name}/") for name in names)  # noqa: E731
    fleet.until(exact, "the index to be believed", 60)
    before = {name: fleet.metric(name, HITS) for name in names}
    talks = [Talk(number) for number in range(16)]
    answered = receipts(fleet, hold(fleet, talks, turns=8, words=100))
    assert all(one["index"] == "exact" for one in answered)
    assert sum(one["prompt_tokens"] for one in answered) > 10 * 2 * 8192
    for name in names:  # answers agree with the engine's metrics
        counted = fleet.metric(name, HITS) - before[name]
        assert counted == sum(one["cached_tokens"] for one in answered if one["instance"] == name)
    errors = [abs(one["predicted_cached"] - one["cached_tokens"]) for one in answered]
    evicted = sum(one["cached_tokens"] == 0 for one in answered) - len(talks)
    within = sum(error <= BLOCK for error in errors) / len(errors)
    mean = sum(errors) / len(errors)
    print(f"ENGINES exact index: n={len(answered)} mean error {mean:.1f} tokens, {within:.1%} within a block")
    print(f"ENGINES exact index: prefixes gone when their next turn came: {evicted}")
    assert evicted > 0
    assert within >= 0.9
