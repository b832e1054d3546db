"""What an arm's output tokens cost: its recorded fleet, by the prices of the fleet document."""

import pytest

from controlplane.experiments.results.economics import UNKNOWN, of_arm
from fleet.systems.prices import Prices

FLEET = {"kind": "sim", "engine": {}}


def test_an_arm_pays_for_all_its_gpus_and_its_memory() -> None:
    assert of_arm(FLEET, 4, 1_000.0, Prices(gpu_hour=3.6)) == (250.0, 4.0)
    tiers = {"kind": "sim", "engine": {"dram_gb": 100.0}}
    assert of_arm(tiers, 4, 1_000.0, Prices(3.6, 0.009))[1] == 5.0


def test_prefill_instances_may_span_more_gpus() -> None:
    engine = {"kv": "neuron", "prefill_instances": 1, "model_profile": "Qwen3-32B", "tp": 2, "prefill_tp": 4}
    assert of_arm({"kind": "sim", "engine": engine}, 3, 800.0, Prices())[0] == 100.0


@pytest.mark.parametrize(
    ("fleet", "instances", "tokens_s"),
    [
        (None, 4, 1_000.0),
        (FLEET, 4, None),
        (FLEET, 0, 1_000.0),
        ({"kind": "gone", "engine": {}}, 4, 1_000.0),
        ({"kind": "sim", "engine": {"gone": 1}}, 4, 1_000.0),
        ({"kind": "vllm", "engine": {"device": "cpu"}}, 4, 1_000.0),
    ],
)
def test_it_is_unknown_without_gpus_tokens_or_a_known_fleet(fleet: object, instances: int, tokens_s: object) -> None:
    assert of_arm(fleet, instances, tokens_s, Prices()) == UNKNOWN  # type: ignore[arg-type]
