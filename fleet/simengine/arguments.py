"""The command line of the sim kind."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

from fleet.engine.dwdp.machine import GPUS as CONTEXT_GPUS
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.profiles import DEFAULT_GPU, DEFAULT_MODEL
from fleet.engine.tiers.devices import DRIVE_BYTES_PER_S, DRIVES
from fleet.simengine.kv_events import DIALECTS
from fleet.simengine.model import (
    CONTEXT_SERVERS,
    ONE_ENGINE,
    SSD_ACCESS,
    SSD_METADATA,
    TIER_LAWS,
    TIER_LOADS,
    TIER_WRITES,
    SimOptions,
)
from router.contract.connectors import CONNECTOR_CHOICES, MOONCAKE_STORE, NONE, TRTLLM
from router.contract.redis.published import MOST_RANKS

MAX_MODEL_LEN = 131_072
ROLES = ("both", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(SimOptions):
    port: int
    model: str
    host: str
    time_scale: float
    seed: int
    events_port: int | None
    replay_port: int | None
    events_dialect: str
    role: str
    kv_peer: str | None
    kv_store: str | None
    etcd: str | None
    kv_failure: str
    kv_lend_s: float
    data_parallel_size: int
    data_parallel_start_rank: int
    max_loras: int
    max_cpu_loras: int | None


def parse_arguments(words: list[str]) -> Arguments:
    """Parse the command line. Exit with status 2 and a message for invalid arguments."""
    parser = argparse.ArgumentParser(prog="python -m fleet.simengine", description=__doc__)
    port = _between(0, 65_535)
    parser.add_argument("--port", type=port, required=True, help="HTTP port; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", required=True, help="the name under which it is served")
    _add_model(parser)
    parser.add_argument("--time-scale", type=_scale, default=1.0, help="10: ten times faster than real time")
    parser.add_argument("--kv-blocks", type=_positive, help="default: what fits next to the model")
    parser.add_argument("--block-size", type=_positive, default=16, help="tokens")
    parser.add_argument("--max-model-len", type=_positive, default=MAX_MODEL_LEN, help="tokens")
    parser.add_argument("--max-num-seqs", type=_positive, default=256)
    parser.add_argument("--max-num-batched-tokens", type=_positive, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--events-port", type=port, help="KV events (ZMQ PUB), with --replay-port; 0 takes a free one")
    parser.add_argument("--replay-port", type=port, help="replay of KV events (ZMQ ROUTER)")
    parser.add_argument(
        "--events-dialect", choices=DIALECTS, default=DIALECTS[0], help="the engine whose KV events they imitate"
    )
    _add_ranks(parser)
    parser.add_argument("--max-loras", type=_between(0, 512), default=0, help="adapters in a batch; 0: without LoRA")
    parser.add_argument("--max-cpu-loras", type=_positive, help="adapters in memory; default: --max-loras")
    _add_transfers(parser)
    _add_tiers(parser)
    found = parser.parse_args(words)
    if found.kv == MOONCAKE_STORE and found.kv_store is None:
        parser.error(f"--kv {MOONCAKE_STORE} needs --kv-store URL")
    if (found.events_port is None) != (found.replay_port is None):
        parser.error("--events-port and --replay-port come together")
    if found.data_parallel_size > 1 and found.kv != NONE:
        parser.error("--data-parallel-size of more than 1 needs --kv none")
    if found.context_servers != ONE_ENGINE and (found.kv != TRTLLM or found.role == ROLES[0]):
        parser.error(f"--context-servers {found.context_servers} needs --kv {TRTLLM} and --role prefill or decode")
    found.group = found.group or found.data_parallel_size
    return Arguments(**vars(found))


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model and the GPUs whose step times are simulated."""
    parser.add_argument("--gpu", default=DEFAULT_GPU)
    parser.add_argument("--model-profile", default=DEFAULT_MODEL, help="model whose step times are simulated")
    parser.add_argument(
        "--tp", type=_positive, help="GPUs of one instance; default: the smallest that was fitted or fits"
    )
    parser.add_argument("--expert-parallel", action="store_true", help="whole experts are dealt among the GPUs")
    parser.add_argument("--profile", help="as JSON, instead of GPU, model and parallelism")
    parser.add_argument(
        "--context-servers",
        choices=CONTEXT_SERVERS,
        default=ONE_ENGINE,
        help="instead of GPU and model, with --kv trtllm",
    )
    parser.add_argument("--context-model", choices=tuple(MOES), default=next(iter(MOES)), help="of context servers")
    parser.add_argument("--context-gpu", choices=tuple(CONTEXT_GPUS), default=next(iter(CONTEXT_GPUS)))
    parser.add_argument("--context-hot-experts", type=float, default=0.0, help="Zipf exponent of the router's choice")


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options of data-parallel ranks."""
    ranks = _between(1, MOST_RANKS)
    parser.add_argument("--data-parallel-size", type=ranks, default=1, help="ranks behind this address, numbered …")
    parser.add_argument(
        "--data-parallel-start-rank", type=_between(0, MOST_RANKS), default=0, help="… from this number on"
    )
    parser.add_argument(
        "--data-parallel-group",
        type=ranks,
        dest="group",
        help="ranks that share the experts; default: those behind this address",
    )


def _add_transfers(parser: argparse.ArgumentParser) -> None:
    """Add the options of KV transfers between engines."""
    parser.add_argument(
        "--kv", choices=CONNECTOR_CHOICES, default=NONE, help="how KV blocks move between this engine and others"
    )
    parser.add_argument("--role", choices=ROLES, default="both", help="with --kv neuron")
    parser.add_argument("--kv-peer", help="HOST:PORT of the prefill engine; a fixed pair with --kv neuron")
    parser.add_argument("--etcd", help="HOST:PORT or URL where the engine registers as a worker, with --kv neuron")
    parser.add_argument("--kv-store", help="URL of the store of --kv mooncake_store")
    parser.add_argument("--kv-setup-ms", type=_at_least_0, default=5.0, help="of a transfer, however small")
    parser.add_argument("--kv-gb-per-s", type=_more_than_0, default=9.7, help="while this engine computes nothing")
    parser.add_argument("--kv-busy-gb-per-s", type=_more_than_0, default=3.0, help="while it computes")
    parser.add_argument(
        "--kv-hold-s", type=_more_than_0, default=480.0, help="blocks that are not pulled are freed after this time"
    )
    parser.add_argument(
        "--kv-lend-s", type=_at_least_0, default=0.0, help="a decoder's blocks are kept for the next turn's prefill"
    )
    parser.add_argument("--kv-connect-ms", type=_at_least_0, default=0.0, help="at the first transfer to an engine")
    parser.add_argument("--kv-failure", choices=("fail", "recompute"), default="fail", help="if KV does not arrive")


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    """Add the options of KV below HBM."""
    parser.add_argument("--dram-gb", type=_at_least_0, default=0.0, help="host memory for KV")
    parser.add_argument("--dram-gb-per-s", type=_more_than_0, help="reads from host memory")
    parser.add_argument("--dram-layer-ms", type=_at_least_0, help="set-up of a layer; left out: by --tier-law")
    parser.add_argument("--ssd-gb", type=_at_least_0, default=0.0, help="drives for KV")
    parser.add_argument("--ssd-access", choices=SSD_ACCESS, default=SSD_ACCESS[0])
    parser.add_argument("--ssd-drives", type=_between(1, 64), default=DRIVES)
    parser.add_argument("--ssd-read-gb-s", type=_more_than_0, default=DRIVE_BYTES_PER_S / 1e9, help="reads of a drive")
    parser.add_argument("--ssd-metadata", choices=SSD_METADATA, default=SSD_METADATA[0], help="commands of ssd-tutti")
    parser.add_argument("--tier-write", choices=TIER_WRITES, default=TIER_WRITES[0], help="when blocks are written")
    parser.add_argument(
        "--tier-promote-hits", type=_between(0, 1000), default=1, help="drive to host memory after them; 0: never"
    )
    parser.add_argument(
        "--tier-prefetch", action=argparse.BooleanOptionalAction, default=False, help="while a request waits"
    )
    parser.add_argument("--tier-load", choices=TIER_LOADS, default=TIER_LOADS[0], help="instead of computing")
    parser.add_argument("--tier-law", choices=TIER_LAWS, default=TIER_LAWS[0], help="constants of Tutti's publication")


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


def _between(low: int, high: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return whole


_positive = _between(1, 2**31 - 1)


def _scale(text: str) -> float:
    value = float(text)
    if not 0.001 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{value} is not between 0.001 and 10000")
    return value
