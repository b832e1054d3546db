"""Command lines, environments and files of the kinds that start real engines."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.kinds import KINDS
from fleet.kinds.kind import Kind, Launch, check_engine
from fleet.kinds.options.option import build
from fleet.kinds.trtllm.trtllm import OPTIONS_FILE
from fleet.kinds.wire import KvWire

PORTS = {"http": 18100, "events": 18101, "replay": 18102, "side": 18103, "rpc": 18104}


def launch(ordinal: int = 0, **peers: str) -> Launch:
    return Launch(
        f"p-{ordinal}", "tiny", "127.0.0.1", PORTS, "/usr/bin/python3", ordinal, "/data/p-0", "/opt/weir", peers
    )


def made(name: str, given: dict[str, Any], at: Launch | None = None) -> tuple[str, dict[str, str], KvWire]:
    """Return (command line, environment, entry for routers) for valid options."""
    kind = KINDS[name]
    assert check_engine(kind, given, "engine") == []
    spec, where = build(kind.spec, given), at or launch()
    return " ".join(kind.command(spec, where)), kind.environment(spec, where), kind.wire(spec, where)


def transfer_of(line: str) -> dict[str, Any]:
    return json.loads(line.partition("--kv-transfer-config ")[2].partition(" --")[0])


CPU = {"device": "cpu", "python": "./.engines/bin/python", "model": "./.engines/tiny", "cpu_kv_gib": 1}


def test_vllm_runs_in_its_own_environment_and_serves_under_the_models_public_name() -> None:
    line, env, wire = made("vllm", {**CPU, "arguments": ["--enforce-eager"], "environment": {"A": "b"}})
    server = "-m vllm.entrypoints.openai.api_server --model /opt/weir/.engines/tiny --host 127.0.0.1"
    assert line.startswith(f"/opt/weir/.engines/bin/python {server}")
    assert "--served-model-name tiny" in line
    assert "--enable-prefix-caching --enable-chunked-prefill --enable-prompt-tokens-details" in line
    assert line.endswith(" --enforce-eager")
    assert '"endpoint":"tcp://*:18101","replay_endpoint":"tcp://127.0.0.1:18102"' in line
    assert (env["VLLM_CPU_KVCACHE_SPACE"], env["PYTHONPATH"], env["A"]) == ("1", "", "b")
    assert wire.stored() == {
        "tokenizer": "/opt/weir/.engines/tiny",
        "events": "tcp://127.0.0.1:18101?replay=tcp://127.0.0.1:18102&topic=kv",
    }


def test_sglang_always_reports_hits_and_load_and_publishes_its_cache() -> None:
    line, env, wire = made("sglang", {"model": "./tiny", "tensor_parallel": 2, "arguments": ["--trust-remote-code"]})
    assert "python3 -m sglang.launch_server --model-path /opt/weir/tiny" in line
    assert "--served-model-name tiny --host 127.0.0.1 --port 18100 --tp-size 2 --page-size 16" in line
    assert "--enable-metrics --enable-cache-report" in line
    events = json.loads(line.partition("--kv-events-config ")[2].partition(" --")[0])
    assert events["bind"] is True
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://127.0.0.1:18101", "tcp://127.0.0.1:18102")
    assert line.endswith(" --trust-remote-code")
    assert "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR" not in env
    assert wire.events == "tcp://127.0.0.1:18101?replay=tcp://127.0.0.1:18102&topic=kv"
    assert (wire.tokenizer, wire.uncached) == ("/opt/weir/tiny", False)
    assert made("sglang", {"arguments": ["--disable-radix-cache"]})[2].uncached


def test_sglang_sleeps_with_its_weights_in_host_memory() -> None:
    assert "memory-saver" not in made("sglang", {})[0]
    assert "--enable-memory-saver --enable-weights-cpu-backup" in made("sglang", {"sleep_mode": True})[0]
    kind, spec = KINDS["sglang"], build(KINDS["sglang"].spec, {"sleep_mode": True})
    assert [kind.can_sleep(one) for one in (build(kind.spec, {}), spec)] == [False, True]
    assert "torch_memory_saver" in [one.name for one in kind.requires(spec, launch())]


def test_attention_ranks_of_sglang_are_targets_that_step_together() -> None:
    given = {"tensor_parallel": 8, "data_parallel_size": 4}
    line, _, wire = made("sglang", given)
    assert "--tp-size 8 --attn-dp-size 4" in line
    assert (wire.dp.ranks, wire.dp.together) == (4, "p-0")
    kind = KINDS["sglang"]
    assert kind.port_spans(build(kind.spec, given)) == {"events": 4, "replay": 4, "side": 0}


def test_a_split_sglang_meets_at_the_prefills_bootstrap_port_and_its_decoders_keep_no_tiers() -> None:
    given = {"prefill_instances": 1, "transfer": "nixl", "rdma_device": "mlx5_0", "hicache": "dram"}
    (prefill, _, sends), (decode, _, takes) = (made("sglang", given, launch(ordinal)) for ordinal in (0, 1))
    mode = "--disaggregation-mode prefill --disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 18103"
    assert f"--enable-hierarchical-cache --hicache-size 8 --hicache-write-policy write_through {mode}" in prefill
    assert decode.endswith("decode --disaggregation-transfer-backend nixl --disaggregation-ib-device mlx5_0")
    assert "hicache" not in decode
    assert (sends.role, sends.connector, sends.kv.bootstrap) == ("prefill", "sglang", "http://127.0.0.1:18103")
    assert (takes.role, takes.connector, takes.kv.bootstrap) == ("decode", "sglang", "")
    kind = KINDS["sglang"]
    assert kind.port_spans(build(kind.spec, given))["side"] == 1
    modules = [one.name for one in kind.requires(build(kind.spec, given), launch()) if one.kind == "module"]
    assert modules == ["sglang", "nixl"]


def test_sglangs_hicache_uses_host_memory_and_a_folder() -> None:
    given = {"hicache": "disk", "dram_gib": 32, "tensor_parallel": 2, "write_policy": "write_back"}
    line, env, _ = made("sglang", given)
    of_memory = "--enable-hierarchical-cache --hicache-size 32 --hicache-write-policy write_back"
    assert f"{of_memory} --hicache-storage-backend file" in line
    assert env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == "/data/p-0/kv"
    assert "--hicache-storage-backend" not in made("sglang", {**given, "hicache": "dram"})[0]
    kind = KINDS["sglang"]
    spec = build(kind.spec, given)
    assert kind.volume(spec, launch()) == "/data/p-0/kv"
    dram, _ = kind.twin_kv(spec, launch()).tiers
    assert dram.capacity_bytes == 64 * 1024**3


def test_disabled_options_are_passed_to_vllm_and_routers_get_no_events() -> None:
    line, _, wire = made("vllm", {"prefix_caching": False, "chunked_prefill": False, "kv_events": False})
    assert "--no-enable-prefix-caching --no-enable-chunked-prefill" in line
    assert "--kv-events-config" not in line
    assert "--gpu-memory-utilization 0.9" in line
    assert wire.stored() == {"tokenizer": "tiny"}


def test_gpus_are_assigned_in_order() -> None:
    given = {"gpus": ["0", "1", "2", "3", "4"], "tensor_parallel": 2}
    assert made("vllm", given, launch(1))[1]["CUDA_VISIBLE_DEVICES"] == "2,3"
    kind = KINDS["vllm"]
    assert kind.max_replicas(build(kind.spec, given)) == 2
    assert kind.max_replicas(build(kind.spec, {})) is None


def test_ranks_behind_one_address_have_their_own_gpus_and_share_an_rpc_port() -> None:
    given = {"gpus": [str(gpu) for gpu in range(9)], "tensor_parallel": 2, "data_parallel_size": 2}
    line, env, wire = made("vllm", given, launch(1))
    assert "--tensor-parallel-size 2 --data-parallel-size 2 --data-parallel-rpc-port 18104 " in line
    assert "hybrid" not in line
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert wire.stored()["dp"] == {"ranks": 2}
    kind, spec = KINDS["vllm"], build(KINDS["vllm"].spec, given)
    assert (kind.max_replicas(spec), kind.devices(spec, "both")) == (2, 4)
    assert kind.port_spans(spec) == {"events": 2, "replay": 2, "side": 2, "rpc": 1}
    assert kind.port_spans(build(kind.spec, {}))["rpc"] == 0


def test_the_instances_of_a_group_number_their_ranks_consecutively() -> None:
    given = {**CPU, "kv": "nixl", "data_parallel_size": 8, "data_parallel_size_local": 4}
    lines = [made("vllm", given, launch(ordinal, **{"p-2": "10.0.0.3:29600"})) for ordinal in (2, 3)]
    shared = "--data-parallel-size 8 --data-parallel-size-local 4 --data-parallel-start-rank"
    assert (
        f"{shared} 0 --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 18104 --data-parallel-hybrid-lb"
        in lines[0][0]
    )
    assert (
        f"{shared} 4 --data-parallel-address 10.0.0.3 --data-parallel-rpc-port 29600 --data-parallel-hybrid-lb"
        in lines[1][0]
    )
    assert [wire.stored()["dp"] for _, _, wire in lines] == [{"ranks": 4}, {"ranks": 4, "first": 4}]
    # vLLM adds the rank within its group to each of these ports
    assert '"endpoint":"tcp://*:18097","replay_endpoint":"tcp://127.0.0.1:18098"' in lines[1][0]
    assert [env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for _, env, _ in lines] == ["18103", "18099"]
    kind, spec = KINDS["vllm"], build(KINDS["vllm"].spec, given)
    assert [kind.group(spec, ordinal) for ordinal in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [kind.pair(spec, ordinal) for ordinal in range(4)] == [None, 0, None, 2]


@pytest.mark.parametrize(
    ("model", "together"),
    [("deepseek-ai/DeepSeek-V3", "p-0"), ("Qwen/Qwen3-30B-A3B", "p-0"), ("meta-llama/Llama-3.3-70B", "")],
)
def test_the_ranks_of_a_mixture_of_experts_step_together(model: str, together: str) -> None:
    given = {"model": model, "data_parallel_size": 2, "data_parallel_size_local": 1}
    assert made("vllm", given, launch(1))[2].dp.together == together


def test_a_mixture_of_experts_is_recognised_by_its_configuration(tmp_path: Path) -> None:
    for experts, together in ((8, "p-0"), (1, "")):
        (tmp_path / "config.json").write_text(json.dumps({"num_local_experts": experts}))
        assert made("vllm", {"model": str(tmp_path), "data_parallel_size": 2})[2].dp.together == together


@pytest.mark.parametrize(
    ("kind", "arguments", "tokenizer"),
    [
        ("vllm", (), "/models/m"),
        ("vllm", ("--tokenizer", "/models/other"), "/models/other"),
        ("vllm", ("--tokenizer=/models/other", "--tokenizer-mode", "hf"), "/models/other"),
        ("vllm", ("--tokenizer_mode=mistral",), ""),
        ("vllm", ("--chat-template", "/templates/t.jinja"), ""),
        ("vllm", ("--default-chat-template-kwargs", '{"enable_thinking": false}'), ""),
        ("vllm", ("--default-chat-template-kwargs.enable_thinking", "false"), ""),
        ("vllm", ("--chat-template-content-format=string",), ""),
        ("vllm", ("--reasoning_effort_map", '{"medium": "low"}'), ""),
        ("vllm", ("--anthropic-disabled-thinking-effort", "low"), ""),
        ("vllm", ("--exclude-tools-when-tool-choice-none",), ""),
        ("sglang", ("--reasoning-parser", "qwen3"), "/models/m"),
        ("sglang", ("--tokenizer-path", "/models/other"), "/models/other"),
        ("sglang", ("--chat-template=/templates/t.jinja",), ""),
        ("sglang", ("--hf-chat-template-name", "rag"), ""),
        ("sglang", ("--config", "/etc/sglang.yaml"), ""),
        ("sglang", ("--completion-template", "/templates/t.json"), ""),
        ("sglang", ("--default-chat-template-kwargs", '{"enable_thinking": false}'), ""),
        ("trtllm", ("--tokenizer", "/models/other"), "/models/other"),
        ("trtllm", ("--chat_template", "/templates/t.jinja"), ""),
        ("trtllm", ("--custom_tokenizer", "deepseek_v32"), ""),
    ],
)
def test_routers_use_the_tokenizer_with_which_an_engine_is_started(
    kind: str, arguments: tuple[str, ...], tokenizer: str
) -> None:
    further = {"kv_events": True} if kind == "trtllm" else {}
    assert made(kind, {"model": "/models/m", "arguments": arguments, **further})[2].tokenizer == tokenizer


SIZE, LOCAL = "data_parallel_size", "data_parallel_size_local"


@pytest.mark.parametrize(
    ("name", "given", "option", "why"),
    [
        ("vllm", {SIZE: 8, LOCAL: 3}, LOCAL, "allowed: 1, 2, 4, 8"),
        ("vllm", {SIZE: 4, "gpus": ["0", "1"]}, SIZE, "allowed: 1 to 2"),
        ("vllm", {SIZE: 2, "gpus": ["0", "1"], "tensor_parallel": 2}, "tensor_parallel", "allowed: 1 to 1"),
        ("vllm", {SIZE: 2, "kv": "mooncake-store", "master": "m"}, SIZE, "must be 1 with kv"),
        ("sim", {SIZE: 2, "kv": "nixl"}, SIZE, "must be 1 unless kv is none"),
        ("sim", {SIZE: 600}, SIZE, "512"),
        ("external", {SIZE: 0, "urls": ["http://h:1"]}, SIZE, "1 to 512"),
    ],
)  # fmt: skip
def test_impossible_ranks_are_refused(name: str, given: dict[str, Any], option: str, why: str) -> None:
    problems = check_engine(KINDS[name], given, "engine")
    assert [problem.path for problem in problems] == [f"engine.{option}"]
    assert why in str(problems[0])


def test_an_engine_that_can_sleep_needs_the_developer_endpoints() -> None:
    line, env, _ = made("vllm", {"sleep_mode": True})
    assert "--enable-sleep-mode" in line
    assert env["VLLM_SERVER_DEV_MODE"] == "1"


def test_each_nixl_instance_has_its_own_side_channel() -> None:
    line, env, wire = made("vllm", {**CPU, "kv": "nixl"})
    assert transfer_of(line) == {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    roles = [("prefill", "kv_producer"), ("decode", "kv_consumer")]
    said = [transfer_of(made("vllm", {**CPU, "kv": "nixl", "role": role})[0])["kv_role"] for role, _ in roles]
    assert said == [kv_role for _, kv_role in roles]
    assert (env["VLLM_NIXL_SIDE_CHANNEL_HOST"], env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("127.0.0.1", "18103")
    assert wire.connector == "nixl"


def test_prefills_borrow_blocks_from_decoders_and_compute_evicted_ones() -> None:
    given = {**CPU, "kv": "nixl", "lend_s": 60, "prefill_instances": 1}
    (prefill, _, takes), (decode, _, _) = (made("vllm", given, launch(number)) for number in (0, 1))
    prefill, decode = transfer_of(prefill), transfer_of(decode)
    simulated = made("sim", {"kv": "nixl", "kv_lend_s": 60, "prefill_instances": 1})[2]
    assert (takes.kv.takes_lent, simulated.kv.takes_lent) == (True, True)
    adopted = {"urls": ["http://x"], "connector": "nixl"}
    wires = [made("external", {**adopted, "takes_lent": lent})[2] for lent in (False, True)]
    assert [wire.kv.takes_lent for wire in wires] == [False, True]
    assert not made("vllm", {**given, "lend_s": 0})[2].kv.takes_lent
    extra = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 60}
    assert prefill["kv_connector_extra_config"] == decode["kv_connector_extra_config"] == extra
    assert (prefill["kv_load_failure_policy"], decode.get("kv_load_failure_policy")) == ("recompute", None)
    assert "--kv-lend-s 60" in made("sim", {"kv": "nixl", "kv_lend_s": 60})[0]
    for name, option in (("vllm", "lend_s"), ("sim", "kv_lend_s")):
        (problem,) = check_engine(KINDS[name], {option: 60}, "engine")
        assert (problem.path, str(problem.message)) == (f"engine.{option}", problem.message)
        assert "kv" in problem.message


def test_a_kv_list_joins_transfer_tier_and_store_in_vllms_order() -> None:
    given = {"kv": ["mooncake-store", "offload-ssd", "nixl"], "prefill_instances": 1, "master": "m", "disk": "/kv"}
    (prefill, env, sends), (decode, _, _) = (made("vllm", given, launch(n, m="10.0.0.1:50051")) for n in (0, 1))
    joined = transfer_of(prefill)
    assert (joined["kv_connector"], joined["kv_role"]) == ("MultiConnector", "kv_both")
    assert "kv_load_failure_policy" not in joined  # with nixl, a prompt whose KV did not arrive fails
    inner = joined["kv_connector_extra_config"]["connectors"]
    names = ["NixlConnector", "OffloadingConnector", "MooncakeStoreConnector"]
    assert [one["kv_connector"] for one in inner] == names
    assert inner[0]["kv_role"] == "kv_producer"
    assert transfer_of(decode)["kv_connector_extra_config"]["connectors"][0]["kv_role"] == "kv_consumer"
    assert {"VLLM_NIXL_SIDE_CHANNEL_PORT", "MOONCAKE_CONFIG_PATH"} <= env.keys()
    assert (sends.connector, sends.kv.shares_store) == ("nixl", True)
    kind, spec = KINDS["vllm"], build(KINDS["vllm"].spec, given)
    assert spec.kv == "nixl+offload-ssd+mooncake-store" == build(kind.spec, {"kv": spec.kv}).kv
    assert kind.volume(spec, launch()) == "/kv"
    modules = [one.name for one in kind.requires(spec, launch()) if one.kind == "module"]
    assert modules == ["vllm", "nixl", "mooncake"]
    assert [tier.device.name for tier in kind.twin_kv(spec, launch()).tiers] == ["dram", "ssd"]
    assert (kind.needs(spec), kind.twin_kv(spec, launch()).store_bytes) == (("m",), 4096e6)


def test_a_prefill_of_a_list_computes_missing_lent_blocks_as_with_nixl_alone() -> None:
    """vLLM's scheduler reads only the outer policy."""
    given = {"kv": ["nixl", "offload-dram"], "lend_s": 60, "prefill_instances": 1}
    prefill, decode = (transfer_of(made("vllm", given, launch(number))[0]) for number in (0, 1))
    assert prefill["kv_connector"] == "MultiConnector"
    assert (prefill["kv_load_failure_policy"], decode.get("kv_load_failure_policy")) == ("recompute", None)


def test_a_list_of_one_equals_its_entry_and_a_list_of_caches_computes_what_they_lost() -> None:
    alone, listed = (made("vllm", {"kv": kv})[0] for kv in ("offload-dram", ["offload-dram"]))
    assert alone == listed
    given = {"kv": ["offload-dram", "mooncake-store"], "master": "m"}
    line, _, wire = made("vllm", given, launch(m="10.0.0.1:50051"))
    assert transfer_of(line)["kv_load_failure_policy"] == "recompute"
    assert (wire.connector, wire.kv.shares_store) == ("mooncake_store", False)


@pytest.mark.parametrize("kv", [["nixl", "mooncake-p2p"], ["nixl", "nixl"], ["none", "nixl"], [], ["nixl", 1], "nixl+"])
def test_a_kv_list_that_names_two_of_a_group_is_refused_with_the_groups(kv: Any) -> None:
    (problem,) = check_engine(KINDS["vllm"], {"kv": kv}, "engine")
    assert problem.path == "engine.kv"
    assert problem.allowed.startswith("none, or one, or a list of at most one of each: nixl, mooncake-p2p | offload-")


@pytest.mark.parametrize(("ordinal", "role", "kv_role"), [(0, "prefill", "kv_producer"), (1, "decode", "kv_consumer")])
def test_the_first_instances_prefill_and_the_others_decode(ordinal: int, role: str, kv_role: str) -> None:
    line, env, wire = made("vllm", {"kv": "mooncake-p2p", "prefill_instances": 1}, launch(ordinal))
    assert transfer_of(line)["kv_role"] == kv_role
    assert env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "18103"
    assert (wire.role, wire.connector) == (role, "mooncake_p2p")
    assert wire.kv_stored() == {"bootstrap": "http://127.0.0.1:18103"}


def test_a_store_of_the_instances_own_memory_names_its_master_in_a_file() -> None:
    kind, given = KINDS["vllm"], {**CPU, "kv": "mooncake-store", "master": "m", "store_dram_mb": 256}
    where = launch(m="127.0.0.1:18200")
    line, env, _ = made("vllm", given, where)
    assert transfer_of(line)["kv_connector_extra_config"]["lookup_rpc_port"] == 18100
    (name, text), *_ = kind.files(build(kind.spec, given), where).items()
    assert env["MOONCAKE_CONFIG_PATH"] == f"/data/p-0/{name}"
    assert json.loads(text)["master_server_address"] == "127.0.0.1:18200"
    assert json.loads(text)["global_segment_size"] == "256MB"
    assert kind.needs(build(kind.spec, given)) == ("m",)


def test_pools_share_stored_kv_only_of_the_same_weights() -> None:
    """vLLM 0.32 names a model in the store by the last part of its path: findings/vllm-store-names.sh."""

    def prefix(ordinal: int = 0, **given: str) -> str:
        line, _, _ = made(
            "vllm", {"kv": "mooncake-store", "master": "m", **given}, launch(ordinal, m="127.0.0.1:18200")
        )
        return str(transfer_of(line)["kv_connector_extra_config"]["cache_prefix"])

    assert prefix(model="/a/final") == prefix(1, model="/a/final")
    assert (
        len({prefix(), prefix(model="/a/final"), prefix(model="/b/final"), prefix(model="/b/final", dtype="float16")})
        == 4
    )


def test_a_separate_store_is_preferred_over_the_instances_memory() -> None:
    kind, given = KINDS["vllm"], {**CPU, "kv": "mooncake-store", "master": "m", "store_pool": "s"}
    where = launch(m="127.0.0.1:18200", s="127.0.0.1:18300")
    assert made("vllm", given, where)[1]["MOONCAKE_PREFERRED_SEGMENT"] == "127.0.0.1:18300"
    (text,) = kind.files(build(kind.spec, given), where).values()
    assert json.loads(text) | {"mode": "standalone-store", "enable_offload": True} == json.loads(text)
    assert json.loads(text)["global_segment_size"] == 0
    assert kind.needs(build(kind.spec, given)) == ("m", "s")


@pytest.mark.parametrize(
    ("given", "connector", "extra"),
    [
        ({"kv": "offload-dram", "dram_gib": 2}, "OffloadingConnector", {"cpu_bytes_to_use": 2 * 1024**3}),
        (
            {"kv": "offload-ssd", "dram_gib": 1, "disk": "/ssd"},
            "OffloadingConnector",
            {
                "spec_name": "TieringOffloadingSpec",
                "cpu_bytes_to_use": 1024**3,
                "secondary_tiers": [{"type": "fs", "root_dir": "/ssd", "enable_kv_events": True}],
            },
        ),
        ({**CPU, "kv": "example-disk"}, "ExampleConnector", {"shared_storage_path": "/data/p-0/kv"}),
    ],
)
def test_the_tiers_of_one_instance_choose_its_connector(
    given: dict[str, Any], connector: str, extra: dict[str, Any]
) -> None:
    config = transfer_of(made("vllm", given)[0])
    assert (config["kv_connector"], config["kv_connector_extra_config"]) == (connector, extra)


@pytest.mark.parametrize(
    "given",
    [
        {"kv": "mooncake-store", "master": "m"},
        *({"kv": kv} for kv in ("offload-dram", "offload-ssd", "lmcache-dram", "lmcache-disk", "lmcache-gds")),
        {"kv": "example-disk"},
    ],
    ids=lambda given: given["kv"],
)
def test_a_request_whose_cached_blocks_cannot_be_loaded_computes_them(given: dict[str, Any]) -> None:
    line, _, _ = made("vllm", {"dram_gib": 1, **given}, launch(m="127.0.0.1:18200"))
    assert transfer_of(line)["kv_load_failure_policy"] == "recompute"


@pytest.mark.parametrize("kv", ["nixl", "mooncake-p2p"])
def test_a_failed_transfer_is_reported_to_the_router_which_retries(kv: str) -> None:
    assert "kv_load_failure_policy" not in transfer_of(made("vllm", {"kv": kv})[0])


@pytest.mark.parametrize(
    ("kv", "words"),
    [
        ("lmcache-dram", "local_cpu: true\nmax_local_cpu_size: 2.0\n"),
        ("lmcache-disk", 'local_disk: "file:///ssd/"\nmax_local_disk_size: 64.0\n'),
        ("lmcache-gds", 'gds_path: "/ssd"\ncufile_buffer_size: 2048\n'),
    ],
)
def test_lmcache_reads_its_configuration_from_a_file(kv: str, words: str) -> None:
    kind, given = KINDS["vllm"], {"kv": kv, "dram_gib": 2, "disk": "/ssd"}
    environment = made("vllm", given)[1]
    assert environment["LMCACHE_CONFIG_FILE"] == "/data/p-0/lmcache.yaml"
    assert environment["PROMETHEUS_MULTIPROC_DIR"] == kind.metrics_folder(build(kind.spec, given), launch())
    assert words in kind.files(build(kind.spec, given), launch())["lmcache.yaml"]


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("vllm", {**CPU, "kv": "lmcache-gds"}, "kv", "lmcache-gds needs the device cuda"),
    ("vllm", {**CPU, "kv": ["nixl", "offload-dram"]}, "kv", "offload-dram needs the device cuda"),
    ("vllm", {**CPU, "sleep_mode": True}, "sleep_mode", "needs the device cuda"),
    ("vllm", {**CPU, "gpus": ["0"]}, "gpus", "needs the device cuda"),
    ("vllm", {**CPU, "api_server_count": 2}, "api_server_count", "must be 1 with the device cpu"),
    ("vllm", {"enable_lora": True, "api_server_count": 2}, "api_server_count", "must be 1 with enable_lora"),
    ("vllm", {"kv": "mooncake-store"}, "master", "must name the pool of the Mooncake master for kv mooncake-store"),
    ("vllm", {"master": "m"}, "master", "needs kv mooncake-store"),
    ("vllm", {"store_pool": "s"}, "store_pool", "needs kv mooncake-store"),
    ("vllm", {"role": "decode", "prefill_instances": 1}, "prefill_instances", "needs the role both"),
    (
        "vllm",
        {"gpus": ["0", "1"], "tensor_parallel": 4},
        "tensor_parallel",
        "must not be more than the ids in gpus; allowed: 1 to 2",
    ),
    (
        "vllm",
        {"model": "Qwen/Qwen2.5-7B-Instruct", "tensor_parallel": 3},
        "tensor_parallel",
        "must divide the 28 attention heads of Qwen/Qwen2.5-7B-Instruct; allowed: 1, 2, 4, 7, 14, 28",
    ),
    ("mooncake-client", {}, "master", "must name the pool of the Mooncake master"),
    ("trtllm", {"speculative": "[1]"}, "speculative", "must be a JSON object"),
    ("trtllm", {"speculative": "{"}, "speculative", "must be a JSON object: "),
    ("trtllm", {"kv_events": True, "attention_dp": True}, "kv_events", "needs attention_dp off"),
    ("trtllm", {"kv_events": True, "prefill_instances": 1}, "transfer", "must be NIXL with kv_events"),
    ("trtllm", {"kv_events": True, "role": "decode", "transfer": "UCX"}, "transfer", "must be NIXL with kv_events"),
    ("neuron", {"plugin": True, "etcd": "h:2379"}, "etcd", "belongs to NxD Inference"),
    ("sglang", {"tensor_parallel": 6, "data_parallel_size": 4}, "tensor_parallel", "must be a multiple of"),
    ("sglang", {"disk": "/kv"}, "disk", "needs hicache disk"),
    (
        "vllm",
        {"enable_lora": True, "max_lora_rank": 100},
        "max_lora_rank",
        "must be a rank that vLLM takes; allowed: 1, 8",
    ),
    ("sglang", {"rdma_device": "mlx5_0"}, "rdma_device", "needs prefill_instances, or a role"),
    ("sglang", {"role": "decode", "prefill_instances": 1}, "prefill_instances", "needs the role both"),
    ("external", {}, "urls", "must be http://host:port or https://host:port, one per instance"),
    (
        "external",
        {"urls": ["ftp://x"]},
        "urls",
        "must be http://host:port or https://host:port, one per instance, without user info, query or link",
    ),
    ("external", {"urls": ["http://x:99999"]}, "urls", "must be http://host:port"),
    ("external", {"urls": ["http://x"], "connector": "mooncake_p2p"}, "bootstraps", "must have one URL per instance"),
    ("external", {"urls": ["http://x"], "takes_lent": True}, "takes_lent", "must be false unless connector is nixl"),
]


@pytest.mark.parametrize(("name", "given", "option", "words"), REFUSED)
def test_conflicting_options_are_refused(name: str, given: dict[str, Any], option: str, words: str) -> None:
    (problem,) = check_engine(KINDS[name], given, "engine")
    assert problem.path == f"engine.{option}"
    assert problem.text.startswith(words)


def test_all_problems_are_reported_at_once_unless_one_depends_on_another() -> None:
    def paths(given: dict[str, Any]) -> list[str]:
        return [problem.path for problem in check_engine(KINDS["vllm"], given, "engine", "Llama-3.1-8B")]

    faults = {"tensor_parallel": 3, "max_num_seqs": 0, "store_pool": "s"}
    assert paths(faults) == ["engine.max_num_seqs", "engine.tensor_parallel", "engine.store_pool"]
    assert paths({**faults, "kv": "none?"}) == ["engine.max_num_seqs", "engine.kv", "engine.tensor_parallel"]
    assert paths({"tensor_parallel": 0, "gpu": ["0"]}) == ["engine.gpu", "engine.tensor_parallel"]


def test_the_master_listens_on_its_nodes_address_and_serves_no_requests() -> None:
    line, _, wire = made("mooncake-master", {"ssd": True})
    assert "-rpc_address=127.0.0.1 -rpc_port=18104 -metrics_host=127.0.0.1 -metrics_port=18100" in line
    assert "-enable_offload=true" in line
    assert wire.stored() == {}
    assert (KINDS["mooncake-master"].serves, KINDS["mooncake-master"].service) == (False, "rpc")


def test_a_client_lends_memory_and_a_disk_to_the_store() -> None:
    given = {"master": "m", "ssd": True, "dram_mb": 64, "disk_gib": 1, "heartbeat_s": 1}
    line, env, _ = made("mooncake-client", given, launch(m="127.0.0.1:18200"))
    assert "-master_server_address=127.0.0.1:18200" in line
    assert "-global_segment_size=64MB" in line
    assert env["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] == "/data/p-0/kv"
    assert env["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] == str(1024**3)
    assert "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH" not in made("mooncake-client", {"master": "m"})[1]


def test_neuron_servers_know_their_role_and_where_to_find_each_other() -> None:
    given = {"prefill_instances": 1, "etcd": "10.0.0.1:2379", "tensor_parallel": 2, "cores": ["0", "1", "2", "3"]}
    line, env, wire = made("neuron", given, launch(1))
    assert transfer_of(line) | {"kv_role": "kv_consumer", "etcd": "10.0.0.1:2379", "kv_rank": 1} == transfer_of(line)
    assert env["NEURON_RT_VISIBLE_CORES"] == "2,3"
    assert wire.stored() == {"role": "decode", "connector": "neuron", "kv": {"etcd": "10.0.0.1:2379"}}
    assert made("neuron", {})[2] == KvWire()


def test_prefill_instances_added_on_neuron_take_the_last_cores() -> None:
    cores = [str(core) for core in range(14)]
    given = {
        "prefill_instances": 1,
        "etcd": "h:2379",
        "tensor_parallel": 2,
        "prefill_tensor_parallel": 4,
        "cores": cores,
    }
    found = [made("neuron", given, launch(ordinal)) for ordinal in (0, 1, 2, 1024, 1025)]
    assert [env["NEURON_RT_VISIBLE_CORES"] for _, env, _ in found] == [
        "0,1,2,3",
        "4,5",
        "6,7",
        "10,11,12,13",
        "6,7,8,9",
    ]
    assert [wire.role for _, _, wire in found] == ["prefill", "decode", "decode", "prefill", "prefill"]


def test_neuron_servers_without_etcd_are_fixed_pairs_and_meet_at_the_prefill_server() -> None:
    given = {
        "prefill_instances": 2,
        "prefill_tensor_parallel": 4,
        "prefill_max_num_seqs": 2,
        "tensor_parallel": 2,
        "cores": [str(core) for core in range(12)],
    }
    lines = [made("neuron", given, launch(ordinal, **{"p-1": "10.0.0.2:7000"})) for ordinal in range(4)]
    meetings = [(found["kv_ip"], found["kv_port"]) for found in (transfer_of(line) for line, _, _ in lines)]
    assert meetings[1] == ("127.0.0.1", PORTS["side"])
    assert meetings[2:] == [("<address of p-0>", "<its side port>"), ("10.0.0.2", 7000)]
    assert [wire.kv.pair for _, _, wire in lines] == ["", "", "p-0", "p-1"]
    cores = [env["NEURON_RT_VISIBLE_CORES"] for _, env, _ in lines]
    assert cores == ["0,1,2,3", "4,5,6,7", "8,9", "10,11"]
    assert [f"--max-num-seqs {n} " in line for n, (line, _, _) in zip((2, 2, 4, 4), lines, strict=True)] == [True] * 4
    kind = KINDS["neuron"]
    spec = build(kind.spec, given)
    assert kind.max_replicas(spec) == 4
    assert (kind.devices(spec, "prefill"), kind.devices(spec, "decode")) == (4, 2)


def test_neuron_servers_of_the_vllm_plugin_move_kv_over_nixl_between_any_pairs() -> None:
    given = {"plugin": True, "prefill_instances": 1, "tensor_parallel": 2, "cores": ["0", "1", "2", "3", "4", "5"]}
    first, last = (made("neuron", given, launch(ordinal)) for ordinal in (0, 2))
    assert "-m vllm.entrypoints.cli.main serve tiny --host 127.0.0.1" in first[0]
    assert "--additional-config {} " in first[0]
    assert "neuron-config" not in first[0]
    assert [transfer_of(line)["kv_role"] for line, _, _ in (first, last)] == ["kv_producer", "kv_consumer"]
    assert transfer_of(last[0])["kv_connector_extra_config"] == {"backends": ["LIBFABRIC"]}
    assert (last[1]["NEURON_VISIBLE_DEVICES"], last[1]["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("4,5", str(PORTS["side"]))
    assert [wire.stored() for _, _, wire in (first, last)] == [
        {"role": role, "connector": "nixl"} for role in ("prefill", "decode")
    ]
    alone, env, wire = made("neuron", {"plugin": True})
    assert (wire, "--kv-transfer-config" in alone, "VLLM_NIXL_SIDE_CHANNEL_PORT" in env) == (KvWire(), False, False)


@pytest.mark.parametrize("given", [{"role": "decode"}, {"prefill_instances": 1}])
def test_the_host_of_a_prefill_server_can_be_named_by_hand(given: dict[str, Any]) -> None:
    line, _, _ = made("neuron", {**given, "peer": "10.0.0.1"}, launch(1, **{"p-0": "10.9.9.9:7000"}))
    assert transfer_of(line)["kv_ip"] == "10.0.0.1"


def test_context_and_generation_servers_of_trtllm_are_connected() -> None:
    wires = [made("trtllm", {"prefill_instances": 1}, launch(ordinal))[2].stored() for ordinal in (0, 1)]
    assert wires == [{"role": role, "connector": "trtllm"} for role in ("prefill", "decode")]
    assert made("trtllm", {})[2] == KvWire()


def test_trtllm_publishes_kv_events_if_its_pool_needs_an_exact_index() -> None:
    kind, where = KINDS["trtllm"], launch()
    spec = build(kind.spec, {"kv_events": True})
    options = json.loads(kind.files(spec, where)[OPTIONS_FILE])
    assert options["kv_cache_config"]["use_kv_cache_manager_v2"] is True
    assert options["kv_events_config"]["replay_endpoint"] == "tcp://127.0.0.1:18102"
    _, _, wire = made("trtllm", {"kv_events": True})
    assert wire.stored() == {
        "events": "tcp://127.0.0.1:18101?replay=tcp://127.0.0.1:18102&topic=kv",
        "tokenizer": "tiny",
    }
    assert kind.port_spans(spec) == {"events": 1, "replay": 1}
    divided = build(kind.spec, {"kv_events": True, "prefill_instances": 1, "transfer": "NIXL"})
    moves = json.loads(kind.files(divided, where)[OPTIONS_FILE])["cache_transceiver_config"]
    assert moves == {"backend": "NIXL", "max_tokens_in_buffer": 8192, "transceiver_runtime": "PYTHON"}
    plain = build(kind.spec, {})
    assert kind.port_spans(plain) == {"events": 0, "replay": 0}
    assert "kv_events_config" not in json.loads(kind.files(plain, where)[OPTIONS_FILE])


def test_an_external_engine_is_described_but_not_started() -> None:
    given = {
        "urls": ["http://10.0.0.7:8000/", "http://10.0.0.8:8000"],
        "connector": "mooncake_p2p",
        "bootstraps": ["http://10.0.0.7:8998", "http://10.0.0.8:8998"],
        "kv_events": True,
        "tokenizer": "/models/m",
        "prefill_instances": 1,
    }
    kind = KINDS["external"]
    _, _, wire = made("external", given)
    assert kind.url(build(kind.spec, given), launch(0)) == "http://10.0.0.7:8000"
    assert wire.kv_stored() == {"bootstrap": "http://10.0.0.7:8998"}
    assert (wire.role, wire.events, wire.tokenizer) == ("prefill", "http://10.0.0.7:8000", "/models/m")
    assert kind.max_replicas(build(kind.spec, given)) == 2
    assert not kind.launched


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_missing_requirement_of_a_kind_comes_with_advice(kind: Kind) -> None:
    needed = {"mooncake-client": {"master": "m", "ssd": True}, "external": {"urls": ["http://x"]}}
    spec = build(kind.spec, needed.get(kind.name, {}))
    assert all(one.advice for one in kind.requires(spec, launch()))


def test_every_kind_that_starts_a_real_engine_has_a_command_line_here() -> None:
    tests = Path(__file__).read_text()
    started = [kind.name for kind in KINDS.values() if kind.launched and not kind.simulated]
    assert [name for name in started if f'made("{name}"' not in tests] == []
