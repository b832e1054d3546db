"""The cost of an arm's output tokens, from its recorded fleet and the prices of the fleet document."""

import pytest

from controlplane.evidence.experiments.record import RecordedFleet
from controlplane.evidence.experiments.results.assemble import UNKNOWN, of_arm
from fleet.systems.prices import Prices


def fleet(kind: str = "sim", **engine: object) -> RecordedFleet:
    return RecordedFleet("p", "m", "default", kind, 1, engine, "local", {}, {})


def instances(count: int) -> list[str]:
    return [f"p-{number}" for number in range(count)]


def test_the_cost_of_an_arm_includes_all_its_gpus_and_its_memory() -> None:
    assert of_arm(fleet(), instances(4), 1_000.0, Prices(gpu_hour=3.6)) == (250.0, 4.0)
    assert of_arm(fleet(dram_gb=100.0), instances(4), 1_000.0, Prices(3.6, 0.009))[1] == 5.0


def test_ranks_of_an_instance_cost_as_much_as_the_same_number_of_instances() -> None:
    prices = Prices(gpu_hour=3.6, dram_gb_hour=0.009)
    behind_two = [f"p-{instance}#{rank}" for instance in range(2) for rank in range(4)]
    together = of_arm(fleet(data_parallel_size=4, dram_gb=100.0), behind_two, 1_000.0, prices)
    assert together == of_arm(fleet(dram_gb=100.0), instances(8), 1_000.0, prices) == (125.0, 10.0)


def test_a_group_of_context_gpus_is_counted_once_and_not_for_each_of_its_ranks() -> None:
    groups = fleet(kv="trtllm", context_servers="dwdp", prefill_instances=1, prefill_tp=5, tp=12)
    assert of_arm(groups, [*(f"p-0#{rank}" for rank in range(5)), "p-1"], 1_700.0, Prices())[0] == 100.0


def test_prefill_instances_may_span_more_gpus() -> None:
    spans = fleet(kv="neuron", prefill_instances=1, model_profile="Qwen3-32B", tp=2, prefill_tp=4)
    assert of_arm(spans, instances(3), 800.0, Prices())[0] == 100.0


@pytest.mark.parametrize(
    ("found", "count", "tokens_s"),
    [
        (None, 4, 1_000.0),
        (fleet(), 4, None),
        (fleet(), 0, 1_000.0),
        (fleet("gone"), 4, 1_000.0),
        (fleet(gone=1), 4, 1_000.0),
        (fleet("vllm", device="cpu"), 4, 1_000.0),
    ],
)
def test_the_cost_is_unknown_without_gpus_tokens_or_a_known_fleet(
    found: RecordedFleet | None, count: int, tokens_s: float | None
) -> None:
    assert of_arm(found, instances(count), tokens_s, Prices()) == UNKNOWN
