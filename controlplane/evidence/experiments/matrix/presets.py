"""Arms to start from: the adaptive-prefill-offload design, and other routers' strategies."""

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.systems.offload import TRANSFER_RATES
from router.contract.connectors import MOONCAKE_P2P, MOONCAKE_STORE, NEURON, NIXL, NONE, TRTLLM
from router.contract.values.json_value import Json, JsonObject

HEAVY_OF_DESIGN: JsonObject = {"classes.heavy_new_tokens": 20_000}  # set explicitly, because the default may change


def connectors(rate: float, store: str) -> Iterator[tuple[str, dict[str, JsonObject]]]:
    """Yield (name, fleet of an arm) for transfers at a given rate. `store` is a pool of the kind sim-store; empty if
    there is none."""
    link: JsonObject = {"kv_gb_per_s": rate, "kv_busy_gb_per_s": rate}
    yield "NIXL", {"engine": {"kv": NIXL, **link}}
    yield "Mooncake P2P", {"engine": {"kv": MOONCAKE_P2P, **link}}
    if store:
        engine: JsonObject = {"kv": MOONCAKE_STORE, "store_pool": store}
        yield f"the Mooncake store {store}", {"engine": engine, "store": {"gb_per_s": rate}}


def _offload(rate: float, fleet: Mapping[str, JsonObject], over: str = "") -> JsonObject:
    return {
        "name": f"D at {rate:g} GB-s{over and f' over {over}'}",
        "strategy": "adaptive_offload",
        "overrides": HEAVY_OF_DESIGN,
        "fleet": {**fleet},
    }


A: JsonObject = {"name": "A", "strategy": "cache_aware"}
B: JsonObject = {"name": "B", "strategy": "adaptive_v1", "overrides": HEAVY_OF_DESIGN}
C: list[Json] = [
    {"name": f"C at T={t // 1000}k", "strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": t}}
    for t in (10_000, 20_000, 40_000)
]
D: list[Json] = [_offload(rate, dict(connectors(rate, ""))["NIXL"]) for rate in TRANSFER_RATES]


def split(prefill: int, instances: int = 8) -> JsonObject:
    """Return a fleet in which `prefill` instances prefill and the others decode."""
    return {
        "name": f"static {prefill}P{instances - prefill}D",
        "strategy": "round_robin_pd",
        "fleet": {"replicas": instances, "engine": {"kv": NIXL, "prefill_instances": prefill}},
    }


STATIC = split(6)
SPLITS: list[Json] = [split(prefill) for prefill in (7, 6, 5, 4, 3, 1)]
_NIXL: JsonObject = {**dict(connectors(9.7, ""))["NIXL"]}
_SESSION_FIRST: JsonObject = {**HEAVY_OF_DESIGN, "strategy.order": "session_first"}
OFFLOADS: list[Json] = [
    B,
    {**B, "name": "B, session first", "overrides": _SESSION_FIRST},
    {"name": "D", "strategy": "adaptive_offload", "overrides": HEAVY_OF_DESIGN, "fleet": _NIXL},
    {"name": "D, session first", "strategy": "adaptive_offload", "overrides": _SESSION_FIRST, "fleet": _NIXL},
    {
        "name": "conditional offload",
        "strategy": "conditional_offload",
        # Without this, nothing would be moved before a first transfer has been measured.
        "overrides": {**HEAVY_OF_DESIGN, "strategy.assumed_transfer_gb_per_s": 9.7},
        "fleet": _NIXL,
    },
    {"name": "PPD", "strategy": "ppd", "fleet": _NIXL},
]
FLEET_OF_DESIGN: JsonObject = {"gpu": "h20_sxm", "model_profile": "Qwen3-30B-A3B", "tp": 1}  # the author's; 8 of them


def on_fleet_of_design(arm: Any) -> JsonObject:
    """Return the arm with the engines that the design's author measured; its other settings stay."""
    fleet = arm.get("fleet", {})
    return {**arm, "fleet": {"replicas": 8, **fleet, "engine": {**FLEET_OF_DESIGN, **fleet.get("engine", {})}}}


ON_FLEET_OF_DESIGN: list[Json] = [
    on_fleet_of_design(arm) for arm in (A, B, C[2], *D[:2], {"name": "priced", "strategy": "priced"}, split(4), STATIC)
]
PEERS: list[Json] = ["lpwl", "cache_aware", "prefix_hash", "sglang_cache_aware", "dynamo", "llm_d", "lmetric"]
PEERS += ["smetric", "mooncake_conductor", "least_requests", "power_of_two", "round_robin"]


_BELOW_HBM: dict[str, JsonObject] = {
    "HBM": {},
    "DRAM": {"dram_gb": 256},
    "LMCache": {"ssd_gb": 14_000, "ssd_access": "ssd"},
    "GDS": {"ssd_gb": 14_000, "ssd_access": "ssd-gds"},
    "Tutti": {"ssd_gb": 14_000, "ssd_access": "ssd-tutti"},
}


_TIER_SIZES = ("dram_gb", "ssd_gb")


def tiers(
    fleet: Mapping[str, Json], engine: Mapping[str, Json], one: str = "", of_one: Mapping[str, Json] | None = None
) -> list[Json]:
    """Compare HBM alone with four tiers below it. `engine` has options for all arms; the given sizes of the tiers
    replace the usual ones. `of_one` has further options for the arm of the device `one`."""
    arms: list[Json] = []
    for name, below in _BELOW_HBM.items():
        own = {option: engine.get(option, value) for option, value in below.items()}
        device = below.get("ssd_access", "dram" if below else "hbm")
        shared = {option: value for option, value in engine.items() if option not in _TIER_SIZES}
        made: JsonObject = {"block_size": 64, **shared, **own, **((of_one or {}) if device == one else {})}
        arms.append({"name": name, "strategy": "priced", "fleet": {**fleet, "engine": made}})
    return arms


def disaggregated(prefills: int, decodes: int, sides: Mapping[str, Json], both: Mapping[str, Json]) -> list[Json]:
    """Compare x prefill and y decode instances with the same number of instances that do both, computing prompts first
    or in chunks. `sides` has options for engines that move KV, `both` options for all engines.
    """
    moving: JsonObject = {"kv": NEURON, **both, **sides}
    count = prefills + decodes

    def arm(name: str, strategy: str, replicas: int, engine: JsonObject) -> JsonObject:
        return {"name": name, "strategy": strategy, "fleet": {"replicas": replicas, "engine": engine}}

    return [
        arm("1P1D", "round_robin_pd", 2, {**moving, "prefill_instances": 1}),
        arm(f"{prefills}P{decodes}D", "round_robin_pd", count, {**moving, "prefill_instances": prefills}),
        arm("continuous batching", "round_robin", count, {"kv": NEURON, "prefill_instances": 0, **both}),
        arm("chunked prefill", "round_robin", count, {"kv": NONE, "prefill_instances": 0, **both}),
    ]


def _context_group(name: str, mode: str) -> JsonObject:
    engine: JsonObject = {
        "kv": TRTLLM,
        "context_servers": mode,
        "prefill_instances": 1,
        "prefill_tp": 4,
        "tp": 8,
        "max_num_batched_tokens": 32_768,
        "kv_gb_per_s": 643,
        "kv_busy_gb_per_s": 321,
    }
    return {
        "name": name,
        "strategy": "lpwl",
        "overrides": {"flow.heavy": "offload"},
        "fleet": {"replicas": 2, "engine": engine},
    }


def presets(store: str = "") -> dict[str, tuple[str, list[Json]]]:
    """Return name → (description of the comparison, arms)."""
    over = [_offload(rate, fleet, name) for rate in TRANSFER_RATES for name, fleet in connectors(rate, store)]
    return {
        "design": (
            "The design: cache aware, adaptive, adaptive with offload, and a fixed split of 6 prefill and 2 decode",
            [A, B, D[1], STATIC],
        ),
        "own-fleet": (
            "The design on the fleet of its author: 8 engines of Qwen3-30B-A3B on one H20 each, fixed splits included",
            ON_FLEET_OF_DESIGN,
        ),
        "offloads": ("Ways to move a heavy prefill away, and which rule comes first, at 9.7 GB/s", [A, *OFFLOADS]),
        "splits": ("Fixed splits of 8 instances, from 7 prefill and 1 decode to 1 and 7", [A, *SPLITS]),
        "thresholds": ("When a request counts as heavy: from 10,000, 20,000 or 40,000 new tokens", [A, *C]),
        "bandwidths": ("How fast KV moves between instances: 3, 9.7 and 40 GB/s, by connector", [A, *over]),
        "tiers": ("HBM alone, host memory, and drives by LMCache, GDS and Tutti", tiers({}, {})),
        "disaggregated": (
            "1P1D, 2P2D, continuous batching that takes prompts first, and chunked prefill",
            disaggregated(2, 2, {}, {}),
        ),
        "dwdp": (
            "Four context GPUs of DeepSeek-R1 in DEP, in DWDP and in DWDP with slices, before eight that answer",
            [_context_group("DEP4", "dep"), _context_group("DWDP4", "dwdp"), _context_group("slices", "dwdp-slices")],
        ),
        "peers": ("Strategies of other routers", PEERS),
    }
