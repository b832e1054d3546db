"""What the twin computes with is what the pool's engines compute with."""

import re
from typing import Any

import pytest
import redis

from controlplane.twin.pool_model import Modelled, NotModelled, twin_of
from fleet.calibration import services
from fleet.calibration.describe import law_of as law_of_constants
from fleet.engine import profiles
from fleet.engine.law import law_of
from fleet.engine.scheduler import Limits
from fleet.models import Calibration, DesiredState, Instance, Pool
from fleet.tests.calibration.rows import age, instance, measure_well

pytestmark = pytest.mark.django_db


def pool(replicas: int = 2, kind: str = "sim", **engine: Any) -> Pool:
    return Pool.objects.create(name="chat", model="m", kind=kind, replicas=replicas, engine=engine)


def the_model(modelled: Modelled) -> Any:
    (model,) = set(modelled.fleet.instances.values())
    return model


def test_a_sim_pool_has_the_law_the_blocks_and_the_limits_of_its_engines() -> None:
    made = twin_of(pool(gpu="h200_sxm", model_profile="Qwen3-32B", tp=2, block_size=32, max_num_seqs=7))
    known = profiles.profile("h200_sxm", "Qwen3-32B", 2)
    model = the_model(made)
    assert model.law == law_of(known)
    assert model.kv_blocks == profiles.kv_blocks(known, 32)
    assert model.limits == Limits(32, 7, 8192)
    assert made.basis == "profile"
    assert made.about == "constants of h200_sxm, Qwen3-32B, tensor parallel 2"
    assert made.cautions == ()


def test_instances_that_are_alike_share_one_model_under_the_names_that_routers_know() -> None:
    fleet = twin_of(pool(3)).fleet
    assert list(fleet.instances) == ["chat-0", "chat-1", "chat-2"]
    assert len({id(model) for model in fleet.instances.values()}) == 1


def test_the_size_of_the_cache_and_the_longest_request_are_taken_from_the_options() -> None:
    model = the_model(twin_of(pool(kv_blocks=100, max_model_len=4096)))
    assert (model.kv_blocks, model.window) == (100, 1600)  # one request must always fit


def test_prefill_instances_have_their_role_and_their_connector() -> None:
    made = twin_of(pool(kv="nixl", prefill_instances=1, kv_gb_per_s=20))
    prefill, decode = made.fleet.instances.values()
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert prefill.connector == "nixl"
    assert prefill.transfers is not None
    assert (prefill.transfers.bytes_per_token, prefill.transfers.idle_bytes_per_s) == (131_072, 20e9)


def test_neurons_batches_are_those_of_the_role_in_the_twin_too() -> None:
    prefill, decode = twin_of(pool(kv="neuron", prefill_instances=1)).fleet.instances.values()
    assert (prefill.limits.batching, decode.limits.batching) == ("neuron_prefill", "neuron_decode")
    assert prefill.transfers is not None
    assert prefill.transfers.together


def test_the_store_that_instances_share_is_that_of_its_pool() -> None:
    Pool.objects.create(name="cellar", model="", kind="sim-store", engine={"capacity_gb": 2, "gb_per_s": 5})
    made = twin_of(pool(kv="mooncake_store", store_pool="cellar"))
    store = made.fleet.store
    assert store is not None
    assert (store.capacity_bytes, store.bytes_per_token, store.link.idle_bytes_per_s) == (2e9, 131_072, 5e9)
    assert made.cautions == ()


def test_a_store_whose_pool_is_gone_is_named_as_left_out() -> None:
    made = twin_of(pool(kv="mooncake_store", store_pool="cellar"))
    assert made.fleet.store is None
    assert made.cautions == ("the store cellar is not modelled: its pool is gone",)


def test_tiers_below_the_gpu_are_those_of_the_options() -> None:
    model = the_model(twin_of(pool(dram_gb=64, ssd_gb=1000, ssd_access="ssd-gds", tier_write="evict")))
    assert [(tier.device.name, tier.capacity_bytes) for tier in model.tiers.tiers] == [
        ("dram", 64e9),
        ("ssd-gds", 1e12),
    ]
    assert (model.tiers.write, model.tiers.always_load) == ("evict", False)


def test_an_instance_that_is_drained_on_request_is_left_out_as_it_is_in_the_fleet() -> None:
    made = pool(2)
    Instance.objects.create(pool=made, name="chat-0", ordinal=0)
    Instance.objects.create(pool=made, name="chat-1", ordinal=1, desired=DesiredState.DRAINED)
    assert list(twin_of(made).fleet.instances) == ["chat-0"]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"replicas": 0}, "pool chat has no instance that should run"),
        ({"kind": "sim-store"}, "which serves no requests"),
        ({"kind": "long-gone"}, "which serves no requests"),
        ({"gpu": "abacus"}, "no constants for abacus"),
    ],
)
def test_what_cannot_be_modelled_says_why(made: dict[str, Any], says: str) -> None:
    with pytest.raises(NotModelled, match=says):
        twin_of(pool(**made))


def test_context_servers_of_a_known_model_need_no_calibration() -> None:
    engine = {"dwdp_size": 2, "prefill_instances": 2, "chunked_prefill": False, "dwdp_contention_opt": True}
    engine |= {"attention_dp": True, "tensor_parallel": 8}
    r1 = Pool.objects.create(name="r1", model="DeepSeek-R1", kind="trtllm", replicas=3, engine=engine)
    with pytest.raises(NotModelled, match="GB on each of 1 GPUs, a GB200 has 186"):
        twin_of(r1)
    r1.engine |= {"dwdp_size": 4, "prefill_instances": 4}
    r1.replicas = 5
    made = twin_of(r1)
    assert (made.basis, len(set(made.fleet.instances.values()))) == ("transferred", 2)
    assert made.about.endswith("table 1 of arXiv 2604.01621; context servers: DWDP4")
    r1.model = "mine"
    with pytest.raises(NotModelled, match=r"no constants for mine.*or measure one with manage\.py calibrate r1-0$"):
        twin_of(r1)


def test_a_measurement_takes_precedence_over_known_constants(calibrated: Pool) -> None:
    Pool.objects.update(kind="trtllm", engine={"attention_dp": True, "tensor_parallel": 4}, model="DeepSeek-R1")
    Calibration.objects.update(kind="trtllm", model="DeepSeek-R1")
    assert twin_of(Pool.objects.get()).basis == "calibrated"


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch, live_redis: redis.Redis) -> Pool:
    """A pool of vLLM, one instance of which was measured."""
    monkeypatch.setattr(services, "measure", measure_well)
    made = instance().pool
    assert services.perform(services.ask_for("chat-0", "ada").pk)
    Calibration.objects.update(notes=[])
    return made


def test_a_pool_of_real_engines_computes_as_one_of_them_was_measured(calibrated: Pool) -> None:
    row = Calibration.objects.get()
    made = twin_of(calibrated)
    model = the_model(made)
    assert made.basis == "calibrated"
    assert re.fullmatch(
        r"calibrated on chat-0 on \d{4}-\d\d-\d\d \d\d:\d\d UTC, error \d% TTFT, \d% TPOT, n = 48", made.about
    )
    assert made.cautions == ()
    assert (model.law, model.api_s) == (law_of_constants(row.constants), row.constants["api_s"])
    assert (model.kv_blocks, model.limits, model.window) == (1024, Limits(32, 128, 8192), 16_384)
    assert (model.kv_events, model.role, model.connector) == (True, "both", "")


def test_an_old_calibration_and_other_settings_are_said(calibrated: Pool) -> None:
    age(Calibration.objects.get(), days=9)
    Pool.objects.update(engine={"max_num_seqs": 2})
    assert twin_of(Pool.objects.get()).cautions == (
        "the calibration is 9 days old",
        "the engine's settings have changed since the calibration",
    )


def test_what_speaks_against_the_measurement_is_said(calibrated: Pool) -> None:
    Calibration.objects.update(notes=["the law fits TTFT poorly, error 40%"])
    assert twin_of(calibrated).cautions == ("the law fits TTFT poorly, error 40%",)


def test_what_is_not_measured_of_the_engines_is_said(calibrated: Pool) -> None:
    Pool.objects.update(
        engine={"kv": "nixl", "prefill_instances": 1, "prefix_caching": False, "chunked_prefill": False}
    )
    made = twin_of(Pool.objects.get())
    assert made.cautions[1:] == (
        "KV transfers over nixl are not modelled: the twin computes those tokens",
        "prefix caching is off in the engines and on in the twin",
        "the engines compute a prompt in one step, the twin in chunks",
    )
    assert (the_model(made).role, the_model(made).connector) == ("prefill", "nixl")


def test_engines_that_were_never_measured_name_the_command() -> None:
    instance()
    with pytest.raises(NotModelled, match=r"measure one with manage\.py calibrate chat-0$"):
        twin_of(Pool.objects.get())


def test_a_calibration_of_another_model_does_not_count(calibrated: Pool) -> None:
    Pool.objects.update(model="another")
    with pytest.raises(NotModelled, match=r"manage\.py calibrate"):
        twin_of(Pool.objects.get())
