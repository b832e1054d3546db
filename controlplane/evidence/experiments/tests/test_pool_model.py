"""The twin computes with the same model as the pool's engines."""

import re
from typing import Any

import msgspec
import pytest
import redis

from controlplane.evidence.twin.pool_model import Modelled, NotModelled, twin_of
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.tests.builders import asks, policy
from fleet.calibration import services
from fleet.engine import profiles
from fleet.engine.law import law_from, law_of
from fleet.engine.scheduler import Limits
from fleet.kinds import KINDS
from fleet.kinds.kind import check_engine
from fleet.models import Calibration, DesiredState, Instance, Pool
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import config_hash
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


def test_a_sim_pool_of_tables_says_their_source_and_the_expected_error_of_their_family() -> None:
    made = twin_of(pool(model_profile="MiniMax-M2.5", tp=1, data_parallel_size=4, expert_parallel=True))
    assert len(made.fleet.instances) == 8  # two instances of four ranks
    assert made.about.startswith("tables of h100_sxm, MiniMax-M2.5, tp 1, dp 4, ep 4 (aiconfigurator-core 0.12.0")
    assert (made.basis, made.expected["tpot"], made.expected["ttft_p99"]) == ("profile", 0.24, None)
    assert any("plain FP8" in text for text in made.cautions)
    assert any("mixtures of experts stall" in text for text in made.cautions)


def test_equal_instances_share_one_model_under_the_names_that_routers_know() -> None:
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


def test_neurons_batches_in_the_twin_follow_the_role() -> None:
    prefill, decode = twin_of(pool(kv="neuron", prefill_instances=1)).fleet.instances.values()
    assert (prefill.limits.batching, decode.limits.batching) == ("neuron_prefill", "neuron_decode")
    assert prefill.transfers is not None
    assert prefill.transfers.together


def test_the_store_of_a_pool_is_the_one_that_its_instances_share() -> None:
    Pool.objects.create(name="cellar", model="", kind="sim-store", engine={"capacity_gb": 2, "gb_per_s": 5})
    made = twin_of(pool(kv="mooncake_store", store_pool="cellar"))
    store = made.fleet.store
    assert store is not None
    assert (store.capacity_bytes, store.bytes_per_token, store.link.idle_bytes_per_s) == (2e9, 131_072, 5e9)
    assert made.cautions == ()


def test_a_store_whose_pool_is_gone_is_reported_as_left_out() -> None:
    made = twin_of(pool(kv="mooncake_store", store_pool="cellar"))
    assert made.fleet.store is None
    assert made.cautions == ("the store cellar is not modelled: its pool is gone",)


def test_tiers_below_the_gpu_come_from_the_options() -> None:
    model = the_model(twin_of(pool(dram_gb=64, ssd_gb=1000, ssd_access="ssd-gds", tier_write="evict")))
    assert [(tier.device.name, tier.capacity_bytes) for tier in model.tiers.tiers] == [
        ("dram", 64e9),
        ("ssd-gds", 1e12),
    ]
    assert (model.tiers.write, model.tiers.always_load) == ("evict", False)


def test_an_instance_drained_on_request_is_left_out_as_in_the_fleet() -> None:
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
def test_a_pool_that_cannot_be_modelled_says_why(made: dict[str, Any], says: str) -> None:
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
        r"calibrated on chat-0 on \d{4}-\d\d-\d\d \d\d:\d\d UTC, error \d % TTFT, \d % TPOT, n = 48", made.about
    )
    assert made.cautions == ()
    assert (model.law, model.api_s) == (law_from(row.constants), row.constants["api_s"])
    assert (model.kv_blocks, model.limits, model.window) == (1024, Limits(32, 128, 8192), 16_384)
    assert (model.kv_events, model.role, model.connector) == (True, "both", "")


def test_an_old_calibration_and_other_settings_are_reported(calibrated: Pool) -> None:
    age(Calibration.objects.get(), days=9)
    Pool.objects.update(engine={"max_num_seqs": 2})
    assert twin_of(Pool.objects.get()).cautions == (
        "the calibration is 9 days old",
        "the engine's settings have changed since the calibration",
    )


def test_doubts_about_the_measurement_are_reported(calibrated: Pool) -> None:
    Calibration.objects.update(notes=["the law fits TTFT poorly, error 40 %"])
    assert twin_of(calibrated).cautions == ("the law fits TTFT poorly, error 40 %",)


def test_unmeasured_settings_of_the_engines_are_listed(calibrated: Pool) -> None:
    Pool.objects.update(
        engine={"kv": "nixl", "prefill_instances": 1, "prefix_caching": False, "chunked_prefill": False}
    )
    made = twin_of(Pool.objects.get())
    assert made.cautions[1:] == (
        "KV over nixl is not modelled, the twin computes those tokens: the size of this model's KV is unknown. "
        "Name a folder with its config.json as its model",
        "prefix caching is off in the engines and on in the twin",
        "the engines compute a prompt in one step, the twin in chunks",
    )
    assert (the_model(made).role, the_model(made).connector) == ("prefill", "nixl")


MOVING = "KV moves over {} at published rates: {}"
IDLE_BUSY = "9.7 GB/s, 3 while the sender computes"


@pytest.mark.parametrize(
    ("kind", "engine", "caution"),
    [
        ("vllm", {"kv": "nixl", "prefill_instances": 1}, MOVING.format("nixl", IDLE_BUSY)),
        ("vllm", {"kv": "mooncake-store", "master": "m"}, MOVING.format("mooncake_store", IDLE_BUSY)),
        ("neuron", {"prefill_instances": 1}, MOVING.format("neuron", "6.25 GB/s")),
        ("external", {"urls": ["http://h:1"], "connector": "nixl"}, MOVING.format("nixl", IDLE_BUSY)),
        ("vllm", {"kv": "lmcache-disk"}, "KV below the GPU (dram and ssd) is read and written at published rates"),
        ("vllm", {"kv": "lmcache-gds"}, "KV below the GPU (ssd-gds) is read and written at published rates"),
    ],
)
def test_kv_of_measured_engines_is_transferred_and_stored_at_published_rates(
    calibrated: Pool, kind: str, engine: dict[str, Any], caution: str
) -> None:
    Pool.objects.update(kind=kind, engine=engine, model="org/Llama-3.1-8B-Instruct")
    Calibration.objects.update(kind=kind, model="org/Llama-3.1-8B-Instruct")
    made = twin_of(Pool.objects.get())
    model = the_model(made)
    assert caution in made.cautions
    assert not any("not modelled" in one for one in made.cautions)
    if model.tiers is not None:
        assert (model.tiers.layout.bytes_per_token, model.tiers.layout.layers) == (131_072, 32)
        assert model.tiers.tiers[-1].capacity_bytes == 64 * 2**30
    else:
        assert model.transfers is not None
        assert (model.transfers.bytes_per_token, model.transfers.together) == (131_072, kind == "neuron")
    assert (made.fleet.store is not None) == (engine.get("kv") == "mooncake-store")


@pytest.mark.parametrize(
    ("kind", "engine", "strategy", "place"),
    [
        ("vllm", {"kv": "lmcache-dram"}, "round_robin", "host"),
        ("vllm", {"kv": "mooncake-store", "master": "m", "store_dram_mb": 40_000}, "round_robin", "pulled"),
        ("neuron", {"prefill_instances": 1}, "round_robin_pd", "pulled"),
    ],
)
def test_the_twin_of_measured_engines_counts_kv_that_came_from_elsewhere(
    calibrated: Pool, kind: str, engine: dict[str, Any], strategy: str, place: str
) -> None:
    Pool.objects.update(kind=kind, engine=engine, model="Llama-3.1-8B", replicas=2)
    Calibration.objects.update(kind=kind, model="Llama-3.1-8B")
    Instance.objects.all().delete()
    asked = [
        asks(at, at * 30.0, tokens=9_000, output=2, family=at % 10 + 1, shared=8_192) for at in range(20)
    ]  # more than one engine's KV cache of 32,768 tokens
    outcome = simulate(twin_of(Pool.objects.get()).fleet, policy(strategy), asked, pacing="timestamps", seed=1)
    assert sum(getattr(one.cached_from, place) for one in outcome.requests) > 8_192


def test_a_store_pool_of_measured_engines_is_as_large_as_its_clients(calibrated: Pool) -> None:
    client = {"dram_mb": 1000, "ssd": True, "disk_gib": 1, "master": "m"}
    Pool.objects.create(name="store", kind="mooncake-client", replicas=2, engine=client)
    engine = {"kv": "mooncake-store", "master": "m", "store_pool": "store"}
    Pool.objects.filter(kind="vllm").update(engine=engine, model="Qwen/Qwen3-8B")
    Calibration.objects.update(model="Qwen/Qwen3-8B")
    store = twin_of(Pool.objects.get(kind="vllm")).fleet.store
    assert store is not None
    assert store.capacity_bytes == 2 * (1e9 + 2**30)


def test_engines_that_were_never_measured_are_refused_with_the_command_to_measure_them() -> None:
    instance()
    with pytest.raises(NotModelled, match=r"measure one with manage\.py calibrate chat-0$"):
        twin_of(Pool.objects.get())


def test_a_calibration_of_another_model_does_not_count(calibrated: Pool) -> None:
    Pool.objects.update(model="another")
    with pytest.raises(NotModelled, match=r"manage\.py calibrate"):
        twin_of(Pool.objects.get())


def test_a_pool_of_real_engines_computes_by_its_profile_until_one_is_measured() -> None:
    made = profiles.profile("h200_sxm", "gpt-oss-120b", 2)
    text = msgspec.json.encode(made.tables).decode()
    engine = {"tensor_parallel": 2, "profile": text, "kv": "nixl", "gpu_memory_utilization": 0.8, "max_num_seqs": 9}
    assert check_engine(KINDS["vllm"], engine, "engine") == []
    found = twin_of(Pool.objects.create(name="real", model="gpt-oss-120b", kind="vllm", engine=engine))
    model = the_model(found)
    assert model.law == law_of(made)
    assert model.kv_blocks == profiles.kv_blocks(made, 16, 0.8, sequences=9) < profiles.kv_blocks(made)
    assert (model.limits.max_num_seqs, model.limits.max_num_batched_tokens) == (9, 8192)
    assert (found.basis, found.about) == ("profile", made.about)
    assert any("KV over nixl is not modelled" in text for text in found.cautions)


def test_a_missing_profile_or_one_for_another_layout_is_refused() -> None:
    text = msgspec.json.encode(profiles.profile("h200_sxm", "gpt-oss-120b", 2).tables).decode()
    for profile, says in (
        (text, "is one of tp 2; the pool has tp 4, dp 1"),
        ("{}", "as weir profile --json prints it"),
    ):
        (problem,) = check_engine(KINDS["vllm"], {"tensor_parallel": 4, "profile": profile}, "engine")
        assert (problem.path, says in problem.message) == ("engine.profile", True)


def test_a_new_profile_restarts_no_engine() -> None:
    def hashed(engine: dict[str, Any]) -> str:
        return config_hash(pool_spec(Pool(name="r", model="m", kind="vllm", engine=engine)))

    assert hashed({}) == hashed({"profile": "{}"})
