"""Kinds describe their options, and the programs that they start accept the resulting command lines."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fleet.kinds import KINDS
from fleet.kinds.kind import Launch, check_engine
from fleet.kinds.options.option import build, check, option, options_of
from fleet.kinds.sim.sim import SIM, SimSpec
from fleet.simengine.arguments import parse_arguments

LAUNCH = Launch("demo-0", "llama", "127.0.0.1", {"http": 18100, "events": 18101, "replay": 18102}, "/usr/bin/python3")


def test_the_engine_accepts_the_command_line_of_the_sim_kind() -> None:
    given = {
        "gpu": "h200_sxm",
        "model_profile": "Qwen3-32B",
        "tp": 2,
        "time_scale": 10,
        "seed": 7,
        "kv_blocks": 512,
        "block_size": 32,
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
    }
    argv = SIM.command(build(SimSpec, given), LAUNCH)
    assert argv[:3] == ["/usr/bin/python3", "-m", "fleet.simengine"]
    understood = parse_arguments(argv[3:])
    assert {name: getattr(understood, name) for name in given} == given
    assert (understood.port, understood.events_port, understood.replay_port) == (18100, 18101, 18102)
    assert (understood.model, understood.host) == ("llama", "127.0.0.1")


def test_options_left_to_the_engine_are_not_on_the_command_line() -> None:
    argv = SIM.command(SimSpec(), LAUNCH)
    assert "--kv-blocks" not in argv
    assert "--tp" not in argv
    parse_arguments(argv[3:])


@pytest.mark.parametrize("rate", ["-1", "0", "inf", "nan"])
def test_the_engine_refuses_a_rate_that_is_not_more_than_0(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--port", "0", "--model", "m", f"--kv-gb-per-s={rate}"])
    assert f"argument --kv-gb-per-s: {float(rate)} is not more than 0" in capsys.readouterr().err


def test_routers_get_the_address_of_a_sims_events() -> None:
    assert SIM.wire(SimSpec(), LAUNCH).stored() == {"events": "http://127.0.0.1:18100", "tokenizer": "sim"}


def test_the_engine_accepts_the_options_of_each_connector() -> None:
    given = {"kv": "nixl", "kv_setup_ms": 2, "kv_gb_per_s": 40, "kv_busy_gb_per_s": 20, "kv_hold_s": 30}
    argv = SIM.command(build(SimSpec, given), LAUNCH)
    understood = parse_arguments(argv[3:])
    assert {name: getattr(understood, name) for name in given} == given
    assert understood.role == "both"


def test_the_engine_accepts_the_options_of_tiers() -> None:
    given = {
        "dram_gb": 2.5,
        "ssd_gb": 100.0,
        "ssd_access": "ssd-gds",
        "tier_write": "evict",
        "tier_promote_hits": 3,
        "tier_prefetch": True,
        "tier_load": "always",
        "tier_law": "published",
        "dram_gb_per_s": 56.0,
        "dram_layer_ms": 2.0,
        "ssd_drives": 4,
        "ssd_read_gb_s": 7.0,
    }
    understood = parse_arguments(SIM.command(build(SimSpec, given), LAUNCH)[3:])
    assert {name: getattr(understood, name) for name in given} == given
    assert "--dram-gb" not in SIM.command(SimSpec(), LAUNCH)


@pytest.mark.parametrize(("ordinal", "role"), [(0, "prefill"), (1, "decode")])
def test_the_first_instances_prefill_and_the_others_decode(ordinal: int, role: str) -> None:
    spec, launch = build(SimSpec, {"kv": "neuron", "prefill_instances": 1}), replace(LAUNCH, ordinal=ordinal)
    understood = parse_arguments(SIM.command(spec, launch)[3:])
    assert understood.role == role
    assert SIM.wire(spec, launch).role == role


def test_each_decoder_of_a_fixed_pair_knows_its_prefill_instance() -> None:
    given = {"kv": "neuron", "pairs": "1P1D", "prefill_instances": 2, "prefill_max_num_seqs": 4}
    spec, peers = build(SimSpec, given), {"demo-1": "h:1"}
    assert check_engine(SIM, given, "engine") == []
    launches = [replace(LAUNCH, instance=f"demo-{ordinal}", ordinal=ordinal, peers=peers) for ordinal in range(4)]
    understood = [parse_arguments(SIM.command(spec, launch)[3:]) for launch in launches]
    assert [each.kv_peer for each in understood] == [None, None, "<address of demo-0>", "h:1"]
    assert [each.max_num_seqs for each in understood] == [4, 4, 256, 256]
    assert [SIM.wire(spec, launch).kv.pair for launch in launches] == ["", "", "demo-0", "demo-1"]
    assert SIM.max_replicas(spec) == 4


def test_the_engine_accepts_the_options_of_ranks() -> None:
    given = {"data_parallel_size": 4, "data_parallel_size_local": 2}
    spec, second = build(SimSpec, given), replace(LAUNCH, instance="demo-1", ordinal=1)
    understood = parse_arguments(SIM.command(spec, second)[3:])
    assert (understood.data_parallel_size, understood.data_parallel_start_rank) == (2, 2)
    assert SIM.wire(spec, second).stored()["dp"] == {"ranks": 2, "first": 2}
    assert SIM.hardware is not None
    assert SIM.hardware(spec, "both").gpus == 2
    assert "--data-parallel-size" not in SIM.command(SimSpec(), LAUNCH)


def test_workers_of_neuron_register_in_etcd() -> None:
    spec = build(SimSpec, {"kv": "neuron", "prefill_instances": 1, "etcd": "h:2379"})
    assert parse_arguments(SIM.command(spec, LAUNCH)[3:]).etcd == "h:2379"
    assert SIM.wire(spec, LAUNCH).kv.etcd == "h:2379"


def test_prefill_instances_have_their_own_tensor_parallel() -> None:
    given = {"kv": "neuron", "prefill_instances": 1, "model_profile": "Qwen3-32B", "tp": 2, "prefill_tp": 4}
    spec = build(SimSpec, given)
    sides = [parse_arguments(SIM.command(spec, replace(LAUNCH, ordinal=ordinal))[3:]).tp for ordinal in (0, 1)]
    assert sides == [4, 2]


def test_colocated_instances_of_neuron_and_sglang_transfer_no_kv() -> None:
    assert {SIM.wire(build(SimSpec, {"kv": kv}), LAUNCH).connector for kv in ("neuron", "sglang")} == {""}


def test_engines_get_the_address_of_the_store_that_their_pool_names() -> None:
    spec, launch = build(SimSpec, {"kv": "mooncake_store", "store_pool": "s"}), replace(LAUNCH, peers={"s": "h:1"})
    assert parse_arguments(SIM.command(spec, launch)[3:]).kv_store == "http://h:1"
    assert SIM.needs(spec) == ("s",)


def test_routers_get_the_connector_of_a_sim() -> None:
    wire = SIM.wire(build(SimSpec, {"kv": "mooncake_p2p"}), LAUNCH)
    assert (wire.role, wire.connector) == ("both", "mooncake_p2p")
    assert wire.kv_stored() == {"bytes_per_token": 131_072, "bootstrap": "http://127.0.0.1:18100"}


GROUPS = {"context_servers": "dwdp", "kv": "trtllm", "prefill_instances": 1}


def test_a_dwdp_group_has_a_rank_for_each_context_gpu() -> None:
    spec = build(SimSpec, GROUPS)
    generation = replace(LAUNCH, ordinal=1)
    assert [SIM.wire(spec, one).dp.ranks for one in (LAUNCH, generation)] == [4, 1]
    assert SIM.port_spans(spec) == {"events": 4, "replay": 4}
    assert SIM.hardware is not None
    assert [SIM.hardware(spec, role).gpus for role in ("prefill", "decode")] == [4, 8]
    asked = parse_arguments(SIM.command(spec, LAUNCH)[3:])
    assert (asked.context_servers, asked.role, asked.kv) == ("dwdp", "prefill", "trtllm")
    assert not {"--gpu", "--model-profile"} & {*SIM.command(spec, LAUNCH)}, "they serve DeepSeek-R1 on GB200"
    together = build(SimSpec, {**GROUPS, "context_servers": "dep", "prefill_tp": 8, "context_hot_experts": 1.2})
    assert parse_arguments(SIM.command(together, LAUNCH)[3:]).context_hot_experts == 1.2
    assert SIM.wire(together, LAUNCH).dp.ranks == 1
    assert SIM.hardware(together, "prefill").gpus == 8
    assert SIM.twin_model is not None
    groups = [SIM.twin_model(one, LAUNCH).engine for one in (spec, together)]
    assert [(one.limits.ranks, one.limits.max_num_batched_tokens) for one in groups] == [(1, 8192), (8, 8 * 8192)]


@pytest.mark.parametrize(
    ("given", "option", "message"),
    [
        ({"kv": "mooncake_store"}, "store_pool", "must name a pool of the kind sim-store when kv is mooncake_store"),
        ({"kv": "nixl", "store_pool": "store"}, "store_pool", "and only then"),
        ({"prefill_instances": 2}, "prefill_instances", "must be 0 when kv is none"),
        ({"pairs": "1P1D", "kv": "nixl", "prefill_instances": 1}, "pairs", "must be xPyD unless kv is neuron"),
        ({"pairs": "1P1D", "kv": "neuron"}, "pairs", "must be xPyD unless kv is neuron"),
        ({"etcd": "h:1", "kv": "neuron"}, "etcd", "must be left out unless"),
        ({"prefill_tp": 64, "kv": "neuron"}, "prefill_tp", "no constants for"),
        ({"max_num_batched_tokens": 1_048_576}, "max_num_batched_tokens", "steps of 1,048,576 tokens leaves no memory"),
        ({"kv": "neuron", "dram_gb": 1}, "dram_gb", "must be 0 when kv is neuron"),
        ({"context_servers": "dwdp"}, "context_servers", "must be plain unless kv is trtllm and prefill_instances"),
        (GROUPS | {"dram_gb": 1}, "dram_gb", "must be left out unless context_servers is plain"),
        (GROUPS | {"prefill_tp": 2}, "prefill_tp", "spread it over more GPUs"),
        (GROUPS | {"tp": 1}, "tp", "spread it over more GPUs"),
        ({"kv": "neuron", "ssd_gb": 1}, "ssd_gb", "must be 0 when kv is neuron"),
        ({"ssd_access": "ssd", "ssd_metadata": "prp"}, "ssd_metadata", "must be sgl unless ssd_access is ssd-tutti"),
        ({"dram_gb": 1, "tier_prefetch": True}, "tier_prefetch", "unless dram_gb and ssd_gb are more than 0"),
    ],
)
def test_options_of_transfers_and_tiers_must_be_consistent(given: dict[str, object], option: str, message: str) -> None:
    (problem,) = check_engine(SIM, given, "engine")
    assert problem.path == f"engine.{option}"
    assert message in problem.text


@pytest.mark.parametrize("faulty", [{"colour": "red"}, {"max_num_seqs": 0}])
def test_a_faulty_option_is_the_only_error_beside_groups_of_context_gpus(faulty: dict[str, object]) -> None:
    given = {"kv": "trtllm", "prefill_instances": 2, "context_servers": "dwdp", **faulty}
    assert [problem.path for problem in check_engine(SIM, given, "engine")] == [f"engine.{name}" for name in faulty]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_option_has_a_help_text(kind: Any) -> None:
    for one in options_of(kind.spec):
        assert one.title
        assert one.help.endswith(".")
        assert (
            one.choices
            or one.kind in {"bool", "text", "list", "map"}
            or (one.minimum is not None and one.maximum is not None)
        )
    assert check(kind.spec, {}, "engine") == []


@dataclass(frozen=True)
class Spec:
    loud: bool = option(False, "Loud", kind="bool")
    name: str = option("a", "Name", kind="text")
    low: int = option(0, "Low", range=(0, math.inf))
    high: int = option(0, "High", unit="x", range=(-math.inf, 9))
    free: float = option(0.0, "Free", kind="float")
    words: tuple[str, ...] = option((), "Words", kind="list")
    names: Mapping[str, str] | None = option(None, "Names", kind="map")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loud": 1}, "1 is not allowed; allowed: true or false"),
        ({"name": ""}, '"" is not allowed; allowed: text that is not empty'),
        ({"name": "a\x00"}, '"a\\u0000" is not allowed; allowed: text that is not empty'),
        ({"low": -1}, "-1 is below 0; allowed: a whole number from 0 on"),
        ({"high": 10}, "10 is above 9; allowed: a whole number up to 9 x"),
        ({"free": "x"}, '"x" is not allowed; allowed: a number'),
        ({"free": True}, "true is not allowed; allowed: a number"),
        ({"free": float("inf")}, "inf is not a number; allowed: a number"),
        ({"words": "a"}, '"a" is not allowed; allowed: a list of texts, none empty'),
        ({"words": ["a", ""]}, '"a list" is not allowed; allowed: a list of texts, none empty'),
        ({"names": {"a": 1}}, '"an object" is not allowed; allowed: a mapping of names to texts'),
        ({"lauter": 1}, "unknown option; known are loud, name, low, high, free, words, names"),
    ],
)
def test_a_refused_option_names_its_allowed_values(given: dict[str, object], message: str) -> None:
    (problem,) = check(Spec, given, "engine")
    assert (problem.path, problem.text) == (f"engine.{next(iter(given))}", message)


def test_a_float_can_be_written_without_a_point() -> None:
    assert check(Spec, {"free": 3}, "engine") == []
    assert isinstance(build(Spec, {"free": 3}).free, float)


def test_lists_and_mappings_are_passed_on_unchanged() -> None:
    given = {"words": ["a", "b"], "names": {"A": "", "B": "c"}}
    assert check(Spec, given, "engine") == []
    assert (build(Spec, given).words, build(Spec, given).names) == (("a", "b"), {"A": "", "B": "c"})
