"""The command line of the sim kind: each option is a field with the settings of its flag."""

import argparse
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from fleet.engine.dwdp.machine import GPUS
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.profiles import DEFAULT_GPU, DEFAULT_MODEL
from fleet.engine.tiers.devices import DRIVE_BYTES_PER_S, DRIVES, SSD, SSD_GDS, SSD_TUTTI
from fleet.engine.tiers.model import WritePolicy
from router.contract.connectors import CONNECTOR_CHOICES, MOONCAKE_STORE, NONE, TRTLLM
from router.contract.redis.published import MOST_RANKS

SSD_ACCESS = (SSD_TUTTI.name, SSD_GDS.name, SSD.name)
SGL, PRP = SSD_METADATA = ("sgl", "prp")
TIER_WRITES: tuple[str, ...] = get_args(WritePolicy)
IF_FASTER, ALWAYS = TIER_LOADS = ("if_faster", "always")
PLAIN, PUBLISHED = TIER_LAWS = ("plain", "published")
ONE_ENGINE, DEP, DWDP, DWDP_SLICES = CONTEXT_SERVERS = ("plain", "dep", "dwdp", "dwdp-slices")
VLLM, SGLANG = DIALECTS = ("vllm", "sglang")
ROLES = ("both", "prefill", "decode")


def _flag(default: object = dataclasses.MISSING, help: str = "", **settings: object) -> Any:
    """Declare an option; `settings` are those of `add_argument`."""
    return dataclasses.field(default=default, metadata={"help": help, **settings})


def _choice(choices: tuple[str, ...], help: str = "") -> Any:
    """Declare an option whose default is its first choice."""
    return _flag(choices[0], help, choices=choices)


def _between(low: float, high: float, number: type[float] = int) -> Callable[[str], float]:
    def limited(text: str) -> float:
        value = number(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return limited


def _at_least_0(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not 0 or more")
    return value


def _more_than_0(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not more than 0")
    return value


_positive = _between(1, 2**31 - 1)
_port = _between(0, 65_535)
_ranks = _between(1, MOST_RANKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The options that determine how an engine computes."""

    gpu: str = _flag(DEFAULT_GPU)
    model_profile: str = _flag(DEFAULT_MODEL, "model whose step times are simulated")
    tp: int | None = _flag(None, "GPUs of one instance; default: the smallest that was fitted or fits", type=_positive)
    expert_parallel: bool = _flag(False, "whole experts are dealt among the GPUs", action="store_true")
    profile: str | None = _flag(None, "as JSON, instead of GPU, model and parallelism")
    context_servers: str = _choice(CONTEXT_SERVERS, "instead of GPU and model, with --kv trtllm")
    context_model: str = _choice(tuple(MOES), "of context servers")
    context_gpu: str = _choice(tuple(GPUS))
    context_hot_experts: float = _flag(0.0, "Zipf exponent of the router's choice", type=float)
    data_parallel_group: int = _flag(0, "ranks that share the experts; default: those behind this address", type=_ranks)
    kv_blocks: int | None = _flag(None, "default: what fits next to the model", type=_positive)
    block_size: int = _flag(16, "tokens", type=_positive)
    max_model_len: int = _flag(131_072, "tokens", type=_positive)
    max_num_seqs: int = _flag(256, type=_positive)
    max_num_batched_tokens: int = _flag(8192, type=_positive)
    kv: str = _flag(NONE, "how KV blocks move between this engine and others", choices=CONNECTOR_CHOICES)
    kv_setup_ms: float = _flag(5.0, "of a transfer, however small", type=_at_least_0)
    kv_gb_per_s: float = _flag(9.7, "while this engine computes nothing", type=_more_than_0)
    kv_busy_gb_per_s: float = _flag(3.0, "while it computes", type=_more_than_0)
    kv_hold_s: float = _flag(480.0, "blocks that are not pulled are freed after this time", type=_more_than_0)
    kv_connect_ms: float = _flag(0.0, "at the first transfer to an engine", type=_at_least_0)
    kv_lend_s: float = _flag(0.0, "a decoder's blocks are kept for the next turn's prefill", type=_at_least_0)
    dram_gb: float = _flag(0.0, "host memory for KV", type=_at_least_0)
    ssd_gb: float = _flag(0.0, "drives for KV", type=_at_least_0)
    ssd_access: str = _choice(SSD_ACCESS)
    ssd_drives: int = _flag(DRIVES, type=_between(1, 64))
    ssd_read_gb_s: float = _flag(DRIVE_BYTES_PER_S / 1e9, "reads of a drive", type=_more_than_0)
    ssd_metadata: str = _choice(SSD_METADATA, "commands of ssd-tutti")
    tier_write: str = _choice(TIER_WRITES, "when blocks are written")
    tier_promote_hits: int = _flag(1, "drive to host memory after them; 0: never", type=_between(0, 1000))
    tier_prefetch: bool = _flag(False, "while a request waits", action=argparse.BooleanOptionalAction)
    tier_load: str = _choice(TIER_LOADS, "instead of computing")
    tier_law: str = _choice(TIER_LAWS, "constants of Tutti's publication")
    dram_gb_per_s: float | None = _flag(None, "reads from host memory; default: the link's rate", type=_more_than_0)
    dram_layer_ms: float | None = _flag(None, "set-up of a layer; left out: by --tier-law", type=_at_least_0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(SimOptions):
    port: int = _flag(help="HTTP port; 0 takes a free one", type=_port, required=True)
    host: str = _flag("127.0.0.1")
    model: str = _flag(help="the name under which it is served", required=True)
    time_scale: float = _flag(1.0, "10: ten times faster than real time", type=_between(0.001, 10_000, float))
    seed: int = _flag(0, type=int)
    events_port: int | None = _flag(None, "KV events (ZMQ PUB), with --replay-port; 0 takes a free one", type=_port)
    replay_port: int | None = _flag(None, "replay of KV events (ZMQ ROUTER)", type=_port)
    events_dialect: str = _choice(DIALECTS, "the engine whose KV events they imitate")
    data_parallel_size: int = _flag(1, "ranks behind this address, numbered …", type=_ranks)
    data_parallel_start_rank: int = _flag(0, "… from this number on", type=_between(0, MOST_RANKS))
    max_loras: int = _flag(0, "adapters in a batch; 0: without LoRA", type=_between(0, 512))
    max_cpu_loras: int | None = _flag(None, "adapters in memory; default: --max-loras", type=_positive)
    role: str = _choice(ROLES, "with --kv neuron")
    kv_peer: str | None = _flag(None, "HOST:PORT of the prefill engine; a fixed pair with --kv neuron")
    etcd: str | None = _flag(None, "HOST:PORT or URL where the engine registers as a worker, with --kv neuron")
    kv_store: str | None = _flag(None, "URL of the store of --kv mooncake_store")
    kv_failure: str = _choice(("fail", "recompute"), "if KV does not arrive")


def parse_arguments(words: list[str]) -> Arguments:
    """Parse the command line. Exit with status 2 and a message for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m fleet.simengine", description="one simulated engine")
    for option in dataclasses.fields(Arguments):
        default = None if option.default is dataclasses.MISSING else option.default
        parser.add_argument(f"--{option.name.replace('_', '-')}", default=default, **option.metadata)
    given = parser.parse_args(words)
    if given.kv == MOONCAKE_STORE and given.kv_store is None:
        parser.error(f"--kv {MOONCAKE_STORE} needs --kv-store URL")
    if (given.events_port is None) != (given.replay_port is None):
        parser.error("--events-port and --replay-port come together")
    if given.data_parallel_size > 1 and given.kv != NONE:
        parser.error("--data-parallel-size of more than 1 needs --kv none")
    if given.context_servers != ONE_ENGINE and (given.kv != TRTLLM or given.role == ROLES[0]):
        parser.error(f"--context-servers {given.context_servers} needs --kv {TRTLLM} and --role prefill or decode")
    given.data_parallel_group = given.data_parallel_group or given.data_parallel_size
    return Arguments(**vars(given))
