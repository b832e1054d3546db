"""The daily saving of tiers: tokens loaded instead of computed, beside the price of the memory."""

from dataclasses import replace

import pytest
from django.test import Client

from controlplane.evidence.twin.pool_model import NotModelled
from controlplane.evidence.twin.prompt_cost import PromptCost
from controlplane.evidence.twin.simulation.types import TwinFleet
from controlplane.live.dashboard.frame.tiers import TierRow
from controlplane.pages.fleet_ops import tier_saving as module
from controlplane.pages.fleet_ops.tier_saving import saving, tier_saving
from controlplane.pages.fleet_pages.views import twin_source
from fleet import services
from fleet.kinds import KINDS
from fleet.kinds.kind import Hardware, Launch
from fleet.kinds.options.option import build
from fleet.models import Pool
from fleet.systems.prices import Prices
from router.contract.redis.sample import TierSample

SIM = KINDS["sim"]
assert SIM.twin_model is not None
ENGINE = SIM.twin_model(build(SIM.spec, {"dram_gb": 100.0}), Launch("p-0", "m", "127.0.0.1", {}, "python")).engine
FLEET = TwinFleet({"p-0": ENGINE, "p-1": ENGINE})
COST = PromptCost(0.0001, has_gpus=True)
READ = 131_072 * 1_000.0  # 1,000 tokens of Llama-3.1-8B per second
ROW = TierRow("host", TierSample(read_bytes_per_s=READ))


def test_loaded_tokens_are_converted_to_saved_gpu_hours() -> None:
    found = saving(READ, FLEET, COST, Hardware(2, 200.0), Prices(gpu_hour=5.0, dram_gb_hour=0.01))
    assert found is not None
    assert found.tokens == pytest.approx(86_400_000)
    assert found.gpu_hours == pytest.approx(86_400_000 * 0.0001 / 3_600)
    assert found.dollars == pytest.approx(5 * found.gpu_hours)
    assert found.costs == pytest.approx(48)
    assert not found.pays
    assert replace(found, costs=0.1).pays


def test_a_saving_is_unknown_without_tiers_or_gpus() -> None:
    plain = TwinFleet({"p-0": replace(ENGINE, tiers=None)})
    assert saving(READ, plain, COST, Hardware(1), Prices()) is None
    assert saving(READ, FLEET, replace(COST, has_gpus=False), Hardware(0), Prices()) is None


@pytest.fixture
def pool(db: None) -> Pool:
    pools = [{"name": "p", "model": "m", "kind": "sim", "replicas": 2, "engine": {"dram_gb": 100.0}}]
    services.apply_fleet(
        {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": pools}}, "ada"
    )
    return Pool.objects.get()


def test_a_pool_is_priced_by_its_document(pool: Pool, vera_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tier_saving(pool, [ROW])
    assert found is not None
    assert found.costs == pytest.approx(200 * 0.0088 * 24)
    monkeypatch.setattr("controlplane.pages.fleet_pages.views.tier_rows", lambda samples: [ROW])
    assert "86,400,000 tokens are loaded" in vera_client.get("/fleet/pools/p/").content.decode()


def test_a_pool_of_ranks_saves_and_costs_as_much_as_a_pool_of_the_same_number_of_instances(db: None) -> None:
    alone, ranked = (
        Pool(pk=0, name="p", model="m", kind="sim", replicas=replicas, engine={"dram_gb": 100.0} | engine)
        for replicas, engine in ((8, {}), (2, {"data_parallel_size": 4}))
    )
    saved = tier_saving(alone, [ROW])
    assert saved is not None
    assert tier_saving(ranked, [ROW]) == saved


def test_nothing_is_shown_without_loads_or_without_constants(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tier_saving(pool, []) is None
    assert tier_saving(Pool(name="q", kind="gone"), [ROW]) is None

    def unknown(_: Pool) -> None:
        raise NotModelled("calibrate it")

    monkeypatch.setattr(module, "twin_of", unknown)
    assert tier_saving(pool, [ROW]) is None


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({}, "constants of h100_sxm, Llama-3.1-8B: its model, GPU and layout have one. Expected error: TPOT 5"),
        ({"model_profile": "gpt-oss-120b"}, "tables of h100_sxm, gpt-oss-120b, tp 1 (aiconfigurator-core 0.12.0"),
        ({"model_profile": "Llama-3.3-70B", "gpu": "h200_sxm", "tp": 8}, "transferred from Llama-3.3-70B tp4"),
    ],
)
def test_a_pools_page_says_which_profile_the_twin_uses_for_it_and_why(
    db: None, vera_client: Client, engine: dict[str, object], says: str
) -> None:
    pools = [{"name": "p", "model": "m", "kind": "sim", "engine": engine}]
    services.apply_fleet(
        {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": pools}}, "ada"
    )
    assert says in vera_client.get("/fleet/pools/p/").content.decode()


def test_unknown_engines_are_shown_with_advice(db: None) -> None:
    found = twin_source(Pool.objects.create(name="q", model="m", kind="vllm"))
    assert found is not None
    assert (found.about, "not calibrated: measure one with" in found.why) == ("", True)
    assert twin_source(Pool(name="store", kind="sim-store")) is None
